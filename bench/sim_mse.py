"""Error of the average under one deadline: transpose all-reduce (TAR), whole tensors to every peer (P2P), one parameter
server, and Ring, over the same best-effort frames; then what renormalising and repair each do for TAR.

    python bench/sim_mse.py [--quick] [--seeds N]

Setting: 8 ranks, 10 Gb/s, 20 us, drop-tail ports of 64 KiB, of which bursts of background take their share (10 Gb/s
for 150 us, 450 us apart, means). 512 KiB of float32 per rank. Deadlines: 2 ms, 2.6 times what TAR needs on an empty
network, and 12 ms, in which P2P's four times as many bytes have room as well.

The error is the mean of (result - true mean)^2 over elements and ranks, for gradients of unit variance with correlation
rho between any two ranks. The transport does not look at values, so a run with gradients that name their ranks gives
the set S of contributions in each element at each rank, and the error follows exactly:

    renormalised (mean of S)     E = (1 - rho) (1/|S| - 1/N)             and E = Z = rho + (1 - rho)/N if S is empty
    plain (sum of S, over N)     E = ((1 - rho) m + rho m^2) / N^2       m = N - |S| contributions are missing

CLOSED FORM. Each frame is lost with probability p, independently. An owner that asks N-1 others has |S| = 1 +
Binomial(N-1, 1-p) contributions, and E[1/|S|] = (1 - p^N) / (N (1-p)). So at the owner, and at each rank of P2P, which
has no second step:

    A = (1 - rho) [(1 - p^N) / (N (1-p)) - 1/N]

In TAR and with one server a rank that is not the owner then misses the decided value with probability p:

    TAR = (1 - p (N-1)/N) A + p (N-1)/N Z

In Ring a partial sum that is lost takes all before it along: |S| = k with probability p (1-p)^(k-1) for k < N, and N
with probability (1-p)^(N-1); call that A' = (1 - rho) (E[1/|S|] - 1/N). The finished segment then makes d hops to the
rank d places on, and is there with probability (1-p)^d; a = (1 - (1-p)^N) / (N p) on average over d = 0..N-1:

    Ring = a A' + (1 - a) Z

Published for 500 M entries: TAR 2.47, P2P 9.92, Ring 14.55 (1 : 4.0 : 5.9); what correlation, deadline and estimator
these had is not known.
"""

from __future__ import annotations

import baselines
import common_sim
import numpy as np
import tailbound as tb
from sim_tools import picture, spread, table

N, COUNT = 8, 1 << 17
NET = {"rate": "10G", "delay": "20us", "queue": "64k"}
BACKGROUND = {"bg_rate": "10G", "bg_on": "150us", "bg_off": "450us"}
CORRELATIONS = (0.0, 0.5, 1.0)
DEADLINES = (0.002, 0.012)
MECHANISMS = ("tar", "p2p", "server", "ring")
LABELS = {"tar": "TAR", "p2p": "P2P", "server": "server", "ring": "Ring"}
NAMES = common_sim.Names(N)


def errors(counts: np.ndarray, plain: bool) -> np.ndarray:
    """Mean error for each correlation, given how many contributions each element has."""
    rho = np.array(CORRELATIONS)
    share = np.bincount(counts.ravel(), minlength=N + 1) / counts.size
    have = np.arange(N + 1)
    if plain:
        each = np.outer(1 - rho, N - have) + np.outer(rho, (N - have) ** 2)
        each = each / N**2
    else:
        each = np.outer(1 - rho, 1 / np.maximum(have, 1) - 1 / N)
        each[:, 0] = rho + (1 - rho) / N
    return each @ share


def closed_form(name: str, p: float) -> np.ndarray:
    rho = np.array(CORRELATIONS)
    nothing = rho + (1 - rho) / N
    owner = (1 - rho) * ((1 - p**N) / (N * (1 - p)) - 1 / N)
    if name == "p2p":
        return owner
    if name == "ring":
        k = np.arange(1, N)
        inverse = float(np.sum(p * (1 - p) ** (k - 1) / k)) + (1 - p) ** (N - 1) / N
        there = (1 - (1 - p) ** N) / (N * p) if p else 1.0
        return there * (1 - rho) * (inverse - 1 / N) + (1 - there) * nothing
    missed = p * (N - 1) / N
    return (1 - missed) * owner + missed * nothing


def one(name: str, seed: int, deadline: float, repair: int, rounds: int) -> dict:
    """Frame loss, share received and errors of one seed's rounds."""
    xs = [NAMES.gradient(rank, COUNT) for rank in range(N)]
    gap, average = np.random.default_rng(seed), getattr(baselines, name)
    with tb.simulate(N, seed=seed, min_received=0.0, repair=repair, late_delivery=0, log=True, **NET) as world:
        baselines.warm_up(world, xs)
        world.set(**BACKGROUND)
        line, counts, received = len(world.log()), [], []
        for _ in range(rounds):
            world.advance(gap.exponential(0.001))
            outcome = average(world, xs, deadline)
            counts += [NAMES.counts[NAMES.sets(mean)] for mean in outcome.outputs]
            received += outcome.received
        log = world.log(line)
    data = log[log["type"] == 1]
    counts = np.array(counts)
    return {
        "loss": float(np.mean(data["arrived_ns"] == 0)),
        "received": float(np.mean(received)),
        "renormalised": errors(counts, plain=False),
        "plain": errors(counts, plain=True),
    }


def main() -> None:
    args = common_sim.arguments(__doc__)
    rounds = 1 if args.quick else 4
    deadlines = DEADLINES[:1] if args.quick else DEADLINES
    cases = [(name, deadline, repair) for deadline in deadlines for repair in (0, 1) for name in MECHANISMS]
    tasks = [(name, seed, deadline, repair, rounds) for name, deadline, repair in cases for seed in args.seeds]
    found = common_sim.side_by_side(one, tasks, args.quick)
    by_case = {case: found[i * len(args.seeds) : (i + 1) * len(args.seeds)] for i, case in enumerate(cases)}
    print(f"N={N}, {COUNT * 4 >> 10} KiB per rank, seeds {args.seeds}, {rounds} rounds each; median (range) over seeds")
    for estimator in ("renormalised", "plain"):
        for deadline in deadlines:
            for repair in (0, 1):
                print(f"\n{estimator}, deadline {deadline * 1e3:g} ms, {'with' if repair else 'without'} repair: error")
                rows = []
                best = [np.median([r[estimator][i] for r in by_case["tar", deadline, repair]]) for i in range(3)]
                loss = float(np.median([r["loss"] for r in by_case["tar", deadline, repair]]))
                for name in MECHANISMS:
                    runs = by_case[name, deadline, repair]
                    row = {
                        "": LABELS[name],
                        "lost frames %": spread([100 * r["loss"] for r in runs], "{:.2f}".format),
                        "received %": spread([100 * r["received"] for r in runs], "{:.2f}".format),
                    }
                    for i, rho in enumerate(CORRELATIONS):
                        row[f"rho {rho:g}"] = spread([r[estimator][i] for r in runs], "{:.3g}".format)
                    row["over TAR's"] = " ".join(
                        f"{np.median([r[estimator][i] for r in runs]) / best[i]:.3g}" if best[i] else "-"
                        for i in range(3)
                    )
                    if estimator == "renormalised" and not repair:
                        row["closed form at TAR's loss"] = " ".join(f"{v:.3g}" for v in closed_form(name, loss))
                    rows.append(row)
                table(rows)
    switches(by_case, deadlines)
    picture(args.png, lambda axes: draw(axes, by_case, deadlines[0]))


def switches(by_case: dict, deadlines: tuple[float, ...]) -> None:
    """TAR with and without each of its two means against loss."""
    print("\nTAR, error with: neither, renormalising only, repair only, both")
    rows = []
    for deadline in deadlines:
        for repair in (0, 1):
            for estimator in ("plain", "renormalised"):
                runs = by_case["tar", deadline, repair]
                row = {"deadline": f"{deadline * 1e3:g} ms", "repair": repair, "renormalise": int(estimator != "plain")}
                for i, rho in enumerate(CORRELATIONS):
                    row[f"rho {rho:g}"] = spread([r[estimator][i] for r in runs], "{:.3g}".format)
                rows.append(row)
    table(rows)


def draw(axes, by_case: dict, deadline: float) -> None:
    width = 0.1
    for i, (name, repair) in enumerate((name, repair) for repair in (0, 1) for name in MECHANISMS):
        runs = by_case[name, deadline, repair]
        bars = [max(np.median([r["renormalised"][k] for r in runs]), 1e-7) for k in range(3)]
        label = f"{LABELS[name]}, {'with' if repair else 'no'} repair"
        axes.bar(np.arange(3) + (i - 3.5) * width, bars, width, label=label)
    axes.set(
        yscale="log", ylabel="error, over the gradient's variance", title=f"{N} ranks, deadline {deadline * 1e3:g} ms"
    )
    axes.set_xticks(np.arange(3), [f"correlation {rho:g}" for rho in CORRELATIONS])
    axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.08))


if __name__ == "__main__":
    main()
