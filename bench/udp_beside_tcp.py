"""Real UDP through one bottleneck beside TCP, with loss and a straggler. Needs root: a namespace per rank (netlab.py).

    python bench/udp_beside_tcp.py [--quick] [--rate 400M] [--queue 128k]

Four ranks; the switch's port towards rank 1 is the bottleneck (token bucket, drop-tail). TCP, where there is any, goes
from rank 2's namespace to rank 1's through the same port, as fast as the kernel's congestion control lets it.

all-reduce   of 400 KB with a deadline of 0.25 s, every 20 ms: p50 and p99 of the time of the slowest rank, the share
             received on average, data frames repaired of those sent. Loss is of UDP datagrams (a filter in the switch)
             of every type, from every rank. The straggler, rank 3, issues 15 ms late every second round.
stream       rank 0 sends to rank 1 without a pause, beside one TCP flow: Mb/s of both, and Jain's index of the two;
             with rate control, and without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import netlab
import netlab_host
from sim_tools import percentile, table

RANKS, PORT = 4, 29666
TRANSPORT = Path(__file__).resolve().parent.parent / "transport"
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
SINK = """
import socket, sys, time
s = socket.create_server(("", int(sys.argv[1])))
c, _ = s.accept()
box, got, since = bytearray(1 << 18), 0, time.monotonic()
print("ready", flush=True)
while n := c.recv_into(box):
    got += n
    if time.monotonic() - since > 0.1:
        print(time.monotonic(), got, flush=True)
        since = time.monotonic()
"""
SOURCE = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
data = bytes(1 << 16)
try:
    while True:
        s.sendall(data)
except OSError:
    pass
"""
WORK = """
import json, sys, time
import numpy as np
import tailbound as tb
spec = json.loads(sys.argv[1])
with tb.init(min_received=0.0) as comm:
    rank, said = comm.rank, []
    comm.barrier()
    print("ready", flush=True)
    sys.stdin.readline()
    comm.barrier()
    end, turn, got, marks = time.monotonic() + spec["seconds"], 0, 0, []
    if spec["kind"] == "stream":
        x = np.ones(50_000, np.float32)
        while rank < 2:
            done = time.monotonic() > end
            if rank == 0:
                comm.send(np.full(50_000, done, np.float32), 1, deadline=float("inf"))
            else:
                comm.recv(x, 0, deadline=float("inf"))
                got += x.nbytes
                marks.append((time.monotonic(), got))
                done = x[0] == 1
            if done:
                break
    else:
        base = time.monotonic()
        while turn < spec["rounds"]:
            late = 0.015 if spec["straggler"] and rank == 3 and turn % 2 else 0.0
            time.sleep(max(0.0, base + 0.02 * turn + late - time.monotonic()))
            r = comm.all_reduce(np.ones(100_000, np.float32), key="w", deadline=0.25)
            said.append((r.round, r.elapsed, r.received))
            turn = r.round + 1
    comm.barrier()
    peers = comm.stats()["peers"]
    peers = list(peers.values()) if isinstance(peers, dict) else peers
    total = {name: sum(p[name] for p in peers if p) for name in ("data_sent", "repaired")}
    print(json.dumps({"rounds": said, "marks": marks, "cuts": comm.stats()["rate_cuts"], **total}), flush=True)
"""


class Traffic:
    """One TCP flow from rank 2 to rank 1; nothing when off."""

    def __init__(self, lab: netlab.Lab, on: bool) -> None:
        self.on, self.ends = on, []
        if on:
            python = [sys.executable, "-c"]
            sink = lab.run(1, [*python, SINK, str(PORT)], stdout=subprocess.PIPE, text=True)
            time.sleep(0.3)
            source = lab.run(2, [*python, SOURCE, lab.ip4(1), str(PORT)], stderr=subprocess.DEVNULL)
            self.ends = [source, sink]
            assert sink.stdout.readline().strip() == "ready"

    def stop(self) -> list[tuple[float, float]]:
        """(time, bytes received so far), ten a second."""
        if not self.on:
            return []
        for process in self.ends:
            process.kill()
        text = self.ends[1].stdout.read()
        return [tuple(map(float, line.split())) for line in text.splitlines() if line.count(" ") == 1]


def job(lab: netlab.Lab, spec: dict[str, Any], options: dict[str, str]) -> list[dict[str, Any]]:
    env = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": lab.ip4(0), "PYTHONPATH": str(TRANSPORT), "TAILBOUND_LINK": "udp",
           "TAILBOUND_LOG": "error", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "LOCAL_RANK": "0",
           **options}  # fmt: skip
    argv = [sys.executable, "-c", WORK, json.dumps(spec)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [lab.run(rank, argv, env={**env, "RANK": str(rank)}, **pipes) for rank in range(RANKS)]
    for process in ranks:
        assert process.stdout.readline().strip() == "ready"
    for process in ranks:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [json.loads(process.communicate(timeout=60 + spec["seconds"])[0].splitlines()[-1]) for process in ranks]
    assert all(process.returncode == 0 for process in ranks)
    return said


def speed(marks: list[tuple[float, float]], start: float, end: float) -> float:
    """Bits per second between two moments."""
    inside = [(t, n) for t, n in marks if start <= t <= end]
    return (inside[-1][1] - inside[0][1]) * 8 / (inside[-1][0] - inside[0][0]) if len(inside) > 1 else 0.0


def stream(rate: float, queue: int, loss: float, control: str, seconds: float) -> dict[str, Any]:
    with netlab.Lab(RANKS) as lab:
        lab.rate(1, rate, queue, "in")
        for rank in range(RANKS):
            lab.loss(rank, loss)
        tcp = Traffic(lab, True)
        ours = job(lab, {"kind": "stream", "seconds": seconds}, {"TAILBOUND_RATE_CONTROL": control})
        theirs = tcp.stop()
    marks = ours[1]["marks"]
    start, end = marks[0][0] + seconds / 4, marks[-1][0]  # both have found their share by then
    a, b = speed(marks, start, end), speed(theirs, start, end)
    return {
        "stream": f"rate control {control}",
        "loss %": f"{100 * loss:g}",
        "ours Mb/s": f"{a / 1e6:.0f}",
        "TCP Mb/s": f"{b / 1e6:.0f}",
        "Jain": f"{(a + b) ** 2 / (2 * (a * a + b * b)):.3f}",
        "repaired %": f"{100 * ours[0]['repaired'] / ours[0]['data_sent']:.1f}",
        "cuts": ours[1]["cuts"],
    }


def all_reduce(rate: float, queue: int, loss: float, straggler: bool, tcp: bool, rounds: int) -> dict[str, Any]:
    spec = {"kind": "all_reduce", "straggler": straggler, "rounds": rounds, "seconds": 0.3 * rounds}
    with netlab.Lab(RANKS) as lab:
        lab.rate(1, rate, queue, "in")
        for rank in range(RANKS):
            lab.loss(rank, loss)
        traffic = Traffic(lab, tcp)
        said = job(lab, spec, {})
        marks = traffic.stop()
    slowest: dict[int, float] = {}
    for rank in said:
        for number, elapsed, _ in rank["rounds"]:
            slowest[number] = max(slowest.get(number, 0.0), elapsed)
    took, got = list(slowest.values()), [received for rank in said for _, _, received in rank["rounds"]]
    sent, again = (sum(rank[name] for rank in said) for name in ("data_sent", "repaired"))
    return {
        "loss %": f"{100 * loss:g}",
        "straggler": "yes" if straggler else "no",
        "TCP Mb/s": f"{speed(marks, marks[0][0], marks[-1][0]) / 1e6:.0f}" if marks else "-",
        "p50 ms": f"{1e3 * statistics.median(took):.1f}",
        "p99 ms": f"{1e3 * percentile(took, 0.99):.1f}",
        "received %": f"{100 * statistics.mean(got):.3f}",
        "repaired %": f"{100 * again / sent:.2f}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one row of each, a second or two")
    parser.add_argument("--rate", default="400M", help="of the bottleneck, bit/s (default: %(default)s)")
    parser.add_argument("--queue", default="128k", help="bytes in front of it (default: %(default)s)")
    args = parser.parse_args()
    reason = netlab_host.unavailable()
    if reason:
        print(reason)
        return 3
    rate, queue = float(args.rate[:-1]) * UNITS[args.rate[-1]], int(args.queue[:-1]) * 1024
    print(f"bottleneck {args.rate}b/s, queue {args.queue}; all-reduce of 400 KB by 0.25 s, 4 ranks")
    losses, rounds, seconds = ([0.01], 10, 1.0) if args.quick else ([0.0, 0.01, 0.05], 100, 4.0)
    switches = [(True, True)] if args.quick else [(s, t) for s in (False, True) for t in (False, True)]
    table([all_reduce(rate, queue, loss, s, t, rounds) for loss in losses for s, t in switches])
    print()
    table([stream(rate, queue, loss, control, seconds) for control in ("auto", "off") for loss in losses])
    return 0


if __name__ == "__main__":
    sys.exit(main())
