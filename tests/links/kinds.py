"""The links under test: one row each. A new link, or another device of one, is one more row here.

A row says on what sizes of job it runs, what each rank gives to init(), which ranks' eth0 the kernel has no address on
because the link's own driver holds it, whether frames pass the laboratory's switch (else no fault can be put in their
way), and what it `needs` of the machine: a sentence with the remedy where that is absent, which skips, counted.
"""
import errno
import functools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import netlab_host

Options = Callable[[Any, int, str], dict[str, Any]]  # of (laboratory, rank, folder of this job)


def udp(lab, rank, folder):
    return {"link": "udp", "interface": "eth0"}


def dpdk(device: str) -> Options:
    def options(lab, rank, folder):
        return {"link": "dpdk", "device": device.format(folder=folder), "ip": f"{lab.ip4(rank)}/16",
                "hugepages": "off", "poll": "adaptive"}

    return options


def by_turns(*each: Options) -> Options:
    """One link on rank 0, the next on rank 1, and so on, from the first again."""
    return lambda lab, rank, folder: each[rank % len(each)](lab, rank, folder)


def nothing() -> str:
    return ""


@functools.cache
def xdp_sockets() -> str:
    try:
        socket.socket(44, socket.SOCK_RAW).close()  # AF_XDP
    except OSError as error:
        return f"AF_XDP needs a kernel with CONFIG_XDP_SOCKETS: {errno.errorcode.get(error.errno)}"
    return ""


@dataclass(frozen=True)
class Kind:
    name: str
    options: Options
    needs: Callable[[], str] = nothing
    sizes: tuple[int, ...] = (2, 4)
    switched: bool = True

    def link(self, rank: int) -> str:
        return self.options(_Addresses, rank, "")["link"]

    def bare(self, n: int) -> list[int]:
        return [rank for rank in range(n) if self.link(rank) != "udp"]

    def why_not(self) -> str:
        return laboratory() or self.needs()


class _Addresses:
    """Stands for the laboratory where only the name of a link is asked for."""

    @staticmethod
    def ip4(rank: int) -> str:
        return ""


@functools.cache
def laboratory() -> str:
    return netlab_host.unavailable()


KINDS = (
    Kind("udp", udp),
)
