"""RDMA ports as link=verbs names them, read from /sys/class/infiniband: neither library nor plugin is needed."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from .host import read

_GIDS_MOST = 256


@dataclass(frozen=True)
class Gid:
    """What a port is called by its peers: an address of its interface, or InfiniBand's own."""

    index: int
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    kind: str  # "RoCE v2", "IB/RoCE v1"
    interface: str


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device."""

    spec: str
    state: str  # "ACTIVE", "DOWN", ...
    layer: str  # "Ethernet", "InfiniBand"
    rate: str
    gids: tuple[Gid, ...] = field(default=())

    @property
    def interface(self) -> str:
        """The kernel's interface under it; "" where there is none."""
        return next((gid.interface for gid in self.gids if gid.interface), "")

    def choice(self, family: int = 0) -> Gid | None:
        """The GID that link=verbs takes when it is not told which, for a rendezvous of that IP family (0 = a name); the
        rule is that of native/plugins/verbs/device.c."""
        best, most = None, 0
        for gid in self.gids:
            worth = self._worth(gid, family)
            if worth > most:
                best, most = gid, worth
        return best

    def _worth(self, gid: Gid, family: int) -> int:
        if self.layer != "Ethernet":
            return int(gid.kind.startswith("IB"))
        if gid.kind != "RoCE v2":
            return 0
        if gid.address.version == 6 and gid.address.is_link_local:
            return 1
        return 3 if gid.address.version == (family or 4) else 2


def ports(root: str = "/") -> list[Port]:
    """Every port of every RDMA device, in the order of their names."""
    devices = Path(root) / "sys/class/infiniband"
    found = []
    for device in sorted(devices.iterdir()) if devices.is_dir() else []:
        folder = device / "ports"
        for port in sorted(folder.iterdir(), key=lambda p: int(p.name)) if folder.is_dir() else []:
            state = (read(str(port / "state")) or "?").rpartition(": ")[2]
            layer, rate = read(str(port / "link_layer")) or "?", read(str(port / "rate")) or "?"
            found.append(Port(f"{device.name}:{port.name}", state, layer, rate, tuple(_gids(port))))
    return found


def _gids(port: Path) -> list[Gid]:
    """Those that can be read: of an empty one the type cannot."""
    found = []
    for index in range(_GIDS_MOST):
        raw = read(str(port / "gids" / str(index)))
        if not raw:
            break
        address = ipaddress.IPv6Address(raw)
        if not int(address) or not (kind := read(str(port / "gid_attrs/types" / str(index)))):
            continue
        interface = read(str(port / "gid_attrs/ndevs" / str(index))) or ""
        found.append(Gid(index, address.ipv4_mapped or address, kind, interface))
    return found
