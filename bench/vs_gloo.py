#!/usr/bin/env python3
"""All-reduce of Tailbound against torch's Gloo, in one run: the same processes and buffers, blocks of calls in turn.

    bench/vs_gloo.py --sizes 64K,1M,25M,100M --ranks 2,4 [--json FILE]

Sum of float32, in place, on this host's loopback, default settings of each. Blocks come in pairs, one of each, in
random order (seeded by the size), so that whatever else the machine does hits both. A call's time is that of its
slowest rank; a row has the median and the 10th and 90th percentile. CPU is user + system time of all ranks' processes,
all threads, per GB (1e9 bytes) reduced. The line ends in the ratio Gloo's median / Tailbound's: above 1 Tailbound is
faster. A row in which anything was missing has a * after its recv%: its bandwidth is not that of a complete all-reduce.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import socket
import statistics
import sys
import time
from typing import Any

from vs_gloo_rank import Failure, Plan, worker

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
PATIENCE_S = 300.0  # for one size; a hang becomes an error
GRACE_S = 2.0  # after a failure, to hear what happened at the other ranks


def parse_size(text: str) -> int:
    """64K, 25M, 1048576; base 2, a multiple of the 4 bytes of a float32."""
    body, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not body.isdigit() or unit not in UNITS or int(body) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 64K, 25M or 1048576 (base 2)")
    size = int(body) * UNITS[unit]
    if size % 4:
        raise argparse.ArgumentTypeError(f"{text!r} is not a multiple of 4 bytes, a float32")
    return size


def name_of(size: int) -> str:
    for unit in "GMK":
        if size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}"
    return str(size)


def plan(size: int, seconds: float, ranks: int) -> Plan:
    """Calls so that a size takes about `seconds` at half a GB/s; never fewer than 6 blocks, which the medians need.

    A block starts from ones and multiplies by the number of ranks with each call: it ends while a float32 is exact.
    """
    calls = seconds / 2 / (2e-4 + size / 5e8)
    block = max(1, min(20, round(calls / 8), int(24 / math.log2(ranks))))
    return Plan(size, block, max(6, min(40, round(calls / block))))


def check_installed() -> None:
    """Both must be there before processes are started; neither is imported here."""
    if importlib.util.find_spec("torch") is None:
        sys.exit("vs_gloo: torch is not installed; pip install torch   (in a source tree: pip install '.[torch]')")
    if importlib.util.find_spec("tailbound") is None:
        sys.exit("vs_gloo: tailbound is not installed for this Python; run it with .venv/bin/python, or pip install .")


def free_ports() -> tuple[int, int]:
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = tuple(one.getsockname()[1] for one in sockets)
    for one in sockets:
        one.close()
    return ports[0], ports[1]


class World:
    """The workers of one number of ranks."""

    def __init__(self, ranks: int, plans: list[Plan]) -> None:
        context, ports = multiprocessing.get_context("spawn"), free_ports()  # neither library survives a fork
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            here, there = context.Pipe()
            process = context.Process(target=worker, args=(there, rank, ranks, ports, plans), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def answers(self) -> list[Any]:
        """The next message of every rank; a failed, dead or silent one ends the program."""
        found: dict[int, Any] = {}
        until, failed = time.monotonic() + PATIENCE_S, False
        while waiting := [pipe for rank, pipe in enumerate(self.pipes) if rank not in found]:
            ready = multiprocessing.connection.wait(waiting, max(0.0, until - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = self.pipes.index(pipe)
                found[rank] = self.message(rank)
                if isinstance(found[rank], Failure) and not failed:
                    failed, until = True, time.monotonic() + GRACE_S
        if failed or len(found) < len(self.pipes):
            self.stop()
            sys.exit(self.account(found))
        return [found[rank] for rank in range(len(self.pipes))]

    def message(self, rank: int) -> Any:
        try:
            return self.pipes[rank].recv()
        except (EOFError, OSError):
            self.processes[rank].join(5)
            return Failure(time.monotonic(), f"it ended with status {self.processes[rank].exitcode}\n")

    def account(self, found: dict[int, Any]) -> str:
        """What failed: the first one in full, as the others mostly failed because it went away."""
        failures = sorted((m.at, rank, m.text) for rank, m in found.items() if isinstance(m, Failure))
        silent = [rank for rank in range(len(self.pipes)) if rank not in found]
        lines = []
        if failures:
            _, rank, text = failures[0]
            lines.append(f"vs_gloo: rank {rank} of {len(self.pipes)} failed first: {text.rstrip()}")
        lines += [f"vs_gloo: then rank {rank}: {text.rstrip().splitlines()[-1]}" for _, rank, text in failures[1:]]
        if silent:
            after = f"within {GRACE_S:g} s of that" if failures else f"in {PATIENCE_S:g} s"
            lines.append(f"vs_gloo: no answer {after}: rank {', '.join(map(str, silent))}")
        return "\n".join(lines)

    def stop(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.terminate()

    def join(self) -> None:
        for process in self.processes:
            process.join(30)
        self.stop()


def figures(answers: list[dict[str, Any]], name: str, plan: Plan) -> dict[str, Any]:
    """One library's half of a row out of the blocks of all ranks."""
    ranks = [[ns for block in answer[name] for ns in block["ns"]] for answer in answers]
    shares = [[share for block in answer[name] for share in block["received"]] for answer in answers]
    slowest = [max(ns for ns in call if ns is not None) for call in zip(*ranks, strict=True) if any(call)]
    cuts = statistics.quantiles(slowest, n=10, method="inclusive")
    cpu = sum(block["cpu_ns"] for answer in answers for block in answer[name])
    median = statistics.median(slowest)
    return {
        "calls": len(slowest),
        "median_us": median / 1e3,
        "p10_us": cuts[0] / 1e3,
        "p90_us": cuts[-1] / 1e3,
        "algbw_GBps": plan.size / median,
        "cpu_s_per_GB": cpu / (plan.size * plan.block * plan.blocks),
        "received": min(statistics.fmean(share or 0.0 for share in row) for row in shares),
        "complete": all(share == 1.0 for row in shares for share in row),
        "times_us": [round(ns / 1e3, 3) for ns in slowest],
    }


def cells(half: dict[str, Any]) -> str:
    spread = f"{half['p10_us']:.0f}..{half['p90_us']:.0f}"
    return f"{half['median_us']:>10.0f} {spread:>17} {half['algbw_GBps']:>7.3f} {half['cpu_s_per_GB']:>7.2f}"


def print_row(ranks: int, size: int, gloo: dict[str, Any], ours: dict[str, Any], ratio: float) -> None:
    percent = 100.0 if ours["complete"] else min(99.999, math.floor(ours["received"] * 1e5) / 1e3)
    mark = " " if ours["complete"] else "*"
    left = f"{ranks:>6} {name_of(size):>7} {ours['calls']:>6}"
    print(f"{left} | {cells(gloo)} | {cells(ours)} {percent:>8.3f}{mark} | {ratio:.2f}x", flush=True)


def print_header(ranks: int, about: str) -> None:
    half = f"{'time':>10} {'p10..p90':>17} {'algbw':>7} {'CPU':>7}"
    units = f"{'(us)':>10} {'(us)':>17} {'(GB/s)':>7} {'(s/GB)':>7}"
    print(f"# {ranks} ranks, tailbound: {about}")
    print(f"# {'':19} | {'gloo':>44} | {'tailbound':>44} {'':9} |")
    print(f"# {'ranks':>4} {'size':>7} {'calls':>6} | {half} | {half} {'recv%':>8}  | ratio")
    print(f"# {'':>4} {'(B)':>7} {'':>6} | {units} | {units} {'(%)':>8}  |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="64K,1M,25M,100M", help="bytes, base 2; default %(default)s")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks; default %(default)s")
    parser.add_argument("--seconds", type=float, default=6.0, help="roughly, of each row; default %(default)s")
    parser.add_argument("--json", metavar="FILE", help="the same figures, and every call's time")
    options = parser.parse_args()
    try:
        sizes = [parse_size(text.strip()) for text in options.sizes.split(",")]
        numbers = [int(text) for text in options.ranks.split(",")]
        if min(numbers) < 2:
            raise ValueError("a comparison needs at least 2 ranks")
    except (argparse.ArgumentTypeError, ValueError) as error:
        parser.error(str(error))
    check_installed()
    rows: list[dict[str, Any]] = []
    load = os.getloadavg()
    print(f"# {os.cpu_count()} cores, load average at the start {load[0]:.2f} {load[1]:.2f} {load[2]:.2f}")
    for ranks in numbers:
        plans = [plan(size, options.seconds, ranks) for size in sizes]
        world = World(ranks, plans)
        print_header(ranks, world.answers()[0])
        for entry in plans:
            answers = world.answers()
            gloo, ours = (figures(answers, name, entry) for name in ("gloo", "tailbound"))
            ratio = gloo["median_us"] / ours["median_us"]
            print_row(ranks, entry.size, gloo, ours, ratio)
            rows.append({"ranks": ranks, "size": entry.size, "ratio": ratio, "gloo": gloo, "tailbound": ours})
        idle = statistics.fmean(world.answers())
        print(f"# idle, both libraries open: {idle:.3f} cores a rank; it is in the CPU of both", flush=True)
        world.join()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"test": "vs_gloo", "cores": os.cpu_count(), "load_average": load, "results": rows}, file)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
