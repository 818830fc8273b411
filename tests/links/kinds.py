"""The links under test: one row each. A new link, or another device of one, is one more row here.

A row says on what sizes of job it runs, what each rank gives to init(), which ranks' eth0 the kernel has no address on
because the link's own driver holds it, whether frames pass the laboratory's switch (else no fault can be put in their
way), and what it `needs` of the machine: a sentence with the remedy where that is absent, which skips, counted.
"""
import errno
import functools
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import netlab_host
import tailbound.config
import tailbound.links_cmd

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
def dpdk_plugin() -> str:
    """Without DPDK here there is nothing to test; with it, a plugin that is missing or broken is a failure."""
    there, sentence = tailbound.links_cmd.about(tailbound.config.Config(), "dpdk")
    if there:
        return ""
    if subprocess.run(["pkg-config", "--exists", "libdpdk"]).returncode == 0:
        raise AssertionError(f"DPDK is installed, but link dpdk cannot be had (make plugins): {sentence}")
    return sentence


@functools.cache
def xdp_sockets() -> str:
    try:
        socket.socket(44, socket.SOCK_RAW).close()  # AF_XDP
    except OSError as error:
        return f"AF_XDP needs a kernel with CONFIG_XDP_SOCKETS: {errno.errorcode.get(error.errno)}"
    return ""


def dpdk_over_xdp() -> str:
    return dpdk_plugin() or xdp_sockets()


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

    ip6 = ip4


@functools.cache
def laboratory() -> str:
    return netlab_host.unavailable()


KINDS = (
    Kind("udp", udp),
    Kind("dpdk-af_packet", dpdk("af_packet:eth0"), dpdk_plugin),
    Kind("dpdk-af_xdp", dpdk("af_xdp:eth0"), dpdk_over_xdp),
    Kind("dpdk-memif", dpdk("memif:{folder}/memif.sock"), dpdk_plugin, sizes=(2,), switched=False),
    Kind("mixed", by_turns(udp, dpdk("af_packet:eth0")), dpdk_plugin),
)
