"""Uneven and bursty loss inside one all-reduce: what it does to the average, as bias and as variance.

    python bench/sim_uneven.py [--quick] [--seeds N]

Setting: 8 ranks, 10 Gb/s, 20 us, wide queues; 256 KiB of float32 per rank, deadline 3 ms (P2P, the slowest, needs 2).
Losses come in bursts of 10 frames on average (Gilbert-Elliott, 9 of 10 lost in a burst):

    even       2 % on every path
    sender     20 % of what rank 7 sends, 0.2 % elsewhere
    receiver   20 % of what rank 0 is sent, 0.2 % elsewhere
    path       50 % from rank 7 to rank 0, 0.2 % elsewhere

A result is sum_k w_k x_k, with the w_k known for every element at every rank from gradients that name their ranks. In a
perfect average each is 1/N. Over the rounds:

    scale      mean of sum_k w_k: 1 = gradients that agree keep their length
    least      N times the smallest mean w_k: how much of its say the worst served rank has left
    bias       root mean square over elements of ||mean over rounds of w - 1/N||: error of a direction that only some
               ranks see and that more rounds do not cure, for rank gradients of unit size without correlation; less
               what so few rounds leave by chance
    deviation  the same of w around its mean: what more rounds do cure

`plain` divides sums by N, the others by the count. Under carry w_k is what was added of rank k in a round, of earlier
rounds, too. Rotation of owners is the library's own; Ring, P2P have none.
"""

from __future__ import annotations

from collections.abc import Iterable

import baselines
import common_sim
import numpy as np
import tailbound as tb
from sim_tools import picture, spread, table

N, COUNT, DEADLINE = 8, 1 << 16, 0.003
NET = {"rate": "10G", "delay": "20us", "queue": "4M"}
NAMES = common_sim.Names(N)
MECHANISMS = {  # how it averages, repair, sums over N
    "TAR plain": ("tar", 0, True),
    "TAR renormalised": ("tar", 0, False),
    "TAR repair": ("tar", 1, False),
    "P2P renormalised": ("p2p", 0, False),
    "Ring plain": ("ring", 0, True),
    "Ring renormalised": ("ring", 0, False),
}
CARRY = {"TAR carry": 0, "TAR repair, carry": 1}  # repair
BASE = 64  # rank k's gradient is BASE**k: each digit of a sum says how often a rank is in it, of up to 8 ranks


def burst(loss: float) -> dict[str, float]:
    """Gilbert-Elliott options for this share lost, in bursts of 10 frames."""
    bad = loss / 0.9
    return {"ge_r": 0.1, "ge_p": 0.1 * bad / (1 - bad), "ge_loss": 0.9}


def break_(world: tb.World, kind: str) -> None:
    world.set(**burst(0.02 if kind == "even" else 0.002))
    if kind == "sender":
        world.set(7, None, **burst(0.2))
    elif kind == "receiver":
        world.set(None, 0, **burst(0.2))
    elif kind == "path":
        world.set(7, 0, **burst(0.5))


SCENARIOS = ("even", "sender", "receiver", "path")


def sets_of(name: str, repair: int, kind: str, seed: int, rounds: int) -> np.ndarray:
    """The set of contributions in each element: [round, rank, element]."""
    xs = [NAMES.gradient(rank, COUNT) for rank in range(N)]
    with tb.simulate(N, seed=seed, min_received=0.0, repair=repair, late_delivery=0, **NET) as world:
        baselines.warm_up(world, xs)
        break_(world, kind)
        run = getattr(baselines, name)
        return np.array([[NAMES.sets(y) for y in run(world, xs, DEADLINE).outputs] for _ in range(rounds)], np.uint8)


def carried(repair: int, kind: str, seed: int, rounds: int) -> tuple[list[np.ndarray], list[float]]:
    """Weights of each round, [rank, element, of whom], and what was received in its own round. Half as many elements,
    of twice the size."""
    xs = [np.full(COUNT // 2, float(BASE**rank)) for rank in range(N)]
    weights, received = [], []
    with tb.simulate(N, seed=seed, min_received=0.0, repair=repair, missing="carry", **NET) as world:
        baselines.warm_up(world, xs)
        break_(world, kind)
        for _ in range(rounds):
            outcome = baselines.tar(world, xs, DEADLINE)
            sums = np.rint(np.array(outcome.outputs) * N).astype(np.int64)
            weights.append((sums[..., None] // BASE ** np.arange(N) % BASE).astype(np.float32) / N)
            received += outcome.received
    return weights, received


def figures(sets: np.ndarray, plain: bool) -> dict[str, float]:
    share = np.maximum(NAMES.counts, 1)[:, None]
    weight = (NAMES.members / (N if plain else share)).astype(np.float32)  # of each rank, by set
    received = float(np.mean(np.maximum(NAMES.counts[sets].astype(float) - 1, 0)) / (N - 1))
    return {**moments((weight[one] for one in sets), len(sets)), "received": received}


def moments(weights: Iterable[np.ndarray], rounds: int) -> dict[str, float]:
    mean, square = np.zeros(1, np.float32), 0.0
    for one in weights:
        mean = mean + one
        square += float(np.mean(np.sum(one**2, axis=-1)))
    mean /= rounds
    variance = (square / rounds - float(np.mean(np.sum(mean**2, axis=-1)))) * rounds / max(rounds - 1, 1)
    off = float(np.mean(np.sum((mean - 1 / N) ** 2, axis=-1)))
    by_rank = mean.reshape(-1, N).mean(axis=0, dtype=np.float64)
    return {
        "scale": float(by_rank.sum()),
        "least": float(N * by_rank.min()),
        "bias": max(off - variance / rounds, 0.0) ** 0.5,
        "deviation": max(variance, 0.0) ** 0.5,
    }


def one(kind: str, seed: int, rounds: int) -> dict[str, dict[str, float]]:
    found, found_for = {}, {}
    for label, (name, repair, plain) in MECHANISMS.items():
        if (name, repair) not in found_for:
            found_for[name, repair] = sets_of(name, repair, kind, seed, rounds)
        found[label] = figures(found_for[name, repair], plain)
    for label, repair in CARRY.items():
        weights, received = carried(repair, kind, seed, rounds)
        found[label] = {**moments(weights, rounds), "received": float(np.mean(received))}
    return found


def main() -> None:
    args = common_sim.arguments(__doc__)
    rounds = 2 if args.quick else 16
    scenarios = SCENARIOS[:2] if args.quick else SCENARIOS
    tasks = [(kind, seed, rounds) for kind in scenarios for seed in args.seeds]
    results = iter(common_sim.side_by_side(one, tasks, args.quick))
    found = {kind: [next(results) for _ in args.seeds] for kind in scenarios}
    print(f"N={N}, {COUNT * 4 >> 10} KiB, seeds {args.seeds}, {rounds} rounds each; median (range) over seeds")
    for kind in scenarios:
        print(f"\nloss: {kind}")
        rows = []
        for label in (*MECHANISMS, *CARRY):
            runs = [run[label] for run in found[kind]]
            row = {"": label, "received %": spread([100 * r["received"] for r in runs], "{:.2f}".format)}
            for name in ("scale", "least", "bias", "deviation"):
                row[name] = spread([r[name] for r in runs], "{:.4f}".format)
            rows.append(row)
        table(rows)
    picture(args.png, lambda axes: draw(axes, found))


def draw(axes, found: dict) -> None:
    for i, label in enumerate((*MECHANISMS, *CARRY)):
        bars = [np.median([run[label]["bias"] for run in found[kind]]) for kind in found]
        axes.bar(np.arange(len(found)) + (i - 3.5) * 0.1, bars, 0.1, label=label)
    axes.set(ylabel="bias of the average", title=f"{N} ranks, bursty loss")
    axes.set_xticks(np.arange(len(found)), list(found))
    axes.legend(fontsize=7)


if __name__ == "__main__":
    main()
