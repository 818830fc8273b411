"""Averages over the simulated network by other means than ours, for comparison: the same frames, credit, pacing and
loss, and for all but `tar` the library's bounded send and recv.

tar        the library's all_reduce: transpose all-reduce, one bounded operation
exact      the same, over a reliable transport: selective repeat to the end (deadline = inf)
ring       ring all-reduce: reduce-scatter in N-1 hops, all-gather in N-1 hops, each a bounded message of one segment of
           the tensor to the next rank. Hop h of 2(N-1) must be over at (h+1)/2(N-1) of the deadline; what a hop does
           not use is the next one's. A rank adds its own part to what arrived of a segment and passes that on: where a
           partial sum was lost, everything in it is lost.
exact_ring ring with reliable hops
p2p        parameter-server style, every rank a server for itself: each sends its whole tensor to every peer, one
           bounded message each, and averages what arrived
server     one parameter server, rank 0: everybody sends it the whole tensor, within half of the deadline; it sends the
           average back

All of them average what arrived: sums are divided by the count of the contributions in them, element by element. For
ring and server the counts go from rank to rank outside of the network and cost nothing, which is in their favour. What
did not arrive at all is zero, as it is in the library's output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tailbound as tb


@dataclass
class Outcome:
    """outputs: the average at each rank. took: virtual seconds at each rank. received: share of the others'
    contributions in each rank's average, where the mechanism itself knows it."""

    outputs: list[np.ndarray]
    took: list[float]
    received: list[float]


def warm_up(world: tb.World, xs: Sequence[np.ndarray], rounds: int = 5) -> None:
    """Round trips and the cost of a byte become known, as they would be in a job that has run for a while."""
    for _ in range(rounds):
        for work in [comm.barrier_async() for comm in world.comms]:
            work.wait()
        exact(world, xs)


def tar(world: tb.World, xs: Sequence[np.ndarray], deadline: float | str, key: str = "tar") -> Outcome:
    outputs = [np.empty_like(x) for x in xs]
    works = [
        comm.all_reduce_async(x, out, op="avg", key=key, deadline=deadline)
        for comm, x, out in zip(world.comms, xs, outputs, strict=True)
    ]
    results = [work.wait() for work in works]
    return Outcome(outputs, [r.elapsed for r in results], [r.received for r in results])


def exact(world: tb.World, xs: Sequence[np.ndarray], deadline: float | str = math.inf) -> Outcome:
    return tar(world, xs, math.inf, key="exact")


def ring(world: tb.World, xs: Sequence[np.ndarray], deadline: float) -> Outcome:
    n, edges = len(xs), np.linspace(0, xs[0].size, len(xs) + 1).astype(int)
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    hops = 2 * (n - 1)
    sent_counts: dict[tuple[int, int], np.ndarray] = {}  # (rank, hop) -> ranks in each element that it sent

    def rank(comm: tb.Communicator) -> tuple[np.ndarray, float, np.ndarray]:
        me, began = comm.rank, world.now
        left, right = (me - 1) % n, (me + 1) % n
        total, counts = xs[me].copy(), np.ones(xs[me].size, np.uint8)
        ends = [(hop + 1) / hops * deadline for hop in range(hops)]
        takes = [parts[(me - hop - 1) % n] for hop in range(hops)]
        boxes = [np.empty(part.stop - part.start, np.float32) for part in takes]
        receives = [_begin(comm.recv_async, boxes[hop], left, hop, ends[hop]) for hop in range(hops)]
        sends = []
        for hop in range(hops):
            gives, part = parts[(me - hop) % n], takes[hop]
            sent_counts[me, hop] = counts[gives].copy()
            sends.append(_begin(comm.send_async, total[gives], right, hop, ends[hop] - (world.now - began)))
            came = _came(receives[hop], boxes[hop])
            theirs = np.where(came, sent_counts.get((left, hop), np.uint8(0)), np.uint8(0))
            if hop < n - 1:
                total[part] += np.where(came, boxes[hop], 0)
                counts[part] += theirs
            else:  # the segments are finished: what comes replaces
                total[part], counts[part] = np.where(came, boxes[hop], 0), theirs
        took = world.now - began
        for send in sends:
            if send is not None:
                send.wait()
        return total / np.maximum(counts, 1), took, counts

    outputs, took, counts = zip(*world.run(rank), strict=True)
    return Outcome(list(outputs), list(took), [_received(c, n) for c in counts])


def exact_ring(world: tb.World, xs: Sequence[np.ndarray], deadline: float = math.inf) -> Outcome:
    return ring(world, xs, math.inf)


def p2p(world: tb.World, xs: Sequence[np.ndarray], deadline: float) -> Outcome:
    n = len(xs)
    gathers = [_Gather(comm, [p for p in range(n) if p != comm.rank], xs[comm.rank], deadline) for comm in world.comms]
    sends = [
        _begin(comm.send_async, xs[comm.rank], (comm.rank - i) % n, 0, deadline)
        for i in range(1, n)
        for comm in world.comms
    ]
    averages = [gather.average() for gather in gathers]
    for send in sends:
        if send is not None:
            send.wait()
    counts = [count for _, count in averages]
    return Outcome([mean for mean, _ in averages], [g.took for g in gathers], [_received(c, n) for c in counts])


def server(world: tb.World, xs: Sequence[np.ndarray], deadline: float) -> Outcome:
    n, began = len(xs), world.now
    hub, clients = world.comms[0], world.comms[1:]
    gather = _Gather(hub, [comm.rank for comm in clients], xs[0], deadline / 2)
    boxes = [np.empty_like(xs[0]) for _ in clients]
    receives = [_begin(comm.recv_async, box, 0, 0, deadline) for comm, box in zip(clients, boxes, strict=True)]
    sends = [_begin(comm.send_async, xs[comm.rank], 0, 0, deadline / 2) for comm in clients]
    mean, count = gather.average()
    left = deadline - (world.now - began)
    sends += [_begin(hub.send_async, mean, comm.rank, 0, left) for comm in clients]
    came = [_came(work, box) for work, box in zip(receives, boxes, strict=True)]
    for send in sends:
        if send is not None:
            send.wait()
    outputs = [mean, *(np.where(there, box, 0) for there, box in zip(came, boxes, strict=True))]
    received = [_received(count, n), *(_received(np.where(there, count, 0), n) for there in came)]
    took = [gather.took, *(work.wait().elapsed if work is not None else deadline for work in receives)]
    return Outcome(outputs, took, received)


class _Gather:
    """Whole tensors from several peers, summed at one rank."""

    def __init__(self, comm: tb.Communicator, peers: Sequence[int], own: np.ndarray, deadline: float) -> None:
        self.own, self.deadline, self.took = own, deadline, 0.0
        self.boxes = [np.empty_like(own) for _ in peers]
        self.works = [_begin(comm.recv_async, box, p, 0, deadline) for box, p in zip(self.boxes, peers, strict=True)]

    def average(self) -> tuple[np.ndarray, np.ndarray]:
        total, count = self.own.copy(), np.ones(self.own.size, np.uint8)
        for work, box in zip(self.works, self.boxes, strict=True):
            came = _came(work, box)
            total += np.where(came, box, 0)
            count += came
            self.took = max(self.took, work.wait().elapsed if work is not None else self.deadline)
        return total / count, count


def _begin(call: Callable[..., tb.Work], *args: Any) -> tb.Work | None:
    try:
        return call(*args)
    except tb.ArgumentError:  # less time is left than a message was measured to take: nothing is sent
        return None


def _came(work: tb.Work | None, box: np.ndarray) -> np.ndarray:
    return np.zeros(box.size, bool) if work is None else work.wait().mask()


def _received(count: np.ndarray, n: int) -> float:
    return float(np.mean(np.maximum(count.astype(float) - 1, 0)) / (n - 1))
