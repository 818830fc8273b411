"""`tailbound links`: which links can be had here, the interfaces and devices they could use, and what auto takes."""

from __future__ import annotations

import ipaddress

from . import host, rdma
from .config import Config
from .core import ffi, lib, text

PLUGINS = ("dpdk", "verbs")
"""Links that live in a shared object of their own; `tailbound build-plugin NAME` makes it."""


def about(config: Config, name: str) -> tuple[bool, str]:
    """Whether this process can have the link of that name, and the core's sentence about it. Loads its plugin."""
    out = ffi.new("char[2000]")
    return lib.tb_link_about(config.handle, name.encode(), out, 2000) == 0, text(out)


def links(config: Config) -> list[tuple[str, str, str]]:
    """Rows of name, "yes" or "no", and why."""
    found = [(name, *about(config, name)) for name in ("udp", *PLUGINS)]
    rows = [(name, "yes" if there else "no", sentence) for name, there, sentence in found]
    return [*rows, ("sim", "yes", "a simulated network in one process: tailbound.simulate(n)")]


def main() -> int:
    """Prints it."""
    config = Config()
    print(f"tailbound {text(lib.tb_version())}\n\nlinks")
    for name, there, sentence in links(config):
        print(f"  {name:5} {there:4} {sentence}")
    asked = config.row("link")
    print(f"\nlink = {asked.value} [{asked.source}]: {'udp' if asked.value == 'auto' else asked.value} will be used")
    chosen = config.row("interface")
    print(f"interface = {chosen.value or '(the one that leads to the rendezvous)'} [{chosen.source}]")
    print("\ninterfaces that are up")
    for interface in host.interfaces():
        addresses = ", ".join(interface.addresses) or "no address"
        print(f"  {interface.name:12} MTU {interface.mtu:6} {addresses}{' loopback' if interface.loopback else ''}")
    _devices()
    _rdma(config)
    return 0


def _devices() -> None:
    devices = host.network_devices()
    print("\nnetwork devices that link=dpdk could take (device=...)" + ("" if devices else ": none"))
    for device in devices:
        where = f"node {device.node}" if device.node >= 0 else "no NUMA node"
        mtu = f"MTU {device.mtu}" if device.mtu else "no MTU here"
        print(f"  {device.spec:22} driver {device.driver:14} {device.mac or 'MAC not known':17} {mtu:11} {where}")
        if device.remedy:
            print(f"  {'':22} {device.remedy}")


def _family(address: str) -> int:
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0


def _rdma(config: Config) -> None:
    ports = rdma.ports()
    print("\nRDMA ports that link=verbs could take (device=...)" + ("" if ports else ": none"))
    family = _family(config.row("master_addr").value)
    for port in ports:
        chosen = port.choice(family)
        gids = [
            f"{gid.address}{' (taken unless `ip` names another)' if gid is chosen else ''}"
            for gid in port.gids
            if gid is chosen or gid.kind == "RoCE v2" or port.layer != "Ethernet"
        ]
        print(
            f"  {port.spec:12} {port.state:7} {port.layer:10} {port.rate:20} {port.interface:10} "
            f"{', '.join(gids) or 'no address that could be taken'}"
        )
