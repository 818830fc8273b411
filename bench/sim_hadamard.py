"""What the Hadamard transform does to the error of an average, by how frames are lost.

    python bench/sim_hadamard.py [--quick] [--seeds N] [--png FILE]

8 ranks, nothing is repaired (repair=0): what is lost stays lost, in both stages, and is the same with and without the
transform. Gradients have 12 layers whose sizes differ by orders and whose magnitudes by up to ten, half of each
gradient common to all ranks, one layer sparse (a lookup table). The error of a layer is |x - mean| / |mean| over its
elements, against the exact mean of all ranks. A transformed block spreads its error evenly: a layer far smaller than
what it shares a block with is better off without. Hence the second table, where each layer is divided by its magnitude
first (a number that all ranks share) and multiplied after; and the third, where all are of one magnitude.

loss       scattered: each frame by itself; bursty: 8 frames in a row in the mean; contiguous: 100 in a row
received   share of the other ranks' contributions in the output, mean over ranks and rounds
whole      error of the gradient as a whole, root of the mean square over ranks and rounds
p99, worst over all layers, ranks and rounds of a seed. Median of the seeds, in brackets the least and the largest

The last table is of hadamard="auto": 15 rounds without loss, 45 with, 60 without, an eighth of the tensor; all layers
of one magnitude. `on`: in which of the rounds with loss it began, `off`: in which after them it ended ("never": not at
all, "stays": not within 60), on all ranks the same round; the worst layer's error in rounds with loss, plain and
transformed, p99 of ranks and rounds.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import common_sim
import numpy as np
import tailbound as tb
from sim_tools import picture, spread, table

RANKS, ROUNDS, DEADLINE = 8, 2, 0.02
NET = {"rate": "100G", "delay": "100us", "queue": "64M", "repair": 0, "min_received": 0.0}
MODELS = {"scattered": 1, "bursty": 8, "contiguous": 100}
RATES = (0.01, 0.02, 0.05, 0.10)
LAYERS = (300, 40_000, 64, 20_000, 64, 20_000, 256, 60_000, 256, 30_000, 10, 4_000)
SPARSE = 7
SMALL = tuple(max(10, count // 8 // 50 * 50) for count in LAYERS)  # for the many rounds of the last table
SPANS = {  # orders of magnitude, and whether layers are scaled alike first
    "magnitudes up to ten apart": (1.0, False),
    "magnitudes up to ten apart, layers scaled alike": (1.0, True),
    "all layers of one magnitude": (0.0, False),
}


def gradient(seed: int, rank: int, turn: int, span: float, layers: tuple[int, ...] = LAYERS) -> np.ndarray:
    common, own = np.random.default_rng([seed, turn]), np.random.default_rng([seed, turn, rank + 1])
    scales = 10.0 ** np.random.default_rng(seed).uniform(-span, 0, len(layers))
    pieces = []
    for i, (count, scale) in enumerate(zip(layers, scales, strict=True)):
        x = (common.standard_normal(count) + own.standard_normal(count)) * scale
        if i == SPARSE:  # rows of 50, of which a batch touches one in twenty
            x *= np.repeat(common.random(count // 50) < 0.05, 50) * 20**0.5
        pieces.append(x)
    return np.concatenate(pieces).astype(np.float32)


def network(model: str, rate: float) -> dict:
    length = MODELS[model]
    return {"loss": rate} if length == 1 else {"ge_p": rate / (1 - rate) / length, "ge_r": 1 / length, "ge_loss": 1}


def one(model: str, rate: float, span: tuple[float, bool], hadamard: bool, seed: int) -> dict:
    """The figures of one seed's rounds."""
    ends = np.cumsum(LAYERS)[:-1]
    errors, whole, received = [], [], []
    with tb.simulate(RANKS, seed=seed, hadamard=hadamard, **NET) as world:
        world.set(**network(model, rate))
        for turn in range(ROUNDS):
            xs = [gradient(seed, rank, turn, span[0]) for rank in range(RANKS)]
            mean = np.mean(xs, 0, dtype=np.float64)
            if span[1]:  # by numbers that all ranks share, such as a layer's size in an earlier result
                sizes = [np.sqrt(np.mean(np.square(piece))) for piece in np.split(xs[0], ends)]
                scale = np.repeat(sizes, LAYERS).astype(np.float32)
                xs = [x / scale for x in xs]
            works = [
                comm.all_reduce_async(x, op="avg", deadline=DEADLINE) for comm, x in zip(world.comms, xs, strict=True)
            ]
            received += [work.wait().received for work in works]
            if span[1]:
                xs = [x * scale for x in xs]
            for x in xs:
                pairs = zip(np.split(x - mean, ends), np.split(mean, ends), strict=True)
                errors += [np.linalg.norm(difference) / np.linalg.norm(right) for difference, right in pairs]
                whole.append(np.linalg.norm(x - mean) / np.linalg.norm(mean))
    return {
        "received": float(np.mean(received)),
        "whole": float(np.sqrt(np.mean(np.square(whole)))),
        "p99": float(np.quantile(errors, 0.99)),
        "worst": float(max(errors)),
    }


def automatic(model: str, rate: float, seed: int) -> dict:
    """When hadamard="auto" switches, and the worst layer's error before and after."""
    ends, before, lossy, after = np.cumsum(SMALL)[:-1], 15, 45, 60
    errors, modes = {False: [], True: []}, []
    same = [gradient(seed, rank, 0, 0.0, SMALL) for rank in range(RANKS)]
    mean = np.mean(same, 0, dtype=np.float64)
    with tb.simulate(RANKS, seed=seed, hadamard="auto", late_delivery=0, **NET) as world:
        for turn in range(before + lossy + after):
            if turn == before and rate:
                world.set(**network(model, rate))
            if turn == before + lossy:
                world.set(loss=0, ge_p=0, ge_r=1, ge_loss=0)
            xs = [x.copy() for x in same]
            counts = [comm.stats()["transformed"] for comm in world.comms]
            works = [
                comm.all_reduce_async(x, op="avg", key="g", deadline=DEADLINE)
                for comm, x in zip(world.comms, xs, strict=True)
            ]
            for work in works:
                work.wait()
            on = {comm.stats()["transformed"] - count for comm, count in zip(world.comms, counts, strict=True)}
            assert len(on) == 1, f"round {turn}: ranks run it in different modes"
            modes.append(bool(on.pop()))
            if before <= turn < before + lossy:
                for x in xs:
                    pairs = zip(np.split(x - mean, ends), np.split(mean, ends), strict=True)
                    errors[modes[-1]].append(max(np.linalg.norm(d) / np.linalg.norm(right) for d, right in pairs))
    end = before + lossy
    return {
        "on": modes.index(True) - before if any(modes) else None,
        "off": modes.index(False, end) - end if any(modes) and not all(modes[end:]) else None,
        "plain": float(np.quantile(errors[False], 0.99)),
        "transformed": float(np.quantile(errors[True], 0.99)) if errors[True] else float("nan"),
    }


def auto_table(seeds: list[int], quick: bool) -> None:
    models, rates = (["bursty"], (0.05,)) if quick else (MODELS, (0.0, 0.01, 0.02, 0.05, 0.10))
    cases = [(model, rate) for model in models for rate in rates]
    found = common_sim.side_by_side(automatic, [(*case, seed) for case in cases for seed in seeds], quick)
    print('\nhadamard="auto", hadamard_loss 2 %, hadamard_ahead 8 rounds')
    rows = []
    for i, (model, rate) in enumerate(cases):
        runs = found[i * len(seeds) : (i + 1) * len(seeds)]
        on, off = [r["on"] for r in runs if r["on"] is not None], [r["off"] for r in runs if r["off"] is not None]
        row = {"loss": model, "frames %": f"{100 * rate:g}", "seeds on": f"{len(on)} of {len(runs)}"}
        row["on"] = spread(on, "{:.0f}".format) if on else "never"
        row["off"] = spread(off, "{:.0f}".format) if off else "stays" if on else ""
        row["plain"] = spread([r["plain"] for r in runs], "{:.2f}".format)
        shown = [r["transformed"] for r in runs if r["on"] is not None]
        row["transformed"] = spread(shown, "{:.2f}".format) if shown else ""
        rows.append(row)
        assert rate or not on, "switched on without any loss"
    table(rows)


def draw(axes, by_case: dict, models: list[str], rates: tuple[float, ...]) -> None:
    span = next(iter(SPANS.values()))
    for model, style in zip(models, ("-", "--", ":"), strict=False):
        for on, colour in ((False, "tab:red"), (True, "tab:blue")):
            worst = [np.median([r["worst"] for r in by_case[model, rate, span, on]]) for rate in rates]
            label = f"{model}, {'with' if on else 'without'} transform"
            axes.plot([100 * rate for rate in rates], worst, style, color=colour, marker="o", label=label)
    axes.set(xlabel="frames lost, %", ylabel="relative error of the worst layer", title=f"{RANKS} ranks, no repair")
    axes.legend(fontsize=7)


def speed() -> None:
    """The transform beside memcpy, where the compute bench is built."""
    program = Path(__file__).resolve().parent.parent / "build" / "bench" / "compute_bench"
    if not program.exists():
        return
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    print("\nGB/s per core, read and written, and its ratio to memcpy's, by block length (compute_bench):")
    print("\n".join(line for line in done.stdout.splitlines() if "forward" in line or "float32" in line))


def main() -> None:
    args = common_sim.arguments(__doc__)
    rates = (0.05,) if args.quick else RATES
    models = ["bursty"] if args.quick else list(MODELS)
    cases = [(m, rate, span, on) for span in SPANS.values() for m in models for rate in rates for on in (False, True)]
    found = common_sim.side_by_side(one, [(*case, seed) for case in cases for seed in args.seeds], args.quick)
    by_case = {case: found[i * len(args.seeds) : (i + 1) * len(args.seeds)] for i, case in enumerate(cases)}
    print(f"{RANKS} ranks, {sum(LAYERS)} float32 in {len(LAYERS)} layers, seeds {args.seeds}, {ROUNDS} rounds each")
    for name, span in SPANS.items():
        print(f"\n{name}: relative errors")
        rows = []
        for case in cases:
            model, rate, of, on = case
            if of != span:
                continue
            row = {"loss": model, "frames %": f"{100 * rate:g}", "transform": "yes" if on else "no"}
            row["received %"] = f"{100 * np.median([r['received'] for r in by_case[case]]):.2f}"
            row |= {
                what: spread([r[what] for r in by_case[case]], "{:.3f}".format) for what in ("whole", "p99", "worst")
            }
            rows.append(row)
        table(rows)
    auto_table(args.seeds, args.quick)
    if not args.quick:
        speed()
    picture(args.png, lambda axes: draw(axes, by_case, models, rates))


if __name__ == "__main__":
    main()
