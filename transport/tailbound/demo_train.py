"""Training one model one way on one rank of `tailbound demo`, and the record of every step."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .comm import Communicator
from .demo_model import Mlp, Shard
from .errors import ArgumentError, SkippedTooOften

RATE = 0.02  # step size of plain gradient descent: without optimizer state there is only the weights to keep together
BATCH = 32
LONGEST = 10.0  # seconds
EVERY = 10  # steps between two snapshots of the weights
COUNTERS = ("data_sent", "repaired", "late", "duplicate", "requests_sent")  # per peer, summed over the peers


@dataclass
class Record:
    """What one rank saw. Lists have one entry a call; times are seconds, `begin` on CLOCK_MONOTONIC, which all ranks of
    a host share. snapshots: (steps done, clock of this run, accuracy on the test images)."""

    step: list[int] = field(default_factory=list)
    begin: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    received: list[float] = field(default_factory=list)
    from_ranks: list[list[float]] = field(default_factory=list)  # what came from each rank; 1 for the own
    hit: list[bool] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    snapshots: list[tuple[int, float, float]] = field(default_factory=list)
    clock: float = 0.0
    stretched: int = 0  # calls that needed a longer deadline than chosen
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))

    def add(self, begin: float, took: float, result: Any) -> None:
        self.step.append(result.round)
        self.begin.append(begin)
        self.took.append(took)
        self.received.append(result.received)
        self.from_ranks.append([result.per_peer.get(rank, 1.0) for rank in range(len(result.per_peer) + 1)])
        self.hit.append(result.deadline_hit)
        self.behind.append(result.behind)
        self.skipped.append(result.verdict == "skip")


class Pauses:
    """Which steps a slow rank is slow in, decided by the step's number alone: the same ones in every run."""

    def __init__(self, seed: int, share: float, seconds: float) -> None:
        self.seed, self.share, self.seconds = seed, share, seconds

    def of(self, step: int) -> float:
        return self.seconds if np.random.default_rng([self.seed, step]).random() < self.share else 0.0


class Trainer:
    """One model under one key. Steps are rounds of that key: a rank that fell behind goes on where the others are."""

    def __init__(
        self, comm: Communicator, data: dict[str, np.ndarray], key: str, deadline: float | str, seed: int
    ) -> None:
        self.comm, self.key, self.deadline = comm, key, deadline
        self.model = Mlp(seed)
        self.shard = Shard(data["x"], data["y"], comm.rank, comm.size, BATCH, seed)
        self.test = data["test_x"], data["test_y"]
        self.gradient = np.empty_like(self.model.flat)
        self.step = 0
        self.record = Record()
        self._due: list[tuple[int, float, np.ndarray]] = []  # snapshots not evaluated yet

    @property
    def exact(self) -> bool:
        return self.deadline == math.inf

    def one_step(self, pause: float = 0.0) -> Any:
        """Gradient of this step's images, averaged over the ranks, applied."""
        begin = time.monotonic()
        self.model.gradient(*self.shard.at(self.step), self.gradient)
        if pause:
            time.sleep(pause)
        result = self._reduce(self.deadline)
        if result.verdict != "skip":
            self.model.flat -= RATE * self.gradient
        self.record.add(begin, time.monotonic() - begin, result)
        self.step = result.round + 1
        return result

    def _reduce(self, deadline: float | str) -> Any:
        try:
            return self.comm.all_reduce(self.gradient, op="avg", key=self.key, deadline=deadline)
        except SkippedTooOften as error:  # the demo goes on: this rank is cut off for now, and will jump
            return error.result
        except ArgumentError:  # below the reserve measured now: the host got slower since the deadline was chosen
            if not isinstance(deadline, float) or deadline > LONGEST:
                raise
            self.record.stretched += 1
            return self._reduce(2 * deadline)

    def run(self, until: int, pauses: Pauses | None = None, *, average: bool = False) -> None:
        """Steps up to `until`, on this run's clock; with `average`, then the weights of all ranks averaged exactly."""
        before, start = self._count(), time.monotonic()
        while self.step < until:
            self.one_step(pauses.of(self.step) if pauses else 0.0)
            if self.comm.rank == 0 and self.step // EVERY > (self.step - 1) // EVERY:
                self._due.append((self.step, self.record.clock + time.monotonic() - start, self.model.flat.copy()))
        if average:
            self.average()
        self.record.clock += time.monotonic() - start
        for name, value in self._count().items():
            self.record.counters[name] += value - before[name]

    def average(self) -> None:
        """Ranks that received different parts drift apart a little; this brings them together, and it waits for all."""
        self.comm.all_reduce(self.model.flat, op="avg", key=f"{self.key}.weights", deadline=math.inf)

    def evaluate(self) -> float:
        """Accuracy now; and that of the snapshots, off the clock."""
        for step, clock, flat in self._due:
            self.record.snapshots.append((step, clock, self.model.accuracy(*self.test, flat)))
        self._due.clear()
        return self.model.accuracy(*self.test)

    def _count(self) -> dict[str, int]:
        peers = self.comm.stats()["peers"].values()
        return {name: sum(peer[name] or 0 for peer in peers) for name in COUNTERS}
