#!/bin/sh
# testpmd.sh SECONDS ADDRESS ADDRESS - DPDK's own forwarder on two NICs of the guest's hub: each burst that one receives
# leaves at the other, which lets the first receive it again. SECONDS count from when it forwards.
set -eu
here=$(dirname "$0")
echo 96 >/proc/sys/vm/nr_hugepages
"$here/bind.sh" vfio-pci "$2" "$3"
mkfifo /run/testpmd.in
stdbuf -oL dpdk-testpmd -l 0,1 -m 128 --no-telemetry --in-memory -a "$2" -a "$3" -- \
  --forward-mode=io --tx-first --total-num-mbufs=2048 </run/testpmd.in >/run/testpmd.out 2>&1 &
exec 3>/run/testpmd.in
until grep -q 'Press enter' /run/testpmd.out; do
  kill -0 $! 2>/dev/null || break
  sleep 0.2
done
sleep "$1"
exec 3>&- # it ends at the end of its input
status=0
wait $! || status=$?
cat /run/testpmd.out
exit $status
