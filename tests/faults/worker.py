"""One rank of a fault test: runs the phases of a JSON specification and prints one JSON line for each thing it did.

    worker.py '{"init": {...}, "phases": [{"name": "a", "n": 100, "count": 40000, "deadline": 0.1, "key": "w"}], ...}'

Rank and size come from the environment, as in any job. A phase: n operations, or as many as fit before `until`
(CLOCK_MONOTONIC seconds, which all processes of a machine share); `count` float32 elements; `deadline` seconds, "inf"
or "auto"; `key` or null; `gap` seconds between operations; `delay` seconds before each, `first_delay`
before the first, rank -> seconds; `tagged`: contributions differ from round to round, so that a stale chunk shows;
`wait_for_line`: start at a line on stdin.

Every value is checked here. Rank r contributes 3^r * w(element, round) with w in 1..61, so a result tells which ranks
are in it: it is w * N/|S| * sum of 3^r over S, for the set S of those that arrived. `bad` counts elements that are
no such value, or not zero although mask() says that nothing arrived; `derived` is what `received` must be, judged by
the values alone. `starved` is for how long threads of this process had no core during the call.
"""
import contextlib
import itertools
import json
import os
import sys
import time

import numpy as np
import tailbound as tb


def say(**line):
    print(json.dumps(line), flush=True)


def starved():
    """Seconds, so far, in which threads of this process were ready to run and had no core; 0 where the kernel does not
    count them."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/schedstat") as file:
            total += int(file.read().split()[1])
    return total / 1e9


class Oracle:
    """Which sets of ranks explain a result of op sum with the default missing="renormalise"."""

    def __init__(self, rank, size):
        if size > 4:
            raise ValueError("this oracle tells apart the sets of at most 4 ranks")
        table = []
        for k in range(1, size + 1):
            for members in itertools.combinations(range(size), k):
                others = k - (rank in members)
                table.append((size / k * sum(3.0**r for r in members), others / max(size - 1, 1)))
        table.sort()
        self.values, self.shares = np.array(table).T
        self.rank, self.size = rank, size

    def weights(self, count, round_):
        return 1 + (np.arange(count, dtype=np.int64) * 7 + round_ * 13) % 61

    def contribution(self, count, round_):
        return (3.0**self.rank * self.weights(count, round_)).astype(np.float32)

    def check(self, out, mask, round_):
        """(bad, derived received, elements in which every rank is)."""
        ratio = out.astype(np.float64) / self.weights(len(out), round_)
        nearest = np.abs(self.values[None, :] - ratio[:, None]).argmin(axis=1)
        known = np.abs(ratio / self.values[nearest] - 1) < 1e-5
        bad = int(np.count_nonzero(mask & ~known) + np.count_nonzero(~mask & (out != 0)))
        everybody = np.flatnonzero(self.values == sum(3**r for r in range(self.size)))[0]
        full = int(np.count_nonzero(mask & known & (nearest == everybody)))
        return bad, float(np.where(mask, self.shares[nearest], 0.0).mean()) if len(out) else 1.0, full


def operate(comm, oracle, phase, index, last_round):
    count, key, tagged = phase["count"], phase.get("key"), phase.get("tagged", True)
    deadline = phase.get("deadline", "inf")
    asked = float(deadline) if deadline != "auto" else deadline
    guess = (last_round + 1 if key is not None else index) if tagged else 0
    x = oracle.contribution(count, guess)
    mine = x.copy()
    without_core = starved()
    t0 = time.monotonic()
    r = comm.all_reduce(x, op="sum", key=key, deadline=asked)
    t1 = time.monotonic()
    without_core = starved() - without_core
    bad, derived, full = oracle.check(x, r.mask(), (r.round if key is not None else index) if tagged else 0)
    if r.late:  # values of earlier rounds are in it, which this oracle does not know of: the simulator's does
        bad, derived = 0, r.received
    if r.verdict == "skip":
        bad, derived = int(np.count_nonzero(x != mine)), r.received
    say(what="op", phase=phase["name"], op=index, round=r.round, behind=r.behind, received=r.received, derived=derived,
        verdict=r.verdict, hit=r.deadline_hit, elapsed=r.elapsed, wall=t1 - t0, t0=t0, t1=t1, bad=bad, full=full,
        count=count, overshoot=t1 - t0 - asked if asked not in ("auto", float("inf")) else None,
        starved=without_core, peers=r.per_peer)
    return r.round


def run_phase(comm, oracle, phase, rounds):
    if phase.get("wait_for_line"):
        sys.stdin.readline()
    delay = phase.get("delay", {}).get(str(comm.rank), 0)
    time.sleep(phase.get("first_delay", {}).get(str(comm.rank), 0))
    index = 0
    while index < phase["n"] if "n" in phase else time.monotonic() < phase["until"]:
        if delay:
            time.sleep(delay)
        say(what="issue", phase=phase["name"], op=index, t=time.monotonic())
        try:
            rounds[phase.get("key")] = operate(comm, oracle, phase, index, rounds.get(phase.get("key"), -1))
        except tb.Error as error:
            say(what="error", phase=phase["name"], op=index, kind=type(error).__name__, errno=error.errno,
                text=str(error), t=time.monotonic())
        index += 1
        time.sleep(phase.get("gap", 0))
    say(what="end of phase", phase=phase["name"], t=time.monotonic())


def main():
    spec = json.loads(sys.argv[1])
    time.sleep(spec.get("start_delay", {}).get(os.environ["RANK"], 0))
    began = time.monotonic()
    say(what="start", pid=os.getpid(), uid=os.getuid(), t=began)
    try:
        comm = tb.init(**spec.get("init", {}))
    except tb.Error as error:
        say(what="init failed", kind=type(error).__name__, text=str(error), took=time.monotonic() - began)
        return 3
    try:
        say(what="ready", link=comm.link, describe=comm.stats()["description"], took=time.monotonic() - began)
        oracle, rounds = Oracle(comm.rank, comm.size), {}
        for phase in spec["phases"]:
            run_phase(comm, oracle, phase, rounds)
        say(what="stats", stats=comm.stats())
    except KeyboardInterrupt:
        say(what="interrupted", t=time.monotonic())
        return 130
    finally:
        closing = time.monotonic()
        comm.close()
        say(what="closed", took=time.monotonic() - closing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
