"""Scenarios with figures that the project shows; tests run a few operations of each, bench/sim_contract.py all of them.

Each gives a Figure: what was measured, over which network, and how many operations kept the contract.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sim_job import Job, Op, Run, Step, run
from sim_record import Report

CHUNK = 1408  # payload bytes of a full frame at the default MTU
HEADER = 64


@dataclass
class Figure:
    name: str
    n: int
    rate: str
    delay: float
    queue: str
    operations: int
    values: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def elements(n: int, chunks: int) -> int:
    """float64 elements for so many full chunks in every shard."""
    return n * chunks * CHUNK // 8


def ideal(n: int, count: int, rate: float, delay: float) -> float:
    """2(N-1)/N * (bytes + headers) / rate + 2 one-way delays, in seconds."""
    size = count * 8
    return 2 * (n - 1) / n * (size + -(-size // CHUNK) * HEADER) * 8 / rate + 2 * delay


def steps(op: Op, turns: int, period: float, delay: tuple[float, ...] = (), dark: Any = None) -> tuple[Step, ...]:
    """`turns` rounds on a fixed beat, so that what one rank does in a round moves nothing in the next. dark(turn): the
    faults to set when it begins."""
    return tuple(Step((op,), delay, faults=dark(turn) if dark else (), at=period * turn) for turn in range(turns))


def judged(name: str, job: Job, found: Run, report: Report, **values: float) -> Figure:
    net = job.net
    late = max((c.result.elapsed - c.deadline for c in found.calls if c.deadline < np.inf), default=0)
    return Figure(
        name,
        job.n,
        net.get("rate", "10G"),
        net["delay"],
        net.get("queue", "512k"),
        len(job.steps),
        {**values, "worst overshoot us": max(late, 0) * 1e6},
        report.wrong,
    )


def measured(n: int, op: Op, net: dict[str, Any], turns: int = 4) -> float:
    """Time of a round when nothing is lost, once the ranks know their network."""
    found = run(Job(n, steps(op, turns, 1.0), net=net))
    return max(c.result.elapsed for c in found.calls if c.result.round == turns - 1)


def blackholed(turns: int, seed: int = 1, chunks: int = 10) -> Figure:
    """Rank 3 of 4 is unreachable in two rounds out of four: too few in a row for it to count as absent."""
    n, dead, live = 4, 3, {0, 1, 2}
    op = Op(elements(n, chunks), "k", deadline=0.005)

    def dark(turn: int) -> Any:
        return (
            ((dead, None, {"blackhole": True}), (None, dead, {"blackhole": True}))
            if turn % 4 == 0
            else (((dead, None, {"blackhole": False}), (None, dead, {"blackhole": False})) if turn % 4 == 2 else ())
        )

    job = Job(n, steps(op, turns, 0.02, dark=dark), seed, {"delay": 50e-6, "rate": "10G"})
    found = run(job)
    report = found.check()
    # a round in the dark is known by its time of issue: the unreachable rank may be behind with its numbers
    hit = [
        r
        for r in report.seen
        if round(min(c.issued for c in r.calls.values() if c.rank != dead) / 2e7) % 4 < 2 and live <= set(r.calls)
    ]
    got = [r.coverage(rank, live, live) for r in hit for rank in live]
    return judged(
        "one peer of 4 blackholed",
        job,
        found,
        report,
        **{"live data on live shards, least": min(got), "rounds in the dark": len(hit)},
    )


def late_issuer(turns: int, seed: int = 1, chunks: int = 10) -> Figure:
    """Rank 3 of 4 issues at 0.9 of the others' deadline: owner duty gives the others its shard all the same."""
    n, others, deadline = 4, {0, 1, 2}, 0.005
    op = Op(elements(n, chunks), "k", deadline=deadline)
    job = Job(n, steps(op, turns, 4 * deadline, (0.0, 0.0, 0.0, 0.9 * deadline)), seed, {"delay": 50e-6, "rate": "10G"})
    found = run(job)
    report = found.check()
    full = [r for r in report.seen if others <= set(r.calls)]
    got = [r.coverage(rank, set(range(n)), others) for r in full for rank in others]
    own = [r.coverage(rank, {3}, others) for r in full for rank in others]
    return judged(
        "a rank issues at 0.9 of the deadline",
        job,
        found,
        report,
        **{"the others' data, least": min(got), "on the late rank's shard, least": min(own), "rounds": len(full)},
    )


def lossy(turns: int, chunks: int, seed: int = 1) -> Figure:
    """1 % loss on every kind of frame; the deadline is twice the lossless time."""
    n, net = 4, {"delay": 50e-6, "rate": "10G"}
    op = Op(elements(n, chunks), "k", deadline=10.0)
    lossless = measured(n, op, net)
    op = Op(op.count, "k", deadline=2 * lossless)
    job = Job(n, steps(op, turns, 3 * lossless), seed, {**net, "loss": 0.01})
    found = run(job)
    report = found.check()
    got = [np.mean([c.result.received for c in found.calls if c.rank == r and c.result]) for r in range(n)]
    return judged(
        f"1 % loss, {chunks} chunks per shard",
        job,
        found,
        report,
        **{
            "mean received, worst rank %": 100 * min(got),
            "lossless us": lossless * 1e6,
            "deadline us": 2e6 * lossless,
            "refused": len(found.refused),
        },
    )


def faultless(turns: int, n: int, chunks: int, delay: float = 50e-6, rate: str = "10G") -> Figure:
    """Nothing is lost, ranks issue together: everything arrives, about as fast as the wire allows."""
    op = Op(elements(n, chunks), "k", deadline=10.0)
    job = Job(n, steps(op, turns, 1.0), net={"delay": delay, "rate": rate})
    found = run(job)
    report = found.check()
    best = ideal(n, op.count, job.rate, delay)
    times = {turn: max(c.result.elapsed for c in found.calls if c.result.round == turn) / best for turn in range(turns)}
    return judged(
        f"no faults, {chunks} chunks per shard",
        job,
        found,
        report,
        **{
            "received, least": min(c.result.received for c in found.calls),
            "time / ideal, first": times[0],
            "time / ideal, worst after it": max(t for turn, t in times.items() if turn) if turns > 1 else times[0],
            "ideal us": best * 1e6,
        },
    )
