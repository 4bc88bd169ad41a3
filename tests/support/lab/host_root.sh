#!/bin/sh
# Builds a host's private view of the machine and becomes its init. Runs as pid 1 of new mount, uts, net, ipc and pid
# namespaces; everything it mounts vanishes with them.
#
#   host_root.sh DIR HOSTNAME CGROUP     DIR/seed is laid over the machine's root, DIR/home becomes /root, DIR/fs is a mount point
set -eu
dir=$1
hostname "$2"

mount -t tmpfs -o mode=0755 lab "$dir/fs"
mkdir "$dir/fs/work" "$dir/fs/root"
cp -a "$dir/seed" "$dir/fs/upper"
mount -t overlay -o "lowerdir=/,upperdir=$dir/fs/upper,workdir=$dir/fs/work" lab "$dir/fs/root"
cd "$dir/fs/root"

mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 lab dev/shm
mount -t tmpfs -o mode=0755 lab run
mount -t tmpfs -o mode=1777 lab tmp
mount -t tmpfs -o mode=0700 lab root
cp -a "$dir/home/." root
mkdir -p run/sshd run/lock/lxc
mkdir -m 0700 run/lab run/lab/guests run/lab/lower run/lab/old
# Guests are laid over the machine's own root, not over this host's: overlays nest only two deep.
mount --bind / run/lab/lower
cp "$dir/init" run/lab/init

pivot_root . run/lab/old
cd /root
umount -l /run/lab/old
rmdir /run/lab/old
exec /usr/bin/perl /run/lab/init "$3"
