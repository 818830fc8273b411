"""Jobs for the simulator: what every rank issues and when, run over a faulty network and judged by sim_oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sim_oracle
import tailbound as tb
from sim_record import DTYPES, FLOATS, Call, Path, Report, contribution
from tailbound.arguments import call_key
from tailbound.core import lib

POISON = 0xA5
EXACT = float("inf")


@dataclass(frozen=True)
class Op:
    """One all_reduce that every rank issues."""

    count: int
    key: str | None = "k"
    dtype: str = "float64"
    op: str = "sum"
    deadline: float | str = 0.01  # seconds, "auto", or EXACT
    in_place: bool = True


@dataclass(frozen=True)
class Step:
    """All ops are issued at once on rank r, at `at` (virtual seconds; 0 = when the step before is over) + delay[r];
    then it is stopped for pause[r], pause_after later."""

    ops: tuple[Op, ...]
    delay: tuple[float, ...] = ()
    pause: tuple[float, ...] = ()
    pause_after: float = 0.0
    faults: tuple[tuple[int | None, int | None, dict[str, Any]], ...] = ()  # set by rank 0 when it begins the step
    at: float = 0.0


@dataclass(frozen=True)
class Job:
    n: int
    steps: tuple[Step, ...]
    seed: int = 1
    net: dict[str, Any] = field(default_factory=dict)
    min_received: float = 0.0

    @property
    def mtu(self) -> int:
        return self.net.get("mtu", 1472)

    @property
    def rate(self) -> float:
        given = str(self.net.get("rate", "10G"))
        return float(given[:-1]) * {"K": 1e3, "M": 1e6, "G": 1e9}[given[-1]] if given[-1].isalpha() else float(given)

    @property
    def trip(self) -> int:
        """A round trip at most, in ns: both ways with all that may be drawn, each frame serialised twice."""
        net = self.net
        one_way = net.get("delay", 20e-6) + net.get("jitter", 0) + net.get("reorder_by", 0)
        return round(2e9 * (one_way + 2 * self.mtu * 8 / self.rate))


@dataclass
class Run:
    job: Job
    calls: list[Call]
    log: np.ndarray
    stats: list[dict[str, Any]]
    refused: list[Exception]
    ended: float
    stops: list[tuple[int, int, int]]  # rank, from, to

    @property
    def path(self) -> Path:
        most = max((sum(op.count * DTYPES[op.dtype].itemsize for op in s.ops) for s in self.job.steps), default=0)
        size = self.job.net.get("queue", "512k")
        queue = min(most, int(size[:-1]) << 10) * 8e9 / self.job.rate
        job = self.job
        hostile = job.net.get("loss", 0) >= 0.2
        return Path(job.n, job.mtu, job.trip, job.rate, job.min_received, round(queue), tuple(self.stops), hostile)

    def check(self) -> Report:
        report = sim_oracle.check(self.path, self.calls, self.log)
        arrived = self.log[(self.log["arrived_ns"] > 0) & np.isin(self.log["fate"], (3, 4))]
        bad = sum(s[k] for s in self.stats for k in ("bad_short", "bad_magic", "bad_version", "bad_type", "bad_check"))
        other = {k: sum(s[k] for s in self.stats) for k in self.stats[0] if k.startswith("bad_")}
        for k in ("bad_short", "bad_magic", "bad_version", "bad_type", "bad_check"):
            del other[k]
        if bad != len(arrived):
            report.add("rejected", f"{bad} frames were rejected as damaged, {len(arrived)} were damaged")
        if any(other.values()):
            report.add("rejected", f"sound frames were rejected: {other}")
        return report


def run(job: Job) -> Run:
    calls: list[Call] = []
    refused: list[Exception] = []
    stops: list[tuple[int, int, int]] = []
    buffers: list[tuple[Call, np.ndarray]] = []
    with tb.simulate(job.n, seed=job.seed, min_received=job.min_received, log=True, **job.net) as world:

        def issue(comm: tb.Communicator, op: Op, turn: int) -> tuple[Call, np.ndarray, Any]:
            ints = contribution(comm.rank, turn, op.count, op.dtype, op.op, job.n)
            x = ints.astype(DTYPES[op.dtype])
            out = x if op.in_place else np.full_like(x, 77)
            key = call_key(op.key)
            exact = op.dtype not in FLOATS or op.op not in ("sum", "avg")
            seconds = EXACT if exact or op.deadline == "auto" else op.deadline
            name, hashed = f"{op.key}/{op.dtype}/{op.op}", lib.tb_key_hash(key, len(key))
            now, before = world._now_ns(), out.tobytes()
            call = Call(comm.rank, name, hashed, op.dtype, op.op, seconds, ints, now, op.in_place, before)
            call.lasting = op.key is not None
            work = comm.all_reduce_async(
                x, None if op.in_place else out, op=op.op, key=op.key, deadline=None if exact else op.deadline
            )
            return call, out, work

        def collect(call: Call, out: np.ndarray, work: Any) -> None:
            try:
                call.result = work.wait()
                call.mask = call.result.mask()
                call.deadline = call.result.deadline  # what "auto" chose
            except tb.SkippedTooOften as error:  # it took part all the same
                call.error, call.result, call.mask = error, error.result, error.result.mask()
                call.deadline = error.result.deadline
            except tb.Error as error:
                call.error = error
            call.after = out.tobytes()
            out.view(np.uint8)[...] = POISON
            calls.append(call)
            buffers.append((call, out))

        def rank(comm: tb.Communicator) -> None:
            me = comm.rank
            for turn, step in enumerate(job.steps):
                if step.at > world.now:
                    world.sleep(comm, step.at - world.now)
                if me == 0:
                    for src, dst, options in step.faults:
                        world.set(src, dst, **options)
                if step.delay and step.delay[me]:
                    world.sleep(comm, step.delay[me])
                flight = []
                for i, op in enumerate(step.ops):
                    try:
                        flight.append(issue(comm, op, 100 * turn + i))
                    except tb.ArgumentError as error:  # a deadline below the measured reserve
                        refused.append(error)
                if step.pause and step.pause[me]:
                    world.sleep(comm, step.pause_after)
                    stop = (me, world._now_ns(), world._now_ns() + round(step.pause[me] * 1e9))
                    stops.append(stop)
                    world.set(me, None, pause=f"{stop[2]}ns")
                    world.sleep(comm, step.pause[me])
                    for call, _, _ in flight:
                        call.stopped = round(step.pause[me] * 1e9)
                for one in flight:
                    collect(*one)

        world.run(rank)
        ended = world.now
        world.advance(0.3)  # repairs of rounds that have returned
        for call, out in buffers:
            call.changed = bool((out.view(np.uint8) != POISON).any())
        return Run(job, calls, world.log(), [comm.stats() for comm in world.comms], refused, ended, stops)


# ---- random jobs, one class of fault each

CLASSES = (
    "none",
    "loss",
    "bursts",
    "jitter",
    "reorder",
    "duplicate",
    "damage",
    "slow",
    "late",
    "stopped",
    "blackhole",
    "deaf",
    "tight",
    "auto",
    "skip",
    "mixed",
)


def random_job(seed: int, fault: str) -> Job:
    """A small job with this class of fault; the seed decides everything."""
    rng = np.random.default_rng([seed, CLASSES.index(fault)])
    n = int(rng.integers(1 if fault == "none" else 2, 9))
    mtu = int(rng.choice([1024, 1472, 4096]))
    delay = float(rng.choice([5e-6, 50e-6, 300e-6]))
    rate = float(rng.choice([1.0, 10.0, 100.0]))
    net: dict[str, Any] = {"mtu": mtu, "delay": delay, "rate": f"{rate:g}G"}
    net["ref"] = str(rng.choice(["prompt", "sync", "none"]))
    kinds = {fault} if fault != "mixed" else set(rng.choice(CLASSES[1:-1], 4, replace=False).tolist())
    if "loss" in kinds:
        net["loss"] = float(rng.choice([0.001, 0.01, 0.05, 0.2]))
    if "bursts" in kinds:
        net |= {"ge_p": 0.02, "ge_r": 0.2, "ge_loss": 0.9}
    if "jitter" in kinds:
        net["jitter"] = delay * float(rng.choice([0.2, 1, 3]))
    if "reorder" in kinds:
        net |= {"reorder": 0.1, "reorder_by": delay}
    if "duplicate" in kinds:
        net["dup"] = 0.1
    if "damage" in kinds:
        net |= {"corrupt": 0.02, "truncate": 0.02}
    if "slow" in kinds:
        net["queue"] = "16k"
    if "skip" in kinds:
        net["loss"] = 0.3
    if "damage" not in kinds:
        net["csum"] = int(rng.random() < 0.3)
    biggest = int(rng.choice([4, 300, 3000, 20000]))
    width = int(rng.integers(1, 4))
    ops = []
    trip = 2 * (delay + net.get("jitter", 0) + net.get("reorder_by", 0))
    whole = 2 * width * biggest * 8 * 8 / (rate * 1e9)  # all bytes of a step over one link, twice
    deadline = (2 if "tight" in kinds else 12) * (whole + trip) + (0 if "tight" in kinds else 2e-3)
    exact = not kinds & {"blackhole", "deaf"}
    for i in range(width):
        count = int(rng.integers(0, biggest + 1))
        if exact and i and rng.random() < 0.3:
            dtype = str(rng.choice(["int32", "uint8", "float32"]))
            kind = rng.choice(["min", "max", "prod"] if dtype == "float32" else ["sum", "max"])
            ops.append(Op(count, f"e{i}", dtype, str(kind)))
            continue
        auto = "auto" in kinds and exact
        dtype = str(rng.choice(["float64", "float64", "float32"] + ([] if auto else ["float16", "bfloat16"])))
        ops.append(
            Op(
                count,
                None if rng.random() < 0.3 else f"k{i}",
                dtype,
                str(rng.choice(["sum", "avg"])),
                "auto" if auto else deadline,
                bool(rng.random() < 0.7),
            )
        )
    turns = int(rng.integers(3, 7)) + (8 if "auto" in kinds else 0)
    steps = []
    bad = int(rng.integers(n))
    for turn in range(turns):
        late, stop = [0.0] * n, [0.0] * n
        faults: list[tuple[int | None, int | None, dict[str, Any]]] = []
        for r in range(n):
            late[r] = float(rng.random()) * delay  # ranks are never quite together
        if "late" in kinds:
            late[bad] = float(rng.choice([0.3, 0.6, 0.9, 1.5])) * deadline
        if "stopped" in kinds and turn % 2:
            stop[bad] = float(rng.choice([0.3, 0.9, 2.5])) * deadline
        if "blackhole" in kinds and turn in (1, 3):
            faults.append((bad, None, {"blackhole": turn == 1}))
        if "deaf" in kinds and turn in (1, 3):
            faults.append(((bad + 1) % n, bad, {"blackhole": turn == 1}))
        steps.append(Step(tuple(ops), tuple(late), tuple(stop), float(rng.random()) * deadline / 2, tuple(faults)))
    return Job(n, tuple(steps), seed, net, float(rng.choice([0.5, 0.9, 0.999])) if "skip" in kinds else 0.0)
