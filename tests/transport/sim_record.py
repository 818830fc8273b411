"""What the oracle is told: the calls as their callers saw them, the network, the delivery log; and the contributions
that make a value tell whose data is in it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

DATA, OPEN = 1, 2
DELIVERED, CORRUPTED, TRUNCATED = 0, 3, 4
HEAD = 64
NEVER = np.iinfo(np.int64).max
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
}
FLOATS = ("float64", "float32", "float16", "bfloat16")


def contribution(rank: int, turn: int, count: int, dtype: str, op: str, n: int) -> np.ndarray:
    """Integers, exactly representable, whose sums times n are too. Divisible by every possible count where there is
    room for that, so that renormalised values are exact, and so are several of them in one output; random, so that
    each set of ranks has a value of its own."""
    rng = np.random.default_rng([rank, turn, count])
    if op == "prod":
        return rng.integers(1, 3, count)
    whole = math.lcm(*range(1, n + 1))
    bits = {"float64": 53, "float32": 24}.get(dtype)
    if bits:
        limit = (1 << bits) // (8 * n * n * whole) if bits == 53 else (1 << bits) // (8 * n * whole)
        return whole * rng.integers(-limit + 1, limit, count)
    limit = {"float16": 1000, "bfloat16": 120, "int32": 1 << 31, "uint8": 256}[dtype]
    return rng.integers(0 if dtype == "uint8" else -limit, limit, count)


@dataclass(eq=False)
class Call:
    """One all_reduce of one rank, as its caller saw it."""

    rank: int
    name: str  # of the operation in its job; what ranks match by besides the round
    key: int  # its hash in the log
    dtype: str
    op: str
    deadline: float  # seconds; inf = exact
    ints: np.ndarray  # what it contributed
    issued: int  # ns
    in_place: bool = True
    before: bytes = b""  # the output's bytes when it was issued
    after: bytes = b""  # ... and when it had returned
    result: Any = None
    mask: np.ndarray | None = None
    error: Exception | None = None
    stopped: int = 0  # ns that this rank's process was stopped while the call was under way
    lasting: bool = False  # a named key: later rounds follow it
    changed: bool = False  # the buffer was written after the return

    @property
    def count(self) -> int:
        return len(self.ints)

    @property
    def input(self) -> bytes:
        return self.ints.astype(DTYPES[self.dtype]).tobytes()

    @property
    def returned(self) -> int:
        return self.issued + round(self.result.elapsed * 1e9)

    @property
    def until(self) -> int:
        return self.issued + round(self.deadline * 1e9)


@dataclass(frozen=True)
class Path:
    """What the oracle has to know of the network."""

    n: int
    mtu: int
    trip: int  # ns: a round trip, at most
    rate: float  # bit/s, 0 = infinite
    min_received: float = 0.0  # of every call
    queue: int = 0  # ns that frames may wait in a port when everybody sends at once
    stops: tuple[tuple[int, int, int], ...] = ()  # rank, from, to (ns): its process was stopped
    hostile: bool = False  # a fifth of the frames, or more, is lost

    def stopped(self, rank: int, times: np.ndarray) -> np.ndarray:
        found = np.zeros(np.shape(times), bool)
        for who, start, end in self.stops:
            found |= (who == rank) & (times >= start) & (times <= end)
        return found


@dataclass
class Report:
    """What was found. `wrong` is empty when the contract was kept."""

    operations: int = 0  # calls that returned a result
    rounds: int = 0
    must: int = 0  # chunks (contributions and decided ones) that had to be counted
    counted: int = 0  # ... of these, that were
    values: int = 0  # decided elements compared
    wrong: list[str] = field(default_factory=list)
    kinds: Counter = field(default_factory=Counter)
    seen: list[Any] = field(default_factory=list)  # lossy rounds, for coverage()

    def add(self, kind: str, text: str) -> None:
        self.kinds[kind] += 1
        self.wrong.append(f"{kind}: {text}")


class Log:
    """The delivery log, cut by (key, round); and when each rank heard anything from each other."""

    def __init__(self, lines: np.ndarray) -> None:
        self._arrivals: dict[tuple[int, int], np.ndarray] = {}
        self._all = lines[lines["fate"] == DELIVERED]
        lines = lines[np.isin(lines["type"], (DATA, OPEN))]
        group = lines["key"].astype(np.uint64) << np.uint64(32) | lines["round"].astype(np.uint64)
        order = np.argsort(group, kind="stable")
        self._lines, self._group = lines[order], group[order]

    def of(self, key: int, round_: int) -> np.ndarray:
        want = np.uint64(key << 32 | round_)
        first, last = np.searchsorted(self._group, want, "left"), np.searchsorted(self._group, want, "right")
        return self._lines[first:last]

    def heard(self, src: int, dst: int, since: int, until: int) -> bool:
        if (src, dst) not in self._arrivals:
            pair = self._all[(self._all["src"] == src) & (self._all["dst"] == dst)]
            self._arrivals[src, dst] = np.sort(pair["arrived_ns"].astype(np.int64))
        at = self._arrivals[src, dst]
        return bool(np.searchsorted(at, since, "left") < np.searchsorted(at, until, "right"))


def shard_bounds(n: int, count: int, owner: int, round_: int) -> tuple[int, int]:
    place, (each, more) = (owner + round_) % n, divmod(count, n)
    return place * each + min(place, more), each + (place < more)


def earliest(lines: np.ndarray, times: str, shape: tuple[int, ...], *index: str) -> np.ndarray:
    """Per index the least time; NEVER where there is no line."""
    out = np.full(shape, NEVER, np.int64)
    if len(lines):
        ok = lines["chunk"] < shape[-1]
        lines = lines[ok]
        np.minimum.at(out, tuple(lines[name].astype(np.intp) for name in index), lines[times].astype(np.int64))
    return out


def exact_value(calls: list[Call]) -> np.ndarray:
    one, ints = calls[0], np.array([c.ints for c in calls])
    dtype = DTYPES[one.dtype]
    if one.op == "avg":
        return (ints.sum(0) / len(calls)).astype(dtype)
    found = {"sum": np.sum, "min": np.min, "max": np.max, "prod": np.prod}[one.op](ints, axis=0)
    return found.astype(dtype)
