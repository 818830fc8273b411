"""Dynamic incast beside every fixed one, in the scenarios of docs/incast.md.

    python bench/sim_incast.py [--quick] [--seeds N]

Time of an all-reduce from the last issue to the last return, over 2(N-1)/N * (bytes + headers) / rate + 2 one-way
delays; mean over the rounds after the first four and over the seeds 11, 12, ...

    best I     the fixed number of peers served side by side that is best in hindsight, and its time
    dynamic    turns as long as the most modest receiver wants; in brackets least and most of a seed
    by link    turns of one frame, which is what the simulated link likes when nobody asks for longer ones
    drop %     data frames that found a full queue: I = N-1, dynamic
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import common_sim
import numpy as np
import tailbound as tb
from sim_tools import picture, spread, table

CHUNK, WARM, GAP = 352, 4, 0.005  # elements of a full frame; rounds that are not counted; seconds between rounds
PORT = 2


@dataclass(frozen=True)
class Scenario:
    name: str
    n: int = 8
    rate: float = 10e9
    delay: float = 20e-6
    queue: str = "64k"
    chunks: int = 100
    late: float = 0.0
    bursts: bool = False

    @property
    def ideal(self) -> float:
        frames = self.n * self.chunks
        return 2 * (self.n - 1) / self.n * frames * (4 * CHUNK + 64) * 8 / self.rate + 2 * self.delay

    @property
    def fixed(self) -> list[int]:
        return list(range(1, 8)) if self.n == 8 else [1, 2, 4, 8, 12, 15]


SCENARIOS = [
    Scenario("deep", queue="512k"),
    Scenario("shallow"),
    Scenario("tiny", queue="16k"),
    Scenario("shallow, late", late=200e-6),
    Scenario("tiny, late", queue="16k", late=200e-6),
    Scenario("deep, bursts", queue="512k", bursts=True),
    Scenario("shallow, bursts", bursts=True),
    Scenario("long", delay=200e-6, queue="128k"),
    Scenario("fast, shallow", rate=100e9, delay=5e-6),
    Scenario("fast, deep", rate=100e9, queue="512k"),
    Scenario("slow", rate=1e9, queue="16k", chunks=20),
    Scenario("many", n=16, chunks=50),
    Scenario("many, tiny, late", n=16, chunks=50, queue="16k", late=200e-6),
]
POLICIES: dict[str, dict[str, Any]] = {
    "dynamic": {"incast_policy": "dynamic", "burst": 16},
    "by link": {"incast_policy": "dynamic"},
}


def fixed(incast: int) -> dict[str, Any]:
    return {"incast_policy": "fixed", "incast": incast, "burst": 16}


def run(s: Scenario, policy: dict[str, Any], seed: int, rounds: int) -> tuple[float, float]:
    """Mean time over the ideal; share of data frames dropped."""
    late, took, xs = np.random.default_rng(seed), [], [np.ones(s.n * s.chunks * CHUNK, np.float32) for _ in range(s.n)]
    with tb.simulate(
        s.n, seed=seed, rate=f"{s.rate:.0f}", delay=s.delay, queue=s.queue, jitter="1us", log=True, **policy
    ) as world:
        if s.bursts:
            world.set(bg_rate="20G", bg_on="50us", bg_off="2ms")
        sent = dropped = at = 0
        for turn in range(WARM + rounds):
            offsets = late.exponential(s.late, s.n) if s.late else np.zeros(s.n)
            start, works = world.now, []
            for rank in np.argsort(offsets, kind="stable"):
                world.advance(max(0.0, start + float(offsets[rank]) - world.now))
                works.append(world.comms[rank].all_reduce_async(xs[rank], key="k", deadline=10.0))
            last = world.now
            for work in works:
                work.wait()
            if turn >= WARM:
                took.append((world.now - last) / s.ideal)
            world.advance(GAP)
            log = world.log(at)
            at += len(log)
            if turn >= WARM:
                data = log["type"] == 1
                sent, dropped = sent + int(data.sum()), dropped + int((data & (log["fate"] == PORT)).sum())
        return statistics.mean(took), dropped / sent


def main() -> None:
    args = common_sim.arguments(__doc__)
    rounds = 2 if args.quick else 10
    seeds = [10 + seed for seed in args.seeds]
    scenarios = [SCENARIOS[1], SCENARIOS[10]] if args.quick else SCENARIOS
    every = [(s, name, policy) for s in scenarios for name, policy in policies(s).items()]
    tasks = [(s, policy, seed, rounds) for s, _, policy in every for seed in seeds]
    results = iter(common_sim.side_by_side(run, tasks, args.quick))
    found = {(s.name, name): [next(results) for _ in seeds] for s, name, _ in every}
    print(f"times over the ideal; seeds {seeds}, {rounds} rounds each")
    rows, gains = [], []
    for s in scenarios:
        mean = {name: statistics.mean(t for t, _ in found[s.name, name]) for name in policies(s)}
        best = min(s.fixed, key=lambda i: mean[str(i)])
        drops = [statistics.mean(d for _, d in found[s.name, name]) for name in (str(s.n - 1), "dynamic")]
        gains.append(1 - mean["dynamic"] / mean[str(s.n - 1)])
        rows.append(
            {
                "scenario": s.name,
                "best I": f"{best}: {mean[str(best)]:.3f}",
                "I=1": f"{mean['1']:.3f}",
                "I=N-1": f"{mean[str(s.n - 1)]:.3f}",
                "dynamic": spread([t for t, _ in found[s.name, "dynamic"]], "{:.3f}".format),
                "over best": f"{mean['dynamic'] / mean[str(best)]:.3f}",
                "over N-1": f"{mean['dynamic'] / mean[str(s.n - 1)]:.3f}",
                "by link": f"{mean['by link']:.3f}",
                "drop %": " / ".join(f"{100 * d:.2f}" for d in drops),
            }
        )
    table(rows)
    print(f"mean gain over I = N-1: {100 * statistics.mean(gains):.1f} % (published: 21 %)")
    picture(args.png, lambda axes: draw(axes, scenarios, found))


def policies(s: Scenario) -> dict[str, dict[str, Any]]:
    return {**{str(i): fixed(i) for i in s.fixed}, **POLICIES}


def draw(axes: Any, scenarios: list[Scenario], found: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    for i, s in enumerate(scenarios):
        for name in policies(s):
            time = statistics.mean(t for t, _ in found[s.name, name])
            mark, colour = {"dynamic": ("o", "C3"), "by link": ("^", "C2")}.get(name, ("_", "C0"))
            axes.plot(i, time, mark, color=colour)
    axes.set_xticks(range(len(scenarios)), [s.name for s in scenarios], rotation=40, ha="right", fontsize=7)
    axes.set(ylabel="time over the ideal", title="fixed incast (bars), dynamic (dots), turns of one frame (triangles)")


if __name__ == "__main__":
    main()
