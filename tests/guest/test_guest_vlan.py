"""VLANs with a kernel that knows them, as the guest's does. What needs no such kernel: tests/dpdk/test_kernel.c."""
import pytest

VFIO = ["vfio_iommu_type1", "vfio-pci"]

# Each takes seconds where a machine is idle, ten times that on a loaded one, and one try may be repeated.
pytestmark = pytest.mark.timeout(900)


def test_vlan__dpdk_and_the_kernels_udp_understand_each_other_on_a_veth(guest):
    """The kernel's end is an interface of its own on the VLAN, over IPv4 and IPv6."""
    program = guest.ROOT / "build/san/dpdk/test_kernel"
    assert program.exists(), f"{program} is missing: make dpdk-tests"
    done = guest.run(program, "vlan", timeout=300, modules=["veth", "bridge", "8021q"], memory=2048)
    assert "[  PASSED  ] 7 test(s)." in done.stdout + done.stderr, done.stdout + done.stderr
    assert done.stdout.count("IPv6, VLAN") == 4, done.stdout


def test_vlan__all_reduce_over_vfio_and_with_the_kernels_udp(guest):
    """NICs that sum UDP over IPv6 behind a tag: virtio and e1000e, both ours; then the kernel has the virtio NIC."""
    virtio, e1000e = guest.nic(0), guest.nic(1)
    done = guest.python(guest.HERE / "dpdk_job.py", f"ipv6.100/dpdk:{virtio},dpdk:{e1000e}",
                        f"ipv6.100/dpdk:{e1000e},udp:{virtio}", timeout=240, iommu=True, memory=1536,
                        modules=[*VFIO, "virtio_net", "8021q"], nics=["virtio-net-pci", "e1000e"])
    print(done.stdout)
    said = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert len(said) == 4, done.stdout
    for line, name in zip(said, ["net_virtio", "net_e1000_em", "net_e1000_em", "fd00:9::2"], strict=True):
        assert name in line, done.stdout
    for line in said[:3]:
        assert "/64 vlan 100" in line, line
