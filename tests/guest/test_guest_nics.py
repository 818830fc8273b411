"""NICs under vfio in the guest: real DMA through an (emulated) IOMMU, which no virtual device of DPDK does."""
import re

import pytest

VFIO = ["vfio_iommu_type1", "vfio-pci"]

# Each takes seconds where a machine is idle, ten times that on a loaded one, and one try may be repeated.
pytestmark = pytest.mark.timeout(900)


def test_nics__forward_between_each_other_without_our_link(guest):
    """What fails here is the guest's, DPDK's or vfio's and not our link's."""
    reason = guest.packages("testpmd")
    if reason:
        pytest.skip(reason)
    done = guest.run(guest.HERE / "testpmd.sh", 4, guest.nic(0), guest.nic(1), timeout=120, modules=VFIO, iommu=True,
                     nics=["virtio-net-pci", "e1000e"])
    assert "Probe PCI driver: net_virtio" in done.stdout
    assert "Probe PCI driver: net_e1000_em" in done.stdout
    received = [int(n) for n in re.findall(r"RX-packets: (\d+)", done.stdout)]  # of each port, and of both
    assert len(received) == 3, done.stdout
    assert min(received) > 0, done.stdout
    assert received[2] > 64, done.stdout  # more than the first bursts: they came, went and came again


def test_nics__all_reduce_over_vfio_and_with_the_kernels_udp(guest):
    """virtio and e1000e, both ours; then the kernel takes the virtio NIC back, and udp and dpdk work together."""
    virtio, e1000e = guest.nic(0), guest.nic(1)
    done = guest.python(guest.HERE / "dpdk_job.py", f"dpdk:{virtio},dpdk:{e1000e}", f"dpdk:{e1000e},udp:{virtio}",
                        timeout=240, modules=[*VFIO, "virtio_net"], iommu=True, memory=1536,
                        nics=["virtio-net-pci", "e1000e"])
    print(done.stdout)
    said = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert len(said) == 4, done.stdout
    for line, driver in zip(said, ["net_virtio", "net_e1000_em", "net_e1000_em", "10.9.0.2"], strict=True):
        assert driver in line, done.stdout
