"""Deadline policies beside each other, over the simulated network: ours (auto), the published one (optireduce), and the
best fixed deadline in hindsight, which no one can know: the fastest of a grid that receives as much as ours.

    python bench/sim_deadline.py                  every scenario, five seeds
    python bench/sim_deadline.py --quick          two seeds, few rounds
    python bench/sim_deadline.py --only tails,dead

A round is one all-reduce; all ranks issue together, give or take what the scenario says. Rounds before the change (a
third of them, and at least the exact first ones of either policy) are not measured. received: mean over live ranks; a
dead rank is left out, of those that receive and of what they can receive. "without" rows have one mechanism off.
"""

from __future__ import annotations

import argparse
import sys

import common_sim
import numpy as np
import tailbound as tb
from sim_tools import percentile, picture, spread, table

NET = {"delay": "50us", "rate": "10G", "queue": "4M", "mtu": 1472}
GRID = (1.5, 2, 3, 4, 6, 8, 12, 20, 40)  # ms


def jitter(world, comm, rng):
    world.sleep(comm, rng.uniform(0, 0.005))


def late_tenth(world, comm, rng):
    world.sleep(comm, 0.006 if comm.rank == 7 and rng.random() < 0.1 else 0)


def half_late(world, comm, rng):
    """Late in four rounds of ten, which no median sees."""
    world.sleep(comm, 0.012 if comm.rank == 7 and rng.random() < 0.4 else 0)


def cut(world, comm, rng, work):
    """Every fifth round rank 7's paths die after its data have left: what is lost until then cannot be repaired."""
    if comm.rank == 7 and rng.random() < 0.2:
        world.sleep(comm, 0.00034)
        world.set(7, None, blackhole=True)
        work.wait()
        world.sleep(comm, 0.020)
        world.set(7, None, blackhole=False)


def slow(world):
    world.set(7, None, rate="3.3G")
    world.set(None, 7, rate="3.3G")


def dead(world):
    world.set(7, None, blackhole=True)
    world.set(None, 7, blackhole=True)


# name: (network, before each call, (when, what) happens once, while a call is under way)
SCENARIOS = {
    "quiet": ({}, None, None),
    "jitter 5 ms": ({}, jitter, None),
    "tails": ({"tail_p": 0.0005, "tail": "3ms"}, None, None),
    "bursts": ({"ge_p": 0.0005, "ge_r": 0.05, "ge_loss": 0.5}, None, None),
    "loss, then cut": ({"loss": 0.01}, None, None, cut),
    "late in 10 %": ({}, late_tenth, None),
    "late in 40 %": ({"share_window": 30}, half_late, None),
    "one 3x slower": ({}, None, ("start", slow)),
    "becomes 3x slower": ({}, None, ("change", slow)),
    "one dies": ({}, None, ("change", dead)),
}


def job(scenario, seed, rounds, elements, deadline="auto", **options):
    """Times and shares of the measured calls of live ranks, and of the slow rank's share."""
    net, before, event, *during = SCENARIOS[scenario]
    change, n = max(rounds // 3, 22), 8
    killed = event is not None and event[1] is dead
    with tb.simulate(n, seed=seed, **NET, **net, **options) as world:
        if event and event[0] == "start":
            event[1](world)

        def rank(comm):
            rng = np.random.default_rng([seed, comm.rank])
            x, found = np.ones(elements, np.float32), []
            turn = 0
            while turn < rounds:
                at = 0.060 * (turn + 1)  # a beat: what one round costs moves nothing in the next
                if world.now < at:
                    world.sleep(comm, at - world.now)
                if turn == change and event and event[0] == "change" and comm.rank == 0:
                    event[1](world)
                if killed and comm.rank == 7 and turn >= change:
                    break
                if before:
                    before(world, comm, rng)
                work = comm.all_reduce_async(x, op="avg", key="k", deadline=deadline, min_received=0)
                for act in during if turn >= change else ():
                    act(world, comm, rng, work)
                r = work.wait()
                if turn >= change:
                    found.append((r.elapsed, r.received, r.by_stage[1].get(7, 1.0)))
                turn = r.round + 1  # not += 1: a rank that fell behind jumps to the others' round
            return found

        found = world.run(rank)
    live = found[:7] if killed else found
    times = [t for rows in live for t, _, _ in rows]
    scale = (n - 1) / (n - 2) * n / (n - 1) if killed else 1.0
    received = [min(1.0, r * scale) for rows in live for _, r, _ in rows]
    share = [s for rows in live[:7] for _, _, s in rows]
    return 1e3 * np.mean(times), 1e3 * percentile(times, 0.99), 100 * np.mean(received), 100 * np.mean(share)


def row(scenario, policy, runs):
    mean, p99, received, share = zip(*runs, strict=True)
    return {
        "scenario": scenario,
        "policy": policy,
        "mean ms": spread(mean, "{:.3f}".format),
        "p99 ms": spread(p99, "{:.2f}".format),
        "received %": spread(received, "{:.3f}".format),
        "of rank 7 %": spread(share, "{:.2f}".format),
    }


def best_fixed(scenario, seeds, rounds, elements, at_least):
    """The grid's fastest among those that receive no less, and its runs; the one that receives most if none does."""
    tried = []
    for ms in GRID:
        runs = [job(scenario, seed, rounds, elements, ms * 1e-3) for seed in seeds]
        tried.append((ms, runs, np.mean([r[0] for r in runs]), np.mean([r[2] for r in runs])))
        if tried[-1][3] >= at_least and len(tried) > 1 and tried[-2][3] >= at_least:
            break  # longer ones are only slower
    good = [t for t in tried if t[3] >= at_least - 1e-3]
    return min(good, key=lambda t: t[2]) if good else max(tried, key=lambda t: t[3])


def of_scenario(name, seeds, rounds, elements):
    """Its rows of the table, and (name, policy, mean time) of the three policies."""
    ours = [job(name, seed, rounds, elements) for seed in seeds]
    published = [job(name, seed, rounds, elements, deadline_policy="optireduce") for seed in seeds]
    got = float(np.mean([r[2] for r in ours]))
    ms, fixed, _, _ = best_fixed(name, seeds, rounds, elements, got)
    found = [("auto", ours), ("optireduce", published), (f"fixed {ms:g} ms", fixed)]
    off = [job(name, seed, rounds, elements, early_timeout="off") for seed in seeds]
    found.append(("without early timeout", off))
    if "40" in name:
        found.append(("without min_share", [job(name, seed, rounds, elements, min_share=0) for seed in seeds]))
    rows = [row(name if i == 0 else "", policy, runs) for i, (policy, runs) in enumerate(found)]
    return rows, [(name, policy.split()[0], np.mean([r[0] for r in runs])) for policy, runs in found[:3]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="parts of scenarios' names, separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--elements", type=int, default=50_000)
    parser.add_argument("--png", metavar="FILE")
    args = parser.parse_args()
    seeds, rounds = (range(2), 60) if args.quick else (range(args.seeds), args.rounds)
    only = [part for part in args.only.split(",") if part]
    every = list(SCENARIOS)[::3] if args.quick and not only else list(SCENARIOS)
    names = [name for name in every if not only or any(part in name for part in only)]
    if not names:
        parser.error(f"scenarios: {', '.join(SCENARIOS)}")
    print(f"N=8, {args.elements} float32, 10 Gb/s, 50 us, seeds 0..{len(seeds) - 1}, {rounds} rounds")
    print("median over seeds (least..most)")
    found = common_sim.side_by_side(
        of_scenario, [(name, list(seeds), rounds, args.elements) for name in names], args.quick
    )
    rows = [one for some, _ in found for one in some]
    points = [one for _, some in found for one in some]
    table(rows)

    def draw(axes):
        for i, policy in enumerate(("auto", "optireduce", "fixed")):
            heights = [t for _, p, t in points if p == policy]
            axes.bar(np.arange(len(names)) + 0.27 * i, heights, 0.25, label=policy)
        axes.set(ylabel="mean time of a round, ms", yscale="log")
        axes.set_xticks(np.arange(len(names)) + 0.27, names, rotation=20, ha="right")
        axes.legend()

    picture(args.png, draw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
