#!/bin/sh
# bind.sh DRIVER ADDRESS... - gives PCI devices (0000:00:10.0) to a driver: vfio-pci, so that a program owns them, or the
# kernel's own (virtio-pci, e1000e). Whoever has a device now loses it. The driver's module must be loaded.
set -eu
driver=$1
shift
[ -d "/sys/bus/pci/drivers/$driver" ] || { echo "bind.sh: no driver $driver here: modprobe $driver" >&2; exit 1; }
for address in "$@"; do
  device=/sys/bus/pci/devices/$address
  [ -d "$device" ] || { echo "bind.sh: no PCI device $address" >&2; exit 1; }
  [ "$driver" != vfio-pci ] || [ -e "$device/iommu_group" ] || {
    echo "bind.sh: $address is in no IOMMU group, which vfio-pci needs: start the guest with --iommu" >&2
    exit 1
  }
  # an override binds this device only; new_id would offer the driver every device of its kind
  echo "$driver" >"$device/driver_override"
  [ ! -e "$device/driver" ] || echo "$address" >"$device/driver/unbind"
  echo "$address" >/sys/bus/pci/drivers_probe
  bound=$(basename "$(readlink "$device/driver" || echo none)")
  [ "$bound" = "$driver" ] || { echo "bind.sh: $address is bound to $bound, not to $driver: see dmesg" >&2; exit 1; }
done
