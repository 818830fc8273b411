"""consistency="agree" under faults and crashes: do all ranks return the same bytes, what do they get of the others'
data beside consistency="local", and what does it cost in time?

    python bench/sim_agree.py [--quick] [--seeds N] [--rounds 10000] [--deadline 0.002]

A job is 60 rounds of a key at 2, 4 or 8 ranks (24 KB of float64, 10 Gb/s, 30 us one way, 1 ms of computing between
calls, deadline 2 ms) over one of these networks, once agreed and once local, with the same seed:

    bursty       9 of 10 frames lost in bursts of 5, 8 % of all
    mess         5 % lost, 5 % repeated, 20 % overtaken by 60 us, 2 % damaged, 2 % cut
    tails        up to 100 us of jitter, and 5 % of frames 300 us late on average
    stragglers   bursts of 1 %; ranks begin a fifth of their rounds 400 us late on average
    stopped      bursts of 1 %; a rank stops for 3 ms in every tenth round
    everything   bursty, repeated, overtaken, stragglers and stopped at once

In every other job a rank is killed at a random moment of a random round: nothing comes from it any more. The others,
when that round has failed at them and they have voted it out, resync() the key and go on; of two ranks neither can.

A round is *wrong* if two ranks that returned it have different bytes, or a verdict that differs, or if a rank that
raised does not have its input back. `share` is what the ranks got of the others' contributions, mean over the ranks and
all rounds before the kill; a round that is skipped, or jumped over by a late rank, counts as nothing. `p50` and `p99`
are of calls before the kill. What becomes of the jobs whose rank was killed stands in the lines below the table.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import common_sim
import numpy as np
import tailbound as tb
from sim_tools import picture, spread, table

RANKS, COUNT, LENGTH = (2, 4, 8), 3000, 60
COMPUTE, LATE, STOP = 0.001, 400e-6, 0.003
NET = {"delay": "30us", "rate": "10G", "peer_timeout": "1s", "min_received": 0.0}
BURSTY = {"ge_p": 0.02, "ge_r": 0.2, "ge_loss": 0.9}
FEW = {"ge_p": 0.0022, "ge_r": 0.2, "ge_loss": 0.9}
NETWORKS: dict[str, dict[str, Any]] = {
    "bursty": BURSTY,
    "mess": {"loss": 0.05, "dup": 0.05, "reorder": 0.2, "reorder_by": 60e-6, "corrupt": 0.02, "truncate": 0.02},
    "tails": {"jitter": 100e-6, "tail_p": 0.05, "tail": 300e-6},
    "stragglers": FEW,
    "stopped": FEW,
    "everything": {**BURSTY, "dup": 0.05, "reorder": 0.2, "reorder_by": 60e-6},
}
LATE_IN, STOPPED_IN = ("stragglers", "everything"), ("stopped", "everything")


@dataclass
class Call:
    """One rank's round: its verdict and bytes, or what it raised."""

    rank: int
    round: int
    verdict: str
    data: bytes = b""
    received: float = 0.0
    elapsed: float = 0.0
    raised: bool = False


def again(world: tb.World, comm: tb.Communicator) -> int:
    """The key's next round after one that failed, once the others have voted the dead rank out; -1: they could not.
    Ranks learn of the vote at different moments, and are told once each: some try sooner than others can follow."""
    for _ in range(20):
        try:
            return comm.resync("k", timeout=3.0)
        except tb.Error:
            world.sleep(comm, 0.3)
    return -1


@dataclass
class Job:
    n: int
    victim: int | None = None
    killed: int = LENGTH  # the round in which it was
    calls: list[Call] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def run(network: str, mode: str, kill: bool, seed: int, deadline: float) -> Job:
    draw = np.random.default_rng(seed)
    job = Job(n=int(draw.choice(RANKS)))
    moment = draw.uniform(-100e-6, 500e-6)  # from its issue; before it: this round it does not issue at all
    if kill:
        job.victim, job.killed = int(draw.integers(job.n)), int(draw.integers(10, LENGTH - 10))
    kept = []  # a killed rank's operation is not cancelled: that would be a farewell
    with tb.simulate(job.n, seed=seed, consistency=mode, **NET, **NETWORKS[network]) as world:

        def die(comm: tb.Communicator, x: np.ndarray) -> None:
            if moment > 0:
                kept.append(comm.all_reduce_async(x, key="k", deadline=deadline))
                world.sleep(comm, moment)
            world.set(comm.rank, None, blackhole=True)
            world.set(None, comm.rank, blackhole=True)

        def rank(comm: tb.Communicator) -> None:
            me, turn, end, lateness = comm.rank, 0, LENGTH, np.random.default_rng([seed, comm.rank])
            while 0 <= turn < end:
                world.sleep(comm, COMPUTE)
                late, stopped = lateness.random(2)
                if network in LATE_IN and late < 0.2:
                    world.sleep(comm, float(lateness.exponential(LATE)))
                if network in STOPPED_IN and stopped < 0.1 / job.n:
                    world.set(me, None, pause=f"{world.now + STOP}s")
                    world.sleep(comm, STOP)
                x = np.random.default_rng([me, turn]).integers(-1000, 1000, COUNT).astype(np.float64)
                if me == job.victim and turn >= job.killed:
                    return die(comm, x)
                before = x.tobytes()
                try:
                    r = comm.all_reduce(x, key="k", deadline=deadline)
                except tb.SkippedTooOften as error:
                    r = error.result
                except tb.Error as error:
                    if x.tobytes() != before:
                        job.wrong.append(f"round {turn}: rank {me} raised and its input is not what it was")
                    job.calls.append(Call(me, turn, type(error).__name__, raised=True))
                    number = again(world, comm)
                    turn, end = number, number + end - turn
                    continue
                data = b"" if r.verdict == "skip" else x.tobytes()
                if r.verdict == "skip" and x.tobytes() != before:
                    job.wrong.append(f"round {r.round}: rank {me} skipped and its input is not what it was")
                job.calls.append(Call(me, r.round, r.verdict, data, r.received * (r.verdict != "skip"), r.elapsed))
                turn = r.round + 1
            return None

        world.run(rank)
    job.wrong += differing(job.calls)
    for call in job.calls:
        call.data = b""  # judged
    return job


Pair = tuple[int, Job, Job]  # seed; agreed and local


def differing(calls: list[Call]) -> list[str]:
    """What two ranks that returned a round do not have in common."""
    found: dict[int, dict[tuple[str, bytes], list[int]]] = {}
    for call in calls:
        if not call.raised:
            found.setdefault(call.round, {}).setdefault((call.verdict, call.data), []).append(call.rank)
    return [
        f"round {number}: ranks {' | '.join(f'{ranks} {verdict}' for (verdict, _), ranks in one.items())} differ"
        for number, one in found.items()
        if len(one) > 1
    ]


def share(jobs: list[Job]) -> float:
    """Of the others' contributions, over all rank-rounds before the kill."""
    got = sum(c.received for job in jobs for c in job.calls if c.round < job.killed)
    return got / sum(job.n * job.killed for job in jobs)


def times(jobs: list[Job]) -> np.ndarray:
    return np.array([c.elapsed for job in jobs for c in job.calls if c.round < job.killed and not c.raised])


def pair(network: str, kill: bool, seed: int, turn: int, deadline: float) -> tuple[Job, Job]:
    number = 2 * (1000 * seed + turn) + kill
    return run(network, "agree", kill, number, deadline), run(network, "local", kill, number, deadline)


def ratio(pairs: list[Pair], figure: Callable[[list[Job]], float]) -> str:
    """Of a figure under agree to that under local: median and range over the seeds."""
    seeds = sorted({seed for seed, _, _ in pairs})
    found = []
    for one in seeds:
        of = [(agree, local) for seed, agree, local in pairs if seed == one]
        found.append(figure([agree for agree, _ in of]) / figure([local for _, local in of]))
    return spread(found, "{:.3f}".format)


def row(name: str, pairs: list[Pair], deadline: float) -> dict[str, Any]:
    agree, local = [one for _, one, _ in pairs], [one for _, _, one in pairs]
    t = times(agree)
    return {
        "network": name,
        "rounds": sum(len({c.round for c in job.calls}) for job in agree),
        "not whole": sum(len({c.round for c in job.calls if c.verdict != "ok"}) for job in agree),
        "killed": sum(job.victim is not None for job in agree),
        "wrong": sum(len(job.wrong) for job in agree),
        "local: differ": sum(len(job.wrong) for job in local),
        "share %": f"{100 * share(agree):.3f}",
        "over local's": ratio(pairs, share),
        "p50 us": f"{1e6 * np.median(t):.0f}",
        "over local's ": ratio(pairs, lambda jobs: float(np.median(times(jobs)))),
        "p99 us": f"{1e6 * np.percentile(t, 99):.0f}",
        "over local's  ": ratio(pairs, lambda jobs: float(np.percentile(times(jobs), 99))),
        "beyond the deadline %": f"{100 * np.mean(t > deadline):.1f}",
    }


def after_the_kill(mode: str, jobs: list[Job]) -> None:
    """How the survivors' part of a killed rank's jobs goes on."""
    killed = [job for job in jobs if job.victim is not None]
    ends: collections.Counter[str] = collections.Counter()
    on = left = 0
    for job in killed:
        seen = [c for c in job.calls if c.rank != job.victim and c.round >= job.killed]
        on += sum(not c.raised for c in seen)
        left += (job.n - 1) * (LENGTH - job.killed)
        kinds = {c.verdict if c.raised else "returned" for c in seen if c.round == job.killed}
        ends[" and ".join(sorted(kinds)) or "nobody came to it"] += 1
    print(
        f"{mode}: {len(killed)} ranks killed; the round of the kill at the others: "
        + ", ".join(f"{name} {count}" for name, count in ends.most_common())
        + f"; of their {left} rank-rounds from it on {on} were returned"
    )


def plan(rounds: int, seeds: list[int], deadline: float) -> list[tuple[str, bool, int, int, float]]:
    """Jobs whose rounds come to that many; one in which a rank is killed has half of them on average."""
    turns = -(-rounds * 2 // (3 * LENGTH * len(NETWORKS) * len(seeds)))
    return [
        (network, kill, seed, turn, deadline)
        for network in NETWORKS
        for seed in seeds
        for turn in range(turns)
        for kill in (False, True)
    ]


def main() -> int:
    args = common_sim.arguments(
        __doc__, rounds=(10_000, "of all seeds together, at least"), deadline=(0.002, "of each call, in seconds")
    )
    tasks = plan(90 * len(NETWORKS) if args.quick else args.rounds, args.seeds, args.deadline)
    found = common_sim.side_by_side(pair, tasks, args.quick)
    pairs = {name: [(t[2], *f) for t, f in zip(tasks, found, strict=True) if t[0] == name] for name in NETWORKS}
    every = [one for some in pairs.values() for one in some]
    print(
        f"ranks {RANKS}, deadline {1e3 * args.deadline:g} ms, seeds {args.seeds}; ratios: median (range) over the seeds"
    )
    table([row(name, some, args.deadline) for name, some in [*pairs.items(), ("all", every)]])
    print()
    for mode, jobs in (("agree", [one for _, one, _ in every]), ("local", [one for _, _, one in every])):
        after_the_kill(mode, jobs)
    wrong = [f"{task}: {text}" for task, (job, _) in zip(tasks, found, strict=True) for text in job.wrong]
    print("\n".join([f"rounds that are wrong: {len(wrong)}", *wrong[:20]]))
    picture(args.png, lambda axes: draw(axes, pairs, args.deadline))
    return 1 if wrong else 0


def draw(axes, pairs: dict[str, list[Pair]], deadline: float) -> None:
    for i, (name, some) in enumerate(pairs.items()):
        for column, style in ((1, "-"), (2, "--")):
            took = np.sort(times([one[column] for one in some])) * 1e6
            label = f"{name}, {('agree', 'local')[column - 1]}"
            axes.plot(took, 1 - np.arange(len(took)) / len(took), style, color=f"C{i}", label=label)
    axes.set(xscale="log", yscale="log", xlabel="time of a call, us", ylabel="share of calls that take longer")
    axes.axvline(deadline * 1e6, color="k", linewidth=0.5)
    axes.legend(fontsize=7, ncols=2)


if __name__ == "__main__":
    sys.exit(main())
