"""What this host has, read from /proc and /sys: interfaces, limits, devices. Nothing here changes anything."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

SOL_UDP, UDP_SEGMENT, UDP_GRO, SO_RCVBUFFORCE = 17, 103, 104, 33
_SIOCGIFADDR = 0x8915
FOR_USERS = ("vfio-pci", "igb_uio", "uio_pci_generic", "uio_hv_generic")
"""Drivers that hand a device to a program."""
SHARED = ("mlx4_core", "mlx5_core", "mana")
"""Drivers through which a program and the kernel use a device together."""


@dataclass(frozen=True)
class Interface:
    """A network interface that is up. Addresses without prefix length; link-local IPv6 with its scope."""

    name: str
    mtu: int
    addresses: tuple[str, ...]
    loopback: bool


@dataclass(frozen=True)
class Device:
    """A network device as link=dpdk names it: a PCI address, or an interface of the kernel under a virtual device."""

    spec: str
    driver: str
    mac: str | None
    mtu: int | None
    node: int

    @property
    def remedy(self) -> str:
        """What has to be done first, if link=dpdk cannot have it as it is."""
        if self.spec.startswith("af_packet:"):
            return ""
        if self.driver in FOR_USERS or self.driver in SHARED:
            return ""
        bound = "bound to no driver" if self.driver == "none" else f"bound to {self.driver}, the kernel's"
        return (
            f"{bound}: modprobe vfio-pci && dpdk-devbind.py -b vfio-pci {self.spec} "
            "(its interface leaves the kernel: never the one you are logged in by)"
        )


def read(path: str) -> str | None:
    """A small file's content without its end of line; None when it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def read_int(path: str) -> int | None:
    """A file with one number."""
    content = read(path)
    try:
        return None if content is None else int(content.split()[0], 0)
    except (ValueError, IndexError):
        return None


def interfaces() -> list[Interface]:
    """The interfaces that are up, in the kernel's order."""
    found = []
    ipv6 = _ipv6_addresses()
    for _, name in socket.if_nameindex():
        flags = read_int(f"/sys/class/net/{name}/flags") or 0
        if not flags & 1:  # IFF_UP
            continue
        addresses = [address for address in (_ipv4_address(name),) if address] + ipv6.get(name, [])
        mtu = read_int(f"/sys/class/net/{name}/mtu") or 0
        found.append(Interface(name, mtu, tuple(addresses), bool(flags & 8)))
    return found


def _ipv4_address(name: str) -> str | None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _ipv6_addresses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (read("/proc/net/if_inet6") or "").splitlines():
        raw, _, _, _, _, name = line.split()
        address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw))
        scope = f"%{name}" if address.startswith("fe80:") else ""
        found.setdefault(name, []).append(address + scope)
    return found


def default_interfaces() -> set[str]:
    """Names of the interfaces that a default route leads to: what a job between hosts takes when told nothing."""
    found = set()
    for line in (read("/proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000" and fields[7] == "00000000":
            found.add(fields[0])
    for line in (read("/proc/net/ipv6_route") or "").splitlines():
        fields = line.split()
        if fields[0] == "0" * 32 and fields[1] == "00" and fields[9] != "lo":
            found.add(fields[9])
    return found


def udp_option(option: int, value: int, family: int = socket.AF_INET) -> bool | None:
    """Whether the kernel takes a UDP socket option; None when the family itself is not there."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.setsockopt(SOL_UDP, option, value)
            except OSError:
                return False
            return True
    except OSError:
        return None


def may_force_buffers() -> bool:
    """Whether this process gets socket buffers beyond net.core.rmem_max, as root does; the udp link asks for that."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 16)
            return True
    except OSError:
        return False


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_quota() -> float | None:
    """Cores' worth of time that the control group grants; None = no limit."""
    content = read("/sys/fs/cgroup/cpu.max")
    if content and not content.startswith("max"):
        quota, period = content.split()[:2]
        return int(quota) / int(period)
    quota_us, period_us = (
        read_int("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        read_int("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    )
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _link_name(path: Path) -> str:
    try:
        return path.readlink().name
    except OSError:
        return "none"


def _number(path: Path) -> int:
    found = read_int(str(path))
    return -1 if found is None else found


def network_devices() -> list[Device]:
    """PCI network devices, whoever drives them, and then the kernel's interfaces but loopback."""
    pci = Path("/sys/bus/pci/devices")
    found = []
    for device in sorted(pci.iterdir()) if pci.is_dir() else []:
        if (read_int(str(device / "class")) or 0) >> 16 != 2:  # network controllers
            continue
        nets = sorted([*device.glob("net/*"), *device.glob("virtio*/net/*")])
        mac = read(str(nets[0] / "address")) if nets else None
        mtu = read_int(str(nets[0] / "mtu")) if nets else None
        found.append(Device(device.name, _link_name(device / "driver"), mac, mtu, _number(device / "numa_node")))
    for interface in interfaces():
        if not interface.loopback:
            folder = Path("/sys/class/net") / interface.name
            driver = _link_name(folder / "device" / "driver")
            mac, node = read(str(folder / "address")), _number(folder / "device" / "numa_node")
            found.append(Device(f"af_packet:{interface.name}", driver, mac, interface.mtu, node))
    return found
