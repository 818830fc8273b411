"""One rank of vs_gloo.py: a process in which both libraries are set up and take turns. torch is imported here only."""

from __future__ import annotations

import itertools
import os
import random
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple


class Plan(NamedTuple):
    """Blocks of calls of one size."""

    size: int  # bytes
    block: int  # calls of one kind in a row
    blocks: int  # of each kind


class Failure(NamedTuple):
    """What a worker sends instead of its figures. A failed one takes the others along: the earliest is the cause."""

    at: float  # time.monotonic(), one clock for all processes of a host
    text: str


class Rank:
    """One worker: both libraries set up, and blocks of calls on a buffer."""

    def __init__(self, rank: int, ranks: int, port: int) -> None:
        import tailbound
        import torch
        import torch.distributed

        self.rank, self.ranks, self.torch = rank, ranks, torch
        torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
        self.comm = tailbound.init()
        self.reduce_gloo = torch.distributed.all_reduce
        self.exact_rounds = int(tailbound.config.Config().get("auto_exact_rounds"))
        self.rounds: dict[str, int] = {}  # per key: rounds behind this rank, from the first one

    def close(self) -> None:
        self.comm.close()
        self.torch.distributed.destroy_process_group()

    def gloo(self, tensor: Any, calls: int) -> dict[str, Any]:
        times = []
        cpu = time.process_time_ns()
        for _ in range(calls):
            begin = time.perf_counter_ns()
            self.reduce_gloo(tensor)
            times.append(time.perf_counter_ns() - begin)
        return {"ns": times, "cpu_ns": time.process_time_ns() - cpu, "received": [1.0] * calls}

    def reduce_tailbound(self, array: Any, key: str) -> Any:
        """With a floor of 0: this measures time, so a machine too busy must not end the run; what was lost is shown."""
        return self.comm.all_reduce(array, key=key, min_received=0)

    def tailbound(self, tensor: Any, calls: int) -> dict[str, Any]:
        """Follows the rounds of the key, as a trainer does: a rank that fell behind jumps over some; they stay None."""
        array, key = tensor.numpy(), f"vs_gloo/{tensor.numel()}"
        first = self.rounds.setdefault(key, 0)
        times: list[int | None] = [None] * calls
        received: list[float | None] = [None] * calls
        cpu = time.process_time_ns()
        while self.rounds[key] < first + calls:
            begin = time.perf_counter_ns()
            result = self.reduce_tailbound(array, key)
            spent = time.perf_counter_ns() - begin
            index = self.rounds[key] + result.behind
            self.rounds[key] = index + 1
            if index < first + calls:
                times[index - first], received[index - first] = spent, result.received
        cpu = time.process_time_ns() - cpu
        self.align(array, key)
        return {"ns": times, "cpu_ns": cpu, "received": received}

    def align(self, array: Any, key: str) -> None:
        """All ranks to the same round: one that jumped in its last call is ahead of the rest. Laggards catch up alone,
        but one that finds a quorum ahead joins the round after their last and would so be ahead itself, two ranks in
        turn for ever. So every other time all take a step together, and it joins the round that the others are in."""
        for turn in itertools.count():
            ends = self.torch.tensor([self.rounds[key], -self.rounds[key]])
            self.reduce_gloo(ends, op=self.torch.distributed.ReduceOp.MAX)
            if int(ends[0]) == -int(ends[1]):
                return
            if turn % 2 or self.rounds[key] < int(ends[0]):
                self.rounds[key] += self.reduce_tailbound(array, key).behind + 1

    def run(self, plan: Plan) -> dict[str, Any]:
        """Every block starts from ones on every rank, so its outcome is ranks ** calls, exactly."""
        tensor = self.torch.empty(plan.size // 4)
        found: dict[str, list[dict[str, Any]]] = {"gloo": [], "tailbound": []}
        kinds = (("gloo", self.gloo), ("tailbound", self.tailbound))
        for _, call in kinds:  # warm-up; under an automatic deadline the first rounds of a key are exact ones
            tensor.zero_()
            call(tensor, self.exact_rounds + 2 if call == self.tailbound else 3)
        order = random.Random(plan.size)  # the same on all ranks: which library goes first in a pair of blocks
        for _ in range(plan.blocks):
            for name, call in order.sample(kinds, len(kinds)):
                tensor.fill_(1.0)
                self.torch.distributed.barrier()
                block = call(tensor, plan.block)
                found[name].append(block)
                # A rank whose own part alone was missed at an owner has received all of the others': ask everybody.
                # A round that was jumped over (None) is missing as well.
                least = self.torch.tensor([min(share or 0.0 for share in block["received"])])
                self.reduce_gloo(least, op=self.torch.distributed.ReduceOp.MIN)
                if float(least[0]) == 1.0:
                    self.verify(name, tensor, float(self.ranks) ** plan.block)
        return found

    def verify(self, name: str, tensor: Any, expected: float) -> None:
        wrong = int((tensor != expected).sum())
        if wrong:
            raise RuntimeError(f"{name}: {wrong} of {tensor.numel()} elements are not {expected} on rank {self.rank}")

    def idle(self, seconds: float) -> float:
        """Cores this process keeps busy while nobody calls: what each library would charge to the other's account."""
        self.torch.distributed.barrier()
        cpu = time.process_time_ns()
        time.sleep(seconds)
        return (time.process_time_ns() - cpu) / 1e9 / seconds


def worker(pipe: Connection, rank: int, ranks: int, ports: tuple[int, int], plans: list[Plan]) -> None:
    try:
        os.environ.update(
            TAILBOUND_RANK=str(rank), TAILBOUND_SIZE=str(ranks), TAILBOUND_LOCAL_RANK=str(rank),
            TAILBOUND_LOCAL_SIZE=str(ranks), TAILBOUND_MASTER_ADDR="127.0.0.1", TAILBOUND_MASTER_PORT=str(ports[1]),
        )  # fmt: skip
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it looks up the host's name, which may lead anywhere
        me = Rank(rank, ranks, ports[0])
        pipe.send(repr(me.comm))
        for entry in plans:
            pipe.send(me.run(entry))
        pipe.send(me.idle(0.5))
        me.close()
    except BaseException:  # the parent prints it, once, with the rank's number
        pipe.send(Failure(time.monotonic(), traceback.format_exc()))
