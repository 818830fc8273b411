#!/bin/bash
# run-in-guest.sh - run one command as root in a throw-away QEMU guest: Debian's generic kernel on this machine's own root.
#
#   run-in-guest.sh [OPTIONS] [--] COMMAND [ARG...]
#   run-in-guest.sh --setup    only install what is needed and unpack the kernel into build/guest
#
# For devices and kernel modules that this machine lacks: NICs under vfio, netem. No hardware help is needed: the guest is
# emulated, so what it shows is right or wrong and never fast or slow. Its "/" is the host's, read-only, below a tmpfs: the
# same Python, the same built project. What it writes is gone afterwards, except under a folder given with --rw. COMMAND
# gets the caller's folder and environment and an empty standard input; stdout and stderr arrive live and apart.
#
# Exit status: COMMAND's own; 124 when it did not end in time; 125 when the guest could not be set up, hung or died (why,
# and the end of its kernel log, is on stderr then). After 125 another try is worth while, and only then.
#
#   --timeout S     for COMMAND, by the guest's clock (default 60); booting has 90 s
#   --mem MIB       memory (default 1024)
#   --modules LIST  kernel modules to load first: "veth sch_netem"
#   --rw DIR        host folder that can be written to, at the same path (repeatable)
#   --nics N:MODEL  N emulated NICs on one Ethernet hub (repeatable): virtio-net-pci, e1000e. The first is PCI device
#                   0000:00:10.0 with MAC 52:54:00:00:00:01, the next 0000:00:11.0 with ...:02, and so on; 12 at most
#   --iommu         with an IOMMU, which vfio-pci needs (name vfio_iommu_type1 in --modules too)
set -u -o pipefail
export LC_ALL=C.UTF-8
PATH=$PATH:/usr/sbin:/sbin
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 125
cache=$(realpath -m "$here/../../build/guest")
. "$here/kernel.sh"

say() { printf 'run-in-guest: %s\n' "$*" >&2; }
die() { say "$*"; exit 125; }

limit=60 mem=1024 modules='' iommu=0 setup_only=0 rw=() nics=()
while [ $# -gt 0 ]; do
  case $1 in
    --timeout | --mem | --modules | --rw | --nics) [ $# -gt 1 ] || die "$1 needs a value" ;;
  esac
  case $1 in
    --timeout) limit=$2; shift ;;
    --mem) mem=$2; shift ;;
    --modules) modules=$2; shift ;;
    --rw) rw+=("$(realpath -e -- "$2")") || die "no such folder: $2"; shift ;;
    --nics) nics+=("$2"); shift ;;
    --iommu) iommu=1 ;;
    --setup) setup_only=1 ;;
    -h | --help) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --) shift; break ;;
    -*) die "unknown option $1 (see --help)" ;;
    *) break ;;
  esac
  shift
done
[ $setup_only = 1 ] || [ $# -gt 0 ] || die "no command given (see --help)"
for n in "$limit" "$mem"; do
  case $n in '' | *[!0-9]*) die "not a number: $n" ;; esac
done

setup
kdir=$cache/kernel
kver=$(cat "$kdir/kver") || die "$cache is broken: remove it"
if [ $setup_only = 1 ]; then say "ready: $(cat "$kdir/package") in $cache"; exit 0; fi

run=$(mktemp -d) || die "cannot make a temporary folder: is ${TMPDIR:-/tmp} full?" # readable by us only, as mktemp makes it: the environment is in there
ctl=$run/ctl qpid='' readers=()
cleanup() {
  trap - EXIT HUP INT TERM
  if [ -n "$qpid" ]; then kill "$qpid" 2>/dev/null; wait "$qpid" 2>/dev/null; fi
  [ ${#readers[@]} -eq 0 ] || kill "${readers[@]}" 2>/dev/null
  rm -rf -- "$run"
}
trap cleanup EXIT
trap 'cleanup; exit 129' HUP; trap 'cleanup; exit 130' INT; trap 'cleanup; exit 143' TERM

write_control() { # COMMAND... - what the guest reads, quoted so that its shell reads back what was given here
  mkdir "$ctl" && cp "$here/stage2.sh" "$ctl/" || die "cannot write to $run"
  printf '%s=%q\n' kver "$kver" kdir "$kdir" modules "$modules" limit "$limit" >"$ctl/settings"
  printf '%s\n' "${rw[@]}" | sed '/^$/d' >"$ctl/shares"
  {
    export -p | grep -vE '^declare -[a-z-]*x[a-z]* (PWD|OLDPWD|SHLVL|_|BASH[A-Z_]*|TMPDIR|LC_ALL)(=|$)'
    printf 'cd %q || exit 125\nexec' "$PWD"
    printf ' %q' "$@"
    printf '\n'
  } >"$ctl/command"
}

machine_options() { # into q
  local line='console=ttyS0 quiet loglevel=4 panic=-1 reboot=t mitigations=off nokaslr no_timer_check'
  # clocksource: emulated time stamp counters differ between processors, and on a loaded host their rate is misjudged
  line+=' random.trust_cpu=on mce=off clocksource=hpet cryptomgr.notests audit=0 raid=noautodetect'
  q=(qemu-system-x86_64 -name guest -nodefaults -no-user-config -nographic -no-reboot -monitor none
     -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m "$mem" -rtc base=utc)
  if [ $iommu = 1 ]; then
    # with fewer address bits than the processor has, mapping user memory fails and frames leave with a wrong payload
    q+=(-device intel-iommu,intremap=on,caching-mode=on,aw-bits=48)
    line+=' intel_iommu=on'
  fi
  q+=(-kernel "$kdir/vmlinux" -initrd "$kdir/initramfs.cpio" -append "$line")
}

share_options() { # into q: the root, the control folder, what --rw names, the two output streams
  local model=none n=0 d p
  [ "$(id -u)" -ne 0 ] || model=passthrough
  share() { # TAG PATH MORE
    q+=(-fsdev "local,id=$1,path=${2//,/,,},security_model=$model,multidevs=remap$3"
        -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
  }
  share hostroot / ,readonly=on
  share control "$ctl" ''
  for d in "${rw[@]}"; do share "share$n" "$d" ''; n=$((n + 1)); done
  q+=(-chardev "file,id=con,path=$run/console" -serial chardev:con -device virtio-serial-pci)
  for p in out err; do
    mkfifo "$run/$p" || die "cannot write to $run"
    q+=(-chardev "file,id=c$p,path=$run/$p" -device "virtserialport,chardev=c$p,name=guest.$p")
  done
}

nic_options() { # into q. No boot ROM: it would wait for a key.
  local n=0 d i more
  for d in "${nics[@]}"; do
    case $d in [1-9]:?*) ;; *) die "--nics wants N:MODEL, not $d" ;; esac
    more=''
    case $iommu$d in 1*:virtio-*) more=,disable-legacy=on,iommu_platform=on ;; esac
    for ((i = 0; i < ${d%%:*}; i++)); do
      [ $n -lt 12 ] || die "at most 12 NICs"
      q+=(-netdev "hubport,id=hub$n,hubid=1" -device
          "${d#*:},netdev=hub$n,addr=0x$(printf %x $((16 + n))),romfile=,mac=$(printf 52:54:00:00:00:%02x $((n + 1)))$more")
      n=$((n + 1))
    done
  done
}

# One in a few hundred boots dies or hangs, by races between emulated processors (an "Oops: int3", the kernel patching its
# own code). As long as the command has not begun, starting over is safe.
boot() { # sets qrc
  local try i why
  for try in 1 2; do
    # should this script be killed, the machine goes with it
    setpriv --pdeathsig TERM timeout -k 5 $((limit + 90)) "${q[@]}" </dev/null >"$run/qemu" 2>&1 5>&- 6>&- & qpid=$!
    for ((i = 0; i < 900; i++)); do
      [ ! -e "$ctl/began" ] && [ ! -e "$ctl/rc" ] && kill -0 "$qpid" 2>/dev/null || break
      sleep 0.1
    done
    why='the guest died'
    if [ ! -e "$ctl/began" ] && [ ! -e "$ctl/rc" ] && kill "$qpid" 2>/dev/null; then why='booting took more than 90 s'; fi
    wait "$qpid"; qrc=$?
    qpid=''
    if [ -e "$ctl/began" ] || [ -e "$ctl/rc" ] || [ $try = 2 ]; then break; fi
    say "$why before the command began; once more. QEMU's status $qrc; the log ended:"
    tail -n 3 "$run/qemu" "$run/console" >&2
  done
}

write_control "$@"
machine_options
share_options
nic_options
# One reader for each stream. While we hold a writing end, no opening of the pipe blocks; once QEMU has ended and we let
# go, the readers end. (The second cat: when nobody reads our own output any more, the guest still goes on.)
exec 5<>"$run/out" 6<>"$run/err"
{ cat; exec cat >/dev/null; } <"$run/out" 5>&- 6>&- & readers+=($!)
{ cat >&2; exec cat >/dev/null; } <"$run/err" 5>&- 6>&- & readers+=($!)
boot
exec 5>&- 6>&-
wait "${readers[@]}"; readers=()

rc=''
[ ! -s "$ctl/rc" ] || rc=$(cat "$ctl/rc")
broken=$(grep -aE 'Oops|BUG:|Kernel panic|soft lockup|detected stalls' "$run/console" | head -n 1)
if [ -z "$rc" ] || { [ "$rc" = 124 ] && [ -n "$broken" ]; }; then
  say "the guest hung or died (QEMU's status $qrc); ${broken:+$broken; }the end of its log:"
  tail -c 2000 "$run/qemu" >&2
  tail -n 30 "$run/console" >&2
  exit 125
fi
[ "$rc" != 125 ] || tail -n 5 "$run/console" >&2
exit "$rc"
