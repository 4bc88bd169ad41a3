# A host's init: says that it is up, reaps orphans, and ends (and with it the pid namespace) when the lab goes away.
# Argument: the folder below the freezer hierarchy that holds the cgroups of the host's guests.
use strict;
use warnings;

my ($cgroup) = @ARGV;
$SIG{CHLD} = sub { 1 while waitpid(-1, 1) > 0 };
syswrite STDOUT, "up\n";
open STDOUT, '>', '/dev/null' or die "stdout: $!";
while (1) {
    my $got = sysread STDIN, my $ignored, 512;
    last if defined $got ? $got == 0 : $! != 4;    # 4: EINTR, a child ended
}

# A frozen process of cgroup v1 can not die: without a thaw the namespace would stay for ever.
open my $own, '<', '/proc/1/cgroup' or exit;
my ($base) = map { /^\d+:freezer:(.*)$/ ? $1 : () } <$own>;
exit if !defined $base;
for my $state (glob "/sys/fs/cgroup/freezer$base/$cgroup/*/freezer.state") {
    open my $handle, '>', $state or next;
    syswrite $handle, "THAWED\n";
}
