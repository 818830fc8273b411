"""For sim_*.py scripts that run the same rounds under many seeds: the seeds side by side on all cores, and gradients
that name their ranks. Tables and pictures are in sim_tools.py."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def arguments(doc: str | None, seeds: int = 5, **more: tuple[Any, str]) -> argparse.Namespace:
    """more: options of the script's own, each with its default and what it is."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and a few rounds: does it run, not what it says")
    parser.add_argument("--seeds", type=int, default=seeds, metavar="N", help="seeds 1 to N")
    parser.add_argument("--png", metavar="FILE", help="a picture of it")
    for name, (value, what) in more.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, metavar="X", help=f"{what} (%(default)s)")
    args = parser.parse_args()
    args.seeds = [1] if args.quick else list(range(1, args.seeds + 1))
    return args


# A process per core needs no threads of the linear algebra: they spin while they wait for one another. This is for the
# processes of side_by_side(); this one may have begun with such threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


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
