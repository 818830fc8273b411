#!/bin/sh
# testpmd.sh SECONDS ADDRESS ADDRESS - DPDK's own forwarder on two NICs of the guest's hub: each burst that one receives
# leaves at the other, which lets the first receive it again.
set -eu
here=$(dirname "$0")
echo 96 >/proc/sys/vm/nr_hugepages
"$here/bind.sh" vfio-pci "$2" "$3"
# it ends at a line or the end of its input
sleep "$1" | dpdk-testpmd -l 0,1 -m 128 --no-telemetry --in-memory -a "$2" -a "$3" -- \
  --forward-mode=io --tx-first --total-num-mbufs=2048 2>&1
