#!/usr/bin/env python3
"""Two ranks over the same veth by dpdk (af_packet) and by udp, and over a memif: ping-pong and all-reduce. Needs root.

    python bench/dpdk_all_reduce.py [--quick] [--turns 5] [--torch PYTHON]

Two namespaces, eth0 of each a port of one bridge; udp and Gloo run on the addresses that eth0 has for as long as they
do. A memif carries IP packets of 9,000 bytes, the veth --mtu (of udp up to 64 of them at once). Each turn runs
everything once, in an order that rotates; a figure is the median over turns (ping-pong: the turn's median of half a
round trip; all-reduce: the mean of the turn's operations, exact, so nothing is missing). Rank 0 is pinned to core 0,
rank 1 to core 1, but for `free`, where the scheduler chooses. CPU is user + system time of both processes, start
included, in cores. --torch: a Python that has torch, for Gloo beside them (.venv/bin/pip install torch).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import netlab_host
from common_dpdk import PROGRAMS, Failed, Rig, finish, load, needs, stop_with
from sim_tools import spread, table

PORT = [29800]
WAYS = [("af_packet", "adaptive"), ("af_packet", "busy"), ("memif", "adaptive"), ("memif", "busy"), ("udp", "-")]
GLOO = """
import json, statistics, sys, time
import torch, torch.distributed as dist
spec = json.loads(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=spec["at"], rank=spec["rank"], world_size=2)
def timed(tensor, n):
    took = []
    for _ in range(n):
        tensor.fill_(1)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(tensor)
        took.append(time.perf_counter() - begin)
    assert tensor[0] == 2
    return took
def ping(n):
    byte, took = torch.zeros(2, dtype=torch.uint8), []
    for i in range(n):
        begin = time.perf_counter()
        for sender in (0, 1):
            (dist.send if sender == spec["rank"] else dist.recv)(byte, 1 - spec["rank"])
        took.append((time.perf_counter() - begin) / 2)
    return took
timed(torch.ones(spec["bytes"] // 4), 2)
all_reduce = statistics.mean(timed(torch.ones(spec["bytes"] // 4), spec["iters"]))
ping(20)
print(json.dumps({"all_reduce": all_reduce, "ping": statistics.median(ping(spec["pings"]))}), flush=True)
dist.destroy_process_group()
"""


class Addresses:
    """eth0's addresses while the kernel's stack uses it."""

    def __init__(self, rig: Rig, wanted: bool) -> None:
        self.rig, self.wanted = rig, wanted

    def change(self, what: str) -> None:
        for rank in (0, 1) if self.wanted else ():
            address = f"{self.rig.lab.ip4(rank)}/16"
            netlab_host.ip("-n", self.rig.lab.namespace(rank), "addr", what, address, "dev", "eth0")

    def __enter__(self) -> None:
        self.change("add")

    def __exit__(self, *_: object) -> None:
        self.change("del")


def cores(before: Any, since: float) -> float:
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime) / (time.monotonic() - since)


def both(rig: Rig, kind: str, poll: str, pinned: bool, argvs: list[list[str]]) -> float:
    """Runs one program in each namespace; the cores that they used."""
    socket, before, since = rig.socket(), resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    PORT[0] += 1
    with Addresses(rig, kind in ("udp", "gloo")):
        ends = []
        for rank, argv in enumerate(argvs):
            variables = rig.variables("udp" if kind == "gloo" else kind, rank, 0, socket, PORT[0])
            if poll != "-":
                variables["TAILBOUND_POLL"] = poll
            argv = [word.replace("PORT", str(PORT[0])) for word in argv]
            ends.append(rig.start(rank, rank if pinned else None, argv, env=variables))
        finish(ends, 200)
    return cores(before, since)


def results(path: str) -> dict[str, Any]:
    return json.loads(Path(path).read_text())["results"][0]


def all_reduce(rig: Rig, kind: str, poll: str, pinned: bool, size: str, iters: int) -> dict[str, float]:
    with tempfile.NamedTemporaryFile(dir=rig.folder) as out:
        argv = [str(PROGRAMS / "all_reduce_perf"), "-b", size, "-e", size, "-n", str(iters), "-w", "3", "-c", "0", "-a",
                "3", "--deadline", "inf"]  # fmt: skip
        used = both(rig, kind, poll, pinned, [[*argv, "-J", out.name], argv])
        row = results(out.name)
    return {"ms": row["out_of_place"]["time"] / 1e3, "cores": used}


def ping_pong(rig: Rig, kind: str, poll: str, pinned: bool, iters: int) -> dict[str, float]:
    with tempfile.NamedTemporaryFile(dir=rig.folder) as out:
        argv = [str(PROGRAMS / "pingpong_lat"), "-p", "PORT", "-s", "64", "-n", str(iters), "--out_json_file", out.name]
        both(rig, kind, poll, pinned, [argv, [*argv, rig.lab.management(0)]])
        row = results(out.name)
    return {"us": row["t_typical_us"], "p99": row["percentile_99_us"]}


def gloo(rig: Rig, python: str, size: int, iters: int, pings: int) -> dict[str, float]:
    spec = {"at": f"tcp://{rig.lab.ip4(0)}:PORT", "bytes": size, "iters": iters, "pings": pings}
    specs = [json.dumps({**spec, "rank": rank}) for rank in (0, 1)]
    argvs = [["env", "GLOO_SOCKET_IFNAME=eth0", python, "-c", GLOO, one] for one in specs]
    socket = rig.socket()
    PORT[0] += 1
    with Addresses(rig, True):
        ends = []
        for rank, argv in enumerate(argvs):
            argv = [word.replace("PORT", str(PORT[0])) for word in argv]
            ends.append(rig.start(rank, rank, argv, env=rig.variables("udp", rank, 0, socket, PORT[0])))
        said = [json.loads(text.splitlines()[-1]) for text in finish(ends, 300)]
    return {"ms": 1e3 * max(one["all_reduce"] for one in said), "us": 1e6 * max(one["ping"] for one in said)}


def has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def turn(rig: Rig, way: tuple[str, str, bool], args: argparse.Namespace) -> dict[str, float]:
    kind, poll, pinned = way
    if kind == "gloo":
        return gloo(rig, args.torch, args.mib << 20, args.iters, args.pings)
    took = all_reduce(rig, kind, poll, pinned, f"{args.mib}M", args.iters)
    return {**took, **ping_pong(rig, kind, poll, pinned, args.pings)}


def row(way: tuple[str, str, bool], turns: list[dict[str, float]], udp: list[dict[str, float]]) -> dict[str, str]:
    def column(name: str, digits: int) -> str:
        return spread([one[name] for one in turns], f"{{:.{digits}f}}".format) if name in turns[0] else "-"

    return {
        "link": way[0],
        "poll": way[1],
        "cores": "one each" if way[2] else "free",
        "all-reduce ms": column("ms", 1),
        "of udp's": spread([a["ms"] / b["ms"] for a, b in zip(turns, udp, strict=True)], "{:.2f}".format),
        "CPU": column("cores", 2),
        "64 B, us": column("us", 1),
        "99 %": column("p99", 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn of 1 MiB")
    parser.add_argument("--turns", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--mib", type=int, default=25, help="size of the all-reduce, default: %(default)s")
    parser.add_argument("--iters", type=int, default=15, help="all-reduces a turn, default: %(default)s")
    parser.add_argument("--pings", type=int, default=2000, help="round trips a turn, default: %(default)s")
    parser.add_argument("--mtu", type=int, default=1500, help="of the veth, default: %(default)s")
    parser.add_argument("--torch", metavar="PYTHON", help="one that has torch: Gloo as well")
    args = parser.parse_args()
    if reason := needs(testpmd=False):
        return stop_with(reason)
    if args.torch and not has_torch(args.torch):
        return stop_with(f"{args.torch} has no torch: {args.torch} -m pip install torch")
    if args.quick:
        args.turns, args.mib, args.iters, args.pings = 1, 1, 3, 50
    ways = [(kind, poll, True) for kind, poll in WAYS] + [(kind, poll, False) for kind, poll in WAYS if poll != "busy"]
    ways += [("gloo", "-", True)] if args.torch else []
    found: dict[tuple[str, str, bool], list[dict[str, float]]] = {way: [] for way in ways}
    print(f"# load {load()} at the start; {args.turns} turns; {args.mib} MiB; veth {args.mtu}; median (least..most)")
    with tempfile.TemporaryDirectory() as folder, Rig(folder, args.mtu) as rig:
        for number in range(args.turns):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                try:
                    found[way].append(turn(rig, way, args))
                except Failed as error:
                    raise Failed(f"{way}: {error}") from error
    table([row(way, turns, found["udp", "-", way[2]]) for way, turns in found.items()])
    print(f"# load {load()} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
