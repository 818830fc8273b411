"""How fast an all-reduce could be at best on the simulated network, given the background that was really there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

_64 = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_DRAWS = 16
_PORTS = 1024  # the source number under which ports draw, native/links/sim_background.c


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _64
    return z ^ z >> 31


def bursts(seed: int, port: int, on: int, off: int, since: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of each burst at this port, in ns, for background set at `since`: as native/links/sim_background.c
    draws them."""
    stream = _mix(_mix((seed + _STEP) & _64) ^ (_PORTS << 32 | port))
    until, burst = since, 0
    while True:
        base = stream + burst * _DRAWS * _STEP
        gap, length = (
            int(-math.log(1 - (_mix((base + (i + 1) * _STEP) & _64) >> 11) * 2.0**-53) * mean)
            for i, mean in enumerate((off, on))
        )
        begin = until + gap
        until = begin + length
        burst += 1
        yield begin, until


def with_queues(
    timeline: Iterator[tuple[int, int]], rate: float, background: float, queue: float
) -> Iterator[tuple[int, int]]:
    """The same bursts, each longer by the time that what it left in a drop-tail queue of so many bytes takes to drain:
    background and our frames stand in it in the same proportion, nobody can pass."""
    for begin, end in timeline:
        yield begin, end + int(min(queue * 8e9 / rate, (end - begin) * background / rate))


class Bound:
    """The earliest end of an all-reduce by which every port has let in what its rank must receive: the shards of the
    others twice, 2(N-1)/N of the tensor with headers. A burst leaves them `share` of the port's rate: what a line's
    worth of frames gets of a queue that the background offers its rate to. (Several senders at once squeeze it out of
    more, and may come out a few per cent below.) What waits in queues, and that stage 2 can only follow stage 1, is
    left out."""

    def __init__(self, timelines: Sequence[Iterator[tuple[int, int]]], rate: float, background: float) -> None:
        self.timelines = [(timeline, [next(timeline)]) for timeline in timelines]
        self.rate, self.share = rate, rate / (rate + background)

    def took(self, start: int, wire_bytes: float, delay: float) -> float:
        """Seconds, for an operation that begins at `start` (ns; operations in order of time), one trip included: the
        second stage can hide behind the first."""
        work = wire_bytes * 8e9 / self.rate  # ns of an empty port
        return max(self._port(timeline, ahead, start, work) for timeline, ahead in self.timelines) / 1e9 + delay

    def _port(
        self, timeline: Iterator[tuple[int, int]], ahead: list[tuple[int, int]], start: int, work: float
    ) -> float:
        while ahead[0][1] <= start:
            ahead[:1] = [] if len(ahead) > 1 else [next(timeline)]
        at, i = float(start), 0
        while True:
            if i == len(ahead):
                ahead.append(next(timeline))
            begin, end = ahead[i]
            free = max(begin - at, 0.0)
            if work <= free:
                return at + work - start
            work, at = work - free, max(at, begin)
            taken = (end - at) * self.share
            if work <= taken:
                return at + work / self.share - start
            work, at, i = work - taken, end, i + 1


def wire_bytes(count: int, n: int, mtu: int = 1472, header: int = 64) -> float:
    """What one rank receives in an all-reduce of `count` float32, headers included."""
    return 2 * (n - 1) / n * count * 4 * mtu / (mtu - header)
