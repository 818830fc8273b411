"""`tailbound links`: the links of this build, the interfaces they could use, and what link=auto would take."""

from __future__ import annotations

from . import host
from .config import Config
from .core import lib, text

LINKS = (
    ("udp", "kernel UDP, IPv4 and IPv6, no privileges; what link=auto takes"),
    ("sim", "a simulated network in one process: tailbound.simulate(n)"),
)


def main() -> int:
    """Prints it."""
    config = Config()
    print(f"tailbound {text(lib.tb_version())}\n\nlinks")
    for name, what in LINKS:
        print(f"  {name:6} {what}")
    asked = config.row("link")
    print(f"\nlink = {asked.value} [{asked.source}]: {'udp' if asked.value == 'auto' else asked.value} will be used")
    chosen = config.row("interface")
    print(f"interface = {chosen.value or '(the one that leads to the rendezvous)'} [{chosen.source}]")
    print("\ninterfaces that are up")
    for interface in host.interfaces():
        addresses = ", ".join(interface.addresses) or "no address"
        print(f"  {interface.name:12} MTU {interface.mtu:6} {addresses}{' loopback' if interface.loopback else ''}")
    return 0
