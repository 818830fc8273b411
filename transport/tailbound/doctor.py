"""`tailbound doctor`: what on this host costs speed or stands in the way, each finding with the one line that mends it.

ok = as it should be; warn = works, but slower or with loss; fail = does not work; note = matters only for links or
interfaces that are not in use here.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from . import host, rdma

WANTED_BUFFER = 8 << 20  # bytes: the default of the option `buffer`
COMMON_MTU = 1500


class Finding(NamedTuple):
    """One line of the report."""

    level: str  # ok | warn | fail | note
    what: str
    remedy: str = ""


def socket_buffers(ranks: int) -> Iterator[Finding]:
    """Credits derive from the real socket buffers: small ones mean many small grants."""
    forced = host.may_force_buffers()
    for name in ("rmem_max", "wmem_max"):
        have = host.read_int(f"/proc/sys/net/core/{name}")
        if have is None:
            yield Finding("note", f"net.core.{name} cannot be read here")
        elif have >= WANTED_BUFFER:
            yield Finding("ok", f"net.core.{name} = {have} bytes")
        elif forced:
            yield Finding("ok", f"net.core.{name} = {have} bytes, which does not bind this process (CAP_NET_ADMIN)")
        else:
            yield Finding(
                "warn",
                f"net.core.{name} = {have} bytes: the kernel cuts socket buffers to that, {WANTED_BUFFER} are wanted",
                f"sudo sysctl -w net.core.{name}={WANTED_BUFFER}",
            )


def offloads(ranks: int) -> Iterator[Finding]:
    """One system call for many datagrams. Without any family there is no socket to begin with."""
    absent: list[str] = []
    for family, version in ((socket.AF_INET, "IPv4"), (socket.AF_INET6, "IPv6")):
        for option, value, name in ((host.UDP_SEGMENT, 1400, "GSO (sending)"), (host.UDP_GRO, 1, "GRO (receiving)")):
            taken = host.udp_option(option, value, family)
            if taken is None:
                absent.append(version)
                yield Finding("note", f"no {version} on this host")
                break
            if taken:
                yield Finding("ok", f"UDP {name} over {version}")
            else:
                yield Finding("warn", f"no UDP {name} over {version}: one datagram a call", "use Linux 5.0 or newer")
    if len(absent) == 2:
        remedy = "let this process open sockets (container or seccomp settings)"
        yield Finding("fail", "no UDP socket of either family can be opened: no rank can run here", remedy)


def mtu(ranks: int) -> Iterator[Finding]:
    """Elements per packet are fixed by the smallest MTU of the job; only the interfaces in use count."""
    used = host.default_interfaces()
    outside = [interface for interface in host.interfaces() if not interface.loopback]
    if not outside:
        yield Finding("note", "no interface but loopback is up: ranks on this host only")
    for interface in outside:
        what = f"MTU of {interface.name} ({', '.join(interface.addresses) or 'no address'}) = {interface.mtu}"
        if interface.mtu < COMMON_MTU and interface.name not in used:
            yield Finding("note", f"{what}: small, but no default route leads there (matters if a job uses it)")
        elif interface.mtu < COMMON_MTU:
            remedy = f"sudo ip link set {interface.name} mtu {COMMON_MTU}   (if the path carries it)"
            yield Finding("warn", f"{what}: every packet of the job is that small", remedy)
        else:
            yield Finding("ok", what)


def processors(ranks: int) -> Iterator[Finding]:
    """Each rank has the caller's thread and a progress thread."""
    cores, quota = host.cores(), host.cpu_quota()
    what = f"{cores} core{'s' if cores != 1 else ''}" + (
        f", of which the control group grants {quota:g}" if quota else ""
    )
    usable = min(cores, quota) if quota else cores
    if ranks and ranks > usable:
        remedy = f"start at most {max(1, int(usable))} ranks on this host, or expect later arrivals"
        yield Finding("warn", f"{what}, for {ranks} ranks: they wait for each other's turn", remedy)
    elif quota:
        yield Finding(
            "warn", f"{what}: a throttled rank is late for up to a period", "lift the CPU limit of the container"
        )
    else:
        yield Finding("ok", what + (f" for {ranks} ranks" if ranks else ""))


def locked_memory(ranks: int) -> Iterator[Finding]:
    """Only links that give memory to hardware lock it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield Finding("ok", "memlock unlimited")
    else:
        remedy = "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/memlock.conf   (then log in again)"
        yield Finding("note", f"memlock = {soft >> 10} KiB (matters for RDMA and DPDK, not for udp)", remedy)


def huge_pages(ranks: int) -> Iterator[Finding]:
    """Only DPDK needs them."""
    sizes = sorted(Path("/sys/kernel/mm/hugepages").glob("hugepages-*kB"))
    free = {path.name[len("hugepages-") :]: host.read_int(str(path / "free_hugepages")) or 0 for path in sizes}
    if any(free.values()):
        yield Finding("ok", "free huge pages: " + ", ".join(f"{count} of {size}" for size, count in free.items()))
    elif not free:
        yield Finding("note", "this kernel has no huge pages (matters for DPDK only)")
    else:
        remedy = "echo 512 | sudo tee /proc/sys/vm/nr_hugepages"
        yield Finding("note", "no free huge pages (matters for DPDK only)", remedy)


def devices(ranks: int) -> Iterator[Finding]:
    """What kernel-bypass links could use."""
    groups = [entry.name for entry in Path("/dev/vfio").glob("[0-9]*")] if Path("/dev/vfio").is_dir() else []
    if groups:
        yield Finding("ok", f"vfio groups: {', '.join(sorted(groups))}")
    elif Path("/dev/vfio/vfio").exists():
        yield Finding(
            "note", "vfio is there, but no device is bound to it (matters for DPDK only)", "dpdk-devbind.py -s"
        )
    else:
        yield Finding("note", "no vfio (matters for DPDK only)", "sudo modprobe vfio-pci")
    ports = rdma.ports()
    if not ports:
        yield Finding("note", "no RDMA device")
    elif not list(Path("/dev/infiniband").glob("uverbs*")):
        yield Finding(
            "note",
            "RDMA devices, but no /dev/infiniband/uverbs* (matters for verbs only)",
            "sudo modprobe ib_uverbs   (a container: --device=/dev/infiniband)",
        )
    for port in ports:
        yield _rdma_port(port)


def _rdma_port(port: rdma.Port) -> Finding:
    interface, matters = port.interface or "IFACE", "(matters for verbs only)"
    if port.state != "ACTIVE":
        what = f"RDMA port {port.spec} is {port.state} {matters}"
        return Finding(
            "note", what, f"sudo ip link set up dev {interface}   (Ethernet; InfiniBand needs a subnet manager)"
        )
    chosen = port.choice()
    if not chosen:
        what = f"RDMA port {port.spec} has no RoCE v2 address {matters}"
        return Finding("note", what, f"sudo ip addr add ADDRESS dev {interface}")
    return Finding("ok", f"RDMA port {port.spec} is up, {port.layer}, {port.rate}, {chosen.address}")


CHECKS: tuple[Callable[[int], Iterator[Finding]], ...] = (
    socket_buffers,
    offloads,
    mtu,
    processors,
    locked_memory,
    huge_pages,
    devices,
)


def findings(ranks: int = 0) -> list[Finding]:
    """Everything, in the order of CHECKS."""
    return [finding for check in CHECKS for finding in check(ranks)]


def main(ranks: int) -> int:
    """Prints the report. 1 when something does not work at all; what only costs speed is no failure."""
    found = findings(ranks)
    for finding in found:
        print(f"{finding.level:4}  {finding.what}")
        if finding.remedy:
            print(f"      -> {finding.remedy}")
    warnings, failures = (sum(finding.level == level for finding in found) for level in ("warn", "fail"))
    counts = [f"{n} {word}{'s' if n != 1 else ''}" for n, word in ((failures, "failure"), (warnings, "warning")) if n]
    print("\n" + (", ".join(counts) or "nothing to mend for the udp link"))
    return 1 if failures else 0
