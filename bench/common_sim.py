"""What the sim_*.py scripts share: seeds run side by side, tables, plots, and gradients that name their ranks."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).resolve().parent.parent / "build" / "bench-sim"


def arguments(doc: str | None, seeds: int = 5) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and a few rounds: does it run, not what it says")
    parser.add_argument("--seeds", type=int, default=seeds, metavar="N", help="seeds 1 to N")
    args = parser.parse_args()
    args.began = time.monotonic()
    args.seeds = [1] if args.quick else list(range(1, args.seeds + 1))
    return args


def _quiet() -> None:
    logging.getLogger("tailbound").setLevel(logging.CRITICAL)  # the ranks warn of every loss that is made here


def side_by_side(fn: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], quick: bool = False) -> list[Any]:
    """fn(*task) for each task, in order; a process per core, or this one for a quick look."""
    tasks = list(tasks)
    workers = min(len(os.sched_getaffinity(0)), len(tasks))
    if quick or workers == 1:
        _quiet()
        return [fn(*task) for task in tasks]
    with multiprocessing.get_context("spawn").Pool(workers, initializer=_quiet) as pool:
        return pool.starmap(fn, tasks, chunksize=1)


def spread(values: Sequence[float], form: str = ".4g") -> str:
    """Median and range over the seeds."""
    one, low, high = np.median(values), min(values), max(values)
    return f"{one:{form}}" if len(values) == 1 else f"{one:{form}} ({low:{form}}..{high:{form}})"


class Report:
    """Prints as it goes; plots go to build/bench-sim, quick ones into a folder of their own."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name, self.began, self.out = name, args.began, OUT / "quick" if args.quick else OUT

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def table(self, rows: Sequence[dict[str, Any]]) -> None:
        names = list(rows[0])
        width = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
        for line in (dict(zip(names, names, strict=True)), *rows):
            cells = [
                str(line[n]).rjust(w) if i else str(line[n]).ljust(w)
                for i, (n, w) in enumerate(zip(names, width, strict=True))
            ]
            self.say("  ".join(cells).rstrip())

    def plot(self, draw: Callable[[Any], None], size: tuple[float, float] = (7, 4)) -> None:
        """draw(axes) onto NAME.png, where matplotlib is installed."""
        try:
            import matplotlib

            matplotlib.use("Agg")
            from matplotlib import pyplot
        except ImportError:
            self.say("no plot: matplotlib is not installed")
            return
        figure, axes = pyplot.subplots(figsize=size, constrained_layout=True)
        draw(axes)
        self.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.out / f"{self.name}.png", dpi=110)
        pyplot.close(figure)

    def end(self) -> None:
        self.say(f"({time.monotonic() - self.began:.0f} s)")


class Names:
    """Constant gradients, one number per rank, chosen so that a mean tells which ranks are in it: every set of ranks
    has a mean of its own. So one run of a transport says, for each element at each rank, whose contributions arrived;
    what any gradients would have become follows from that."""

    def __init__(self, n: int) -> None:
        if n > 8:
            raise ValueError("the means of all sets of more than 8 ranks lie too close together")
        members = (np.arange(2**n)[:, None] >> np.arange(n)) & 1 == 1  # row = set, as bits
        counts = np.maximum(members.sum(axis=1), 1)
        gap, seed = 0.0, 0
        while gap < 4e-5:  # a float32 mean is off by 1e-6 at most
            self.value = 1 + np.random.default_rng(seed).random(n)
            means = members @ self.value / counts
            gap, seed = np.diff(np.sort(means)).min(), seed + 1
        self.n, self.members, self.counts = n, members, members.sum(axis=1)
        self.order = np.argsort(means)
        self.means = means[self.order]

    def gradient(self, rank: int, count: int) -> np.ndarray:
        return np.full(count, self.value[rank], np.float32)

    def sets(self, mean: np.ndarray) -> np.ndarray:
        """For each element the set (as bits) of the ranks in it; 0 where nothing arrived."""
        at = np.clip(np.searchsorted(self.means, mean), 1, len(self.means) - 1)
        at -= mean - self.means[at - 1] < self.means[at] - mean
        if np.abs(self.means[at] - mean).max(initial=0) > 1e-5:
            raise ValueError("a value is the mean of no set of ranks")
        return self.order[at]
