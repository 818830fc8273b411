"""What lost gradients cost a training: scikit-learn's digits over the simulated network, beside the same steps without
any loss.

    python bench/train_digits_sim.py [--quick] [--seeds N]

Setting: 8 ranks, an MLP 64-64-10 (4,810 parameters, one bucket, chunks of 256 elements), batches of 32 a rank, 240
steps. Frames are lost independently, 5 % or 20 %, and not repaired: a chunk crosses the network twice. What did not
arrive is zero in the gradient, as the library leaves it, and every rank trains its own copy of the weights on what it
got. After the last step the weights are averaged exactly, and that model is judged on the 359 test images.

    iid                 images dealt out at random
    skewed + straggler  images sorted by digit, so that a rank sees one or two digits only; rank 7, which alone has the
                        nines, issues at 0.98 of the deadline in each step, and its contribution is always too late

A seed decides about weights, split, batches and losses; the lossless run of the same seed is the pair that differences
are taken with. Intervals are of 95 %, by Student's t over the seeds. `apart`: the ranks' weights before they are
averaged, root mean square distance from their mean over the norm of that mean.
"""

from __future__ import annotations

from itertools import product

import common_sim
import numpy as np
import tailbound as tb
from sim_tools import picture, table
from tailbound.demo_model import Mlp, Shard, load_digits

N, LAYERS, BATCH = 8, (64, 64, 10), 32
DEADLINE, LATE = 0.001, 0.00098
RATES = {"sgd": 0.2, "adam": 0.003}
LOSSES = (0.05, 0.20)
DATA = ("iid", "skewed + straggler")


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


def exactly(gradients: np.ndarray) -> None:
    gradients[:] = gradients.mean(axis=0)


class Lossy:
    """The library's average over the simulated network, without repair."""

    def __init__(self, loss: float, late: bool, seed: int) -> None:
        self.world = tb.simulate(N, seed=seed, mtu=1088, loss=loss, repair=0, min_received=0.0)
        self.late, self.received = late, []

    def __call__(self, gradients: np.ndarray) -> None:
        works = []
        for comm in self.world.comms:
            if self.late and comm.rank == N - 1:
                self.world.advance(LATE)
            works.append(comm.all_reduce_async(gradients[comm.rank], op="avg", key="gradient", deadline=DEADLINE))
        self.received += [work.wait().received for work in works]


def train(data: str, optimizer: str, loss: float, seed: int, steps: int) -> dict[str, float]:
    images = load_digits(seed)
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
    average = Lossy(loss, data != "iid", seed) if loss else exactly
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


def main() -> None:
    args = common_sim.arguments(__doc__, seeds=20)
    steps = 20 if args.quick else 240
    cases = list(product(DATA, RATES, (0.0, *LOSSES)))
    tasks = [(*case, seed, steps) for case in cases for seed in args.seeds]
    results = iter(common_sim.side_by_side(train, tasks, args.quick))
    found = {case: [next(results) for _ in args.seeds] for case in cases}
    print(f"{N} ranks, {steps} steps, seeds {args.seeds[0]} to {args.seeds[-1]}; differences: lossy less lossless")
    rows = []
    for data, optimizer, loss in cases:
        runs, pair = found[data, optimizer, loss], found[data, optimizer, 0.0]
        accuracy, entropy = (np.array([r[k] for r in runs]) for k in ("accuracy", "cross-entropy"))
        row = {
            "data": data,
            "step": optimizer,
            "loss": f"{100 * loss:g} %" if loss else "none",
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
    for i, loss in enumerate((0.0, *LOSSES)):
        places = np.arange(len(kinds)) + (i - 1) * 0.25
        values = [[r["accuracy"] * 100 for r in found[(*kind, loss)]] for kind in kinds]
        axes.bar(places, [np.mean(v) for v in values], 0.22, label=f"loss {loss:.0%}" if loss else "lossless")
        for place, points in zip(places, values, strict=True):
            axes.plot([place] * len(points), points, ".", color="k", markersize=2)
    axes.set(
        ylabel="test accuracy, %", ylim=(min(r["accuracy"] * 100 for runs in found.values() for r in runs) - 2, 100)
    )
    axes.set_xticks(np.arange(len(kinds)), [f"{data}\n{optimizer}" for data, optimizer in kinds])
    axes.legend(fontsize=8, loc="lower left")


if __name__ == "__main__":
    main()
