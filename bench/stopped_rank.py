#!/usr/bin/env python3
"""How late do operations return while one of the ranks is stopped (SIGSTOP) and continued, again and again?

    make build && .venv/bin/python bench/stopped_rank.py [--cycles 12] [--stop 2] [--run 1] [--deadline 0.02]

Real UDP over loopback, default settings. Two runs: as a job is, where a stopped rank counts as absent after three
rounds and then costs nothing; and with absence switched off, where every operation of every stop meets its deadline.
Beside each, at the same time and so under the same load, a bare loop of processes that only sleep (timer_loop): what
the operating system alone is late. Overshoot = time from call to return, minus the deadline.
"""

import argparse
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMER_LOOP = ROOT / "build" / "bench" / "timer_loop"
BEAT = 50  # operations between two signs of life


def worker(args):
    import numpy as np
    import tailbound as tb

    x = np.empty(args.count, np.float32)
    log = []
    # 0: this measures time, so a round below the default threshold must not end the run; such rounds are counted
    with tb.init(link="udp", min_received=0) as comm:
        comm.barrier()
        while not select.select([sys.stdin], [], [], 0)[0]:
            x.fill(comm.rank)
            t0 = time.monotonic()
            r = comm.all_reduce(x, op="avg", key="step", deadline=args.deadline)
            t1 = time.monotonic()
            log.append((t0, t1, r.round, r.behind, r.received, r.deadline_hit))
            if len(log) % BEAT == 0:
                print(len(log), flush=True)
            time.sleep(args.gap)
    print(json.dumps(log), flush=True)


class Ranks:
    def __init__(self, args, env):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.done, self.log, self.processes, self.threads = [0] * args.ranks, [None] * args.ranks, [], []
        for rank in range(args.ranks):
            self.processes.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        __file__,
                        "--worker",
                        "--count",
                        str(args.count),
                        "--deadline",
                        str(args.deadline),
                        "--gap",
                        str(args.gap),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={
                        **os.environ,
                        "TAILBOUND_RANK": str(rank),
                        "TAILBOUND_SIZE": str(args.ranks),
                        "TAILBOUND_MASTER_ADDR": "127.0.0.1",
                        "TAILBOUND_MASTER_PORT": str(port),
                        "OMP_NUM_THREADS": "1",
                        "TAILBOUND_LOG": "error",
                        "PYTHONPATH": str(ROOT / "transport"),
                        **env,
                    },
                )
            )
            self.threads.append(threading.Thread(target=self._read, args=(rank,), daemon=True))
            self.threads[-1].start()

    def _read(self, rank):
        for line in self.processes[rank].stdout:
            if line.startswith("["):
                self.log[rank] = json.loads(line)
            else:
                self.done[rank] = int(line)

    def wait_for(self, ops, seconds):
        limit = time.monotonic() + seconds
        while min(self.done) < ops:
            if time.monotonic() > limit or any(p.poll() is not None for p in self.processes):
                sys.exit(f"operations in {seconds} s: {self.done}; a rank has ended, or the machine is too slow")
            time.sleep(0.01)

    def finish(self):
        for process in self.processes:
            process.stdin.close()
        for process, thread in zip(self.processes, self.threads, strict=True):
            process.wait(30)
            thread.join(5)
        if any(process.returncode for process in self.processes):
            sys.exit("a rank failed; see above")

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


def at(values, share):
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def measure(args, env):
    """(log of each rank, [(stopped, continued)], overshoots of the bare loop in seconds)."""
    ranks, stops, loop = Ranks(args, env), [], None
    try:
        ranks.wait_for(2 * BEAT, 30)
        with tempfile.TemporaryDirectory() as folder:
            samples = pathlib.Path(folder) / "loop.json"
            loop = subprocess.Popen(
                [
                    TIMER_LOOP,
                    "-N",
                    str(args.ranks),
                    "-p",
                    f"{args.deadline * 1e3:g}ms",
                    "-J",
                    samples,
                    "-D",
                    f"{args.cycles * (args.stop + args.run):g}s",
                ],
                stdout=subprocess.DEVNULL,
            )
            for _ in range(args.cycles):
                stopped = time.monotonic()
                ranks.processes[-1].send_signal(signal.SIGSTOP)
                time.sleep(args.stop)
                ranks.processes[-1].send_signal(signal.SIGCONT)
                stops.append((stopped, time.monotonic()))
                time.sleep(args.run)
            if loop.wait(10):
                sys.exit("timer_loop failed")
            bare = next(r for r in json.loads(samples.read_text())["results"] if r["process"] == "all")
        ranks.finish()
    finally:
        ranks.kill()
        if loop:
            loop.kill()
            loop.wait()
    return ranks.log, stops, bare


def in_step(log, stops):
    """For each stop: operations the victim issued after it until one ran beside others in the same round; the gap it
    reported; and the rounds the others had really gone ahead."""
    *others, victim = log
    found = []
    for _, continued in stops:
        after = [i for i, o in enumerate(victim) if o[0] >= continued]
        for steps, i in enumerate(after, 1):
            t0, t1, round_, _, _, _ = victim[i]
            beside = sum(any(o[2] == round_ and o[0] < t1 and t0 < o[1] for o in other) for other in others)
            if beside * 2 > len(others):
                first = after[0]
                said = sum(o[3] for o in victim[first : i + 1])
                gap = round_ - victim[first - 1][2] - steps
                found.append((steps, said, gap))
                break
        else:
            found.append((len(after) + 1, -1, 0))
    return found


def row(name, p50, p99, worst, n):
    print(f"  {name:<52} {n:>7} {p50:>9.3f} {p99:>9.3f} {worst:>9.3f}")


def report(title, args, log, stops, bare):
    ops = [o for rank in log[:-1] for o in rank if stops[0][0] <= o[0] <= stops[-1][1] + args.run]
    during = [o for o in ops if any(a <= o[0] and o[1] <= b for a, b in stops)]
    hit = [o for o in ops if o[5]]
    print(f"\n{title}\n  {'overshoot, ms':<52} {'n':>7} {'p50':>9} {'p99':>9} {'max':>9}")
    for name, some in (
        ("the other ranks, ended by the deadline", hit),
        ("the other ranks, all operations (0 when earlier)", ops),
    ):
        late = [1e3 * max(o[1] - o[0] - args.deadline, 0) for o in some]
        row(name, at(late, 0.5), at(late, 0.99), max(late, default=float("nan")), len(late))
    row("bare timer loop", bare["p50_us"] / 1e3, bare["p99_us"] / 1e3, bare["max_us"] / 1e3, bare["sleeps"])
    p50, p99, worst = (1e3 * v for v in times(during))
    print(f"  time of an operation while one rank is stopped, ms: p50 {p50:.3f}, p99 {p99:.3f}, max {worst:.3f}")
    found = in_step(log, stops)
    steps, wrong = [f[0] for f in found], [f for f in found if f[1] != f[2]]
    print(
        f"  continued {len(stops)} times: in step with its first operation {steps.count(1)} times, at the latest "
        f"with number {max(steps)}; told it was {min(f[1] for f in found)} to {max(f[1] for f in found)} behind, "
        f"{f'WRONG {len(wrong)} times: {wrong[:3]} (operations, told, true)' if wrong else 'rightly each time'}"
    )
    least = min(len([o for o in rank if stops[0][0] <= o[0]]) for rank in log[:-1])
    print(
        f"  operations of each other rank: {least} or more; received during a stop: mean "
        f"{sum(o[4] for o in during) / max(len(during), 1):.3f} of {(args.ranks - 2) / args.ranks:.3f}, as its data "
        f"and its shard are missing"
    )


def times(ops):
    took = [o[1] - o[0] for o in ops]
    return at(took, 0.5), at(took, 0.99), max(took, default=float("nan"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--cycles", type=int, default=12, help="stops in each of the two runs")
    parser.add_argument("--stop", type=float, default=2, help="seconds stopped")
    parser.add_argument("--run", type=float, default=1, help="seconds running")
    parser.add_argument("--deadline", type=float, default=0.02, help="seconds")
    parser.add_argument("--gap", type=float, default=0.005, help="seconds between operations")
    parser.add_argument("--count", type=int, default=20_000, help="float32 elements")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    if not TIMER_LOOP.exists():
        sys.exit(f"{TIMER_LOOP} is missing: run `make build` first")
    if args.ranks < 3 or args.cycles < 1:
        sys.exit("at least 3 ranks and 1 cycle are needed")
    print(
        f"{args.ranks} ranks over UDP on {os.cpu_count()} CPUs, {args.count} float32, deadline "
        f"{args.deadline * 1e3:g} ms, {args.gap * 1e3:g} ms between operations; rank {args.ranks - 1} stopped "
        f"{args.stop:g} s, running {args.run:g} s, {args.cycles} times"
    )
    for title, env in (
        ("default settings: absent after 3 rounds", {}),
        ("absence switched off: each round of a stop meets its deadline", {"TAILBOUND_ABSENT_AFTER": "1000"}),
    ):
        report(title, args, *measure(args, env))
    print(f"\nload average at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
