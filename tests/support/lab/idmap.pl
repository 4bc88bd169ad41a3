# Shows a folder a second time, with every owner shifted, the way an unprivileged container's root file system is owned:
#
#   idmap.pl FROM TO FIRST COUNT      owner N of FROM is FIRST+N of TO, for N below COUNT
#
# By mount_setattr(2), which util-linux offers from 2.39 only. The numbers below are the same on every architecture.
use strict;
use warnings;

my ($OPEN_TREE, $MOVE_MOUNT, $MOUNT_SETATTR) = (428, 429, 442);
my ($AT_FDCWD, $OPEN_TREE_CLONE, $AT_EMPTY_PATH, $MOVE_FROM_EMPTY_PATH, $ATTR_IDMAP) = (-100, 1, 0x1000, 4, 0x100000);
my ($from, $to, $first, $count) = @ARGV;

# The mapping is that of a user namespace; one that a waiting process is in.
my $child = open my $waiting, '|-', qw(unshare --user -- cat) or die "unshare: $!\n";
my $own = readlink '/proc/self/ns/user';
for (1 .. 2000) {
    last if (readlink "/proc/$child/ns/user" // $own) ne $own;
    select undef, undef, undef, 0.001;
}
for my $kind (qw(uid gid)) {
    open my $map, '>', "/proc/$child/${kind}_map" or die "${kind}_map: $!\n";
    syswrite $map, "0 $first $count\n" or die "${kind}_map: $!\n";
}
open my $namespace, '<', "/proc/$child/ns/user" or die "namespace: $!\n";

my $tree = syscall $OPEN_TREE, $AT_FDCWD, $from, $OPEN_TREE_CLONE;
die "open_tree $from: $!\n" if $tree < 0;
my $attributes = pack 'Q4', $ATTR_IDMAP, 0, 0, fileno $namespace;
my $empty = '';
syscall($MOUNT_SETATTR, $tree, $empty, $AT_EMPTY_PATH, $attributes, length $attributes) == 0 or die "mount_setattr: $!\n";
syscall($MOVE_MOUNT, $tree, $empty, $AT_FDCWD, $to, $MOVE_FROM_EMPTY_PATH) == 0 or die "move_mount $to: $!\n";
close $waiting;
