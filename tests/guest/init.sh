#!/bin/busybox sh
# The init of the guest's initramfs: puts the host's root, read-only over 9p, below a tmpfs and goes on there (stage2.sh).
B=/bin/busybox
stop() { $B echo "guest: $*" >/dev/console; $B reboot -f; }
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs devtmpfs /dev
while read -r m; do $B insmod "/m/$m" || $B echo "insmod $m failed" >/dev/console; done </m/order
P=trans=virtio,version=9p2000.L,msize=512000,access=client
i=0
until $B mount -t 9p -o ro,cache=loose,$P hostroot /lower 2>/dev/null; do
  i=$((i + 1)); [ $i -lt 50 ] || stop "cannot mount the host's root"
  $B sleep 0.1
done
$B mount -t tmpfs -o mode=755 tmpfs /rw
$B mkdir /rw/up /rw/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/rw/up,workdir=/rw/work overlay /new || stop "cannot mount the overlay"
for d in proc sys dev; do $B mkdir -p /new/$d; $B mount --move /$d /new/$d; done
$B mkdir -p /new/run
$B mount -t tmpfs -o mode=755 tmpfs /new/run
$B mkdir -p /new/run/guest /new/run/lock
$B mount -t 9p -o cache=none,$P control /new/run/guest || stop "cannot mount the control folder"
$B cp /bin/busybox /new/run/busybox
cd /new || stop "no /new"
exec $B chroot . /run/busybox sh /run/guest/stage2.sh
