"""What lost gradients cost a training: scikit-learn's digits over the simulated network, beside the same steps without
any loss.

    python bench/train_digits_sim.py [--quick] [--seeds N]

Setting: 8 ranks, an MLP 64-64-10 (4,810 parameters, one bucket, chunks of 256 elements), batches of 32 a rank, 240
steps. Frames are lost independently, 5 % or 20 %, and not repaired: a chunk crosses the network twice. What did not
arrive is zero in the gradient, as the library leaves it, and every rank trains its own copy of the weights on what it
got. After the last step the weights are averaged exactly, and that model is judged on the 359 test images.

    iid                   images dealt out at random
    skewed, mostly late   images sorted by digit, so that a rank sees one or two digits only; rank 7, which alone has
                          the nines, issues at 0.98 of the deadline in two of three steps, drawn by lot, and its
                          contribution to these comes too late
    skewed, always late   the same in each step

    renormalise           means of what came in time; decided values that come late are added to the next mean
    carry                 what an owner did not count is added to the next contribution
    carry, flush          the same, and flush() in every 8th step: its correction is added to that step's mean

A seed decides about weights, split, batches and losses; the lossless run of the same seed is the pair that differences
are taken with. Intervals are of 95 %, by Student's t over the seeds. `apart`: the ranks' weights before they are
averaged, root mean square distance from their mean over the norm of that mean.
"""

from __future__ import annotations

import functools
from itertools import product

import baselines
import common_sim
import numpy as np
import tailbound as tb
from sim_tools import picture, table
from tailbound.demo_model import Mlp, Shard, load_digits

N, LAYERS, BATCH = 8, (64, 64, 10), 32
DEADLINE, LATE = 0.001, 0.00098
RATES = {"sgd": 0.2, "adam": 0.003}
LOSSES = (0.05, 0.20)
DATA = {"iid": 0.0, "skewed, mostly late": 2 / 3, "skewed, always late": 1.0}  # how often rank 7 is late
MEANS = ("renormalise", "carry", "carry, flush")
FLUSH = 8


class Step:
    """Plain gradient descent, or Adam, on the weights of all ranks at once."""

    def __init__(self, kind: str, shape: tuple[int, int]) -> None:
        self.kind, self.turn = kind, 0
        self.first, self.second = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def __call__(self, weights: np.ndarray, gradients: np.ndarray) -> None:
        if self.kind == "sgd":
            weights -= RATES["sgd"] * gradients
            return
        self.turn += 1
        self.first += 0.1 * (gradients - self.first)
        self.second += 0.001 * (gradients**2 - self.second)
        first, second = self.first / (1 - 0.9**self.turn), self.second / (1 - 0.999**self.turn)
        weights -= RATES["adam"] * first / (np.sqrt(second) + 1e-8)


digits = functools.cache(load_digits)  # which parses a file: once a seed and process, not once a training


def exactly(gradients: np.ndarray) -> None:
    gradients[:] = gradients.mean(axis=0)


class Lossy:
    """The library's average over the simulated network, without repair."""

    def __init__(self, loss: float, means: str, late: float, seed: int) -> None:
        missing = means.split(",")[0]
        self.world = tb.simulate(N, seed=seed, mtu=1088, repair=0, min_received=0.0, missing=missing)
        baselines.warm_up(self.world, [np.zeros(5000, np.float32)] * N)
        self.world.set(loss=loss)
        self.flush = FLUSH if "flush" in means else 0
        self.late, self.lot, self.turn, self.received = late, np.random.default_rng(seed), 0, []

    def __call__(self, gradients: np.ndarray) -> None:
        works = []
        for comm in self.world.comms:
            if comm.rank == N - 1 and self.lot.random() < self.late:
                self.world.advance(LATE)
            works.append(comm.all_reduce_async(gradients[comm.rank], op="avg", key="gradient", deadline=DEADLINE))
        self.received += [work.wait().received for work in works]
        self.turn += 1
        if self.flush and self.turn % self.flush == 0:
            gradients += np.array(self.world.run(lambda comm: comm.flush("gradient")))


def train(data: str, optimizer: str, loss: float, means: str, seed: int, steps: int) -> dict[str, float]:
    images = digits(seed)
    x, y = images["x"], images["y"]
    if data == "iid":
        shards = [Shard(x, y, rank, N, BATCH, seed) for rank in range(N)]
    else:
        parts = np.array_split(np.argsort(y, kind="stable"), N)
        shards = [Shard(x[part], y[part], 0, 1, BATCH, seed) for part in parts]
    models = [Mlp(seed, LAYERS) for _ in range(N)]
    weights = np.array([model.flat for model in models])
    for model, row in zip(models, weights, strict=True):
        model.flat = row
    gradients, step = np.empty_like(weights), Step(optimizer, weights.shape)
    average = Lossy(loss, means, DATA[data], seed) if loss else exactly
    for turn in range(steps):
        for model, shard, row in zip(models, shards, gradients, strict=True):
            model.gradient(*shard.at(turn), row)
        average(gradients)
        step(weights, gradients)
    mean = weights.mean(axis=0)
    model = Mlp(seed, LAYERS)
    model.flat = mean
    cross_entropy = model.gradient(images["test_x"], images["test_y"], np.empty_like(mean))
    found = {
        "accuracy": model.accuracy(images["test_x"], images["test_y"]),
        "cross-entropy": cross_entropy,
        "apart": float(np.sqrt(np.mean(np.sum((weights - mean) ** 2, axis=1))) / np.linalg.norm(mean)),
        "received": 1.0,
    }
    if loss:
        found["received"] = float(np.mean(average.received))
        average.world.close()
    return found


def interval(values: np.ndarray, form: str) -> str:
    """Mean and half of the 95 % interval."""
    if len(values) < 2:
        return f"{values.mean():{form}}"
    from scipy import stats

    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():{form}} ± {half:{form.lstrip('+')}}"


def cases() -> list[tuple[str, str, float, str]]:
    """What is trained; the lossless run comes before those that are compared with it."""
    found = []
    for data, optimizer in product(DATA, RATES):
        found.append((data, optimizer, 0.0, "lossless"))
        means = MEANS if data != "iid" else MEANS[:2]
        found += [(data, optimizer, loss, one) for loss, one in product(LOSSES, means)]
    return found


def main() -> None:
    args = common_sim.arguments(__doc__, seeds=20)
    steps = 20 if args.quick else 240
    tasks = [(*case, seed, steps) for case in cases() for seed in args.seeds]
    results = iter(common_sim.side_by_side(train, tasks, args.quick))
    found = {case: [next(results) for _ in args.seeds] for case in cases()}
    print(f"{N} ranks, {steps} steps, seeds {args.seeds[0]} to {args.seeds[-1]}; differences: lossy less lossless")
    rows = []
    for case, runs in found.items():
        data, optimizer, loss, means = case
        pair = found[data, optimizer, 0.0, "lossless"]
        accuracy, entropy = (np.array([r[k] for r in runs]) for k in ("accuracy", "cross-entropy"))
        row = {
            "data": data,
            "step": optimizer,
            "loss": f"{100 * loss:g} %" if loss else "none",
            "missing": means if loss else "",
            "received %": f"{100 * np.mean([r['received'] for r in runs]):.1f}",
            "accuracy %": interval(100 * accuracy, ".2f"),
            "difference": interval(100 * (accuracy - [r["accuracy"] for r in pair]), "+.2f") if loss else "",
            "cross-entropy": interval(entropy, ".4f"),
            "difference ": interval(entropy - [r["cross-entropy"] for r in pair], "+.4f") if loss else "",
            "apart": f"{np.mean([r['apart'] for r in runs]):.3f}",
        }
        rows.append(row)
    table(rows)
    picture(args.png, lambda axes: draw(axes, found))


def draw(axes, found: dict) -> None:
    kinds = list(product(DATA, RATES))
    columns = [(0.0, "lossless"), *product(LOSSES, MEANS)]
    for i, column in enumerate(columns):
        runs = [found.get((*kind, *column), []) for kind in kinds]
        places = np.arange(len(kinds)) + (i - 3) * 0.13
        have = [(place, [100 * r["accuracy"] for r in one]) for place, one in zip(places, runs, strict=True) if one]
        label = f"{column[1]}, loss {column[0]:.0%}" if column[0] else "lossless"
        axes.bar([place for place, _ in have], [np.mean(v) for _, v in have], 0.12, label=label)
    every = [100 * r["accuracy"] for runs in found.values() for r in runs]
    axes.set(ylabel="test accuracy, %", ylim=(min(every) - 2, 100))
    axes.set_xticks(np.arange(len(kinds)), [f"{data}\n{optimizer}" for data, optimizer in kinds], fontsize=7)
    axes.legend(fontsize=7, loc="lower left", ncols=2)


if __name__ == "__main__":
    main()
