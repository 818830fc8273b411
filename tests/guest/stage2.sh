# Second stage of the guest, on the host's root: the usual mounts, the modules, the command, the end. run-in-guest.sh puts
# it into the control folder, beside `settings` (kver, kdir, modules, limit, shares) and `command`.
B=/run/busybox
C=/run/guest
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
finish() { # STATUS: tells it to the host and turns the machine off
  echo "$1" >$C/rc.new; $B mv $C/rc.new $C/rc
  $B sync; $B reboot -f; $B sleep 60
}
cannot() { echo "guest: cannot $*" >/dev/console; finish 125; }
. $C/settings
cd /
$B mkdir -p /dev/pts /dev/shm /dev/mqueue /dev/hugepages
$B mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
$B mount -t tmpfs -o mode=1777 tmpfs /dev/shm
$B mount -t hugetlbfs hugetlbfs /dev/hugepages
$B ln -sf /proc/self/fd /dev/fd
for i in 0:stdin 1:stdout 2:stderr; do $B ln -sf fd/${i%:*} /dev/${i#*:}; done
$B mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
$B mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
$B mount -t bpf bpf /sys/fs/bpf 2>/dev/null
$B ip link set lo up
$B hostname guest
$B mkdir -p "/lib/modules/$kver"
$B mount --bind "$kdir/lib/modules/$kver" "/lib/modules/$kver" || cannot "see the kernel's modules"

n=0
while read -r folder; do # one a line, so that names may hold blanks
  $B mkdir -p "$folder"
  $B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,access=client,cache=mmap share$n "$folder" || cannot "mount $folder"
  n=$((n + 1))
done <$C/shares

# The two output streams are virtio-serial ports. Each can be opened only once, so the command gets pipes: it may well
# open /dev/stderr.
out= err= i=0
until [ -n "$out" ] && [ -n "$err" ]; do
  for p in /sys/class/virtio-ports/*; do
    case $($B cat $p/name 2>/dev/null) in
      guest.out) out=/dev/${p##*/} ;;
      guest.err) err=/dev/${p##*/} ;;
    esac
  done
  i=$((i + 1)); [ $i -lt 50 ] || cannot "find the output ports"
  [ -n "$out" ] && [ -n "$err" ] || $B sleep 0.1
done
$B mkfifo /run/out /run/err
$B cat </run/out >$out & o=$!
$B cat </run/err >$err & e=$!
exec </dev/null 3>/run/out 4>/run/err

rc=0
for m in $modules; do modprobe "$m" 2>&4 || { echo "guest: no kernel module $m" >&4; rc=125; }; done
if [ $rc = 0 ]; then
  : >$C/began
  # timeout in here: a guest that can still end its command is alive, and what hung is the command
  /usr/bin/timeout -k 5 "$limit" /bin/bash $C/command >&3 2>&4 3>&- 4>&-
  rc=$?
  [ $rc != 137 ] || rc=124
  [ $rc != 124 ] || echo "guest: the command did not end in $limit s" >&4
fi
# Let the pipes run empty; a process left behind may hold them open: 3 seconds at most.
exec 3>&- 4>&-
i=0
while [ $i -lt 30 ] && { $B kill -0 $o 2>/dev/null || $B kill -0 $e 2>/dev/null; }; do $B sleep 0.1; i=$((i + 1)); done
finish $rc
