"""A carried job over a faulty network, and its account: what every rank gave, and what every rank got."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tailbound as tb

BURSTS = {"ge_p": 0.05, "ge_r": 0.2, "ge_loss": 1.0}  # Gilbert-Elliott: a fifth of all frames, in bursts of five


@dataclass
class Account:
    """Sums over all rounds: `given` by anybody, `got` by each rank (outputs and corrections; `outputs` alone)."""

    given: np.ndarray
    got: np.ndarray
    outputs: np.ndarray
    received: list[float] = field(default_factory=list)
    behind: int = 0
    skips: int = 0
    rounds: list[int] = field(default_factory=list)
    stats: list[dict[str, Any]] = field(default_factory=list)
    flush_time: float = 0.0

    def stat(self, name: str) -> float:
        return sum(s[name] for s in self.stats)


def run(
    n: int,
    rounds: int,
    count: int,
    seed: int,
    net: dict[str, Any],
    *,
    op: str = "sum",
    dtype: Any = np.float64,
    deadline: float = 0.004,
    late: float = 0.0,
    stop: float = 0.0,
    min_received: float = 0.0,
    flush_every: int = 0,
    fill: str = "zero",
    **options: Any,
) -> Account:
    """`late`: the last rank begins every third round so many seconds late. `stop`: rank 1 stops so long, twice. Values
    are integers whose sums are exact, and so is their mean."""
    options = {"missing": "carry", **options}
    account = Account(np.zeros(count), np.zeros((n, count)), np.zeros((n, count)))
    with tb.simulate(n, seed=seed, min_received=min_received, **net, **options) as world:

        def rank(comm: tb.Communicator) -> None:
            me, done, turn = comm.rank, 0, 0
            draw = np.random.default_rng([seed, me])
            while done < rounds:
                x = (n * draw.integers(-1000, 1000, count)).astype(dtype)
                if late and turn % 3 == 2 and me == n - 1:
                    world.sleep(comm, late)
                if stop and me == 1 and turn in (rounds // 3, rounds // 2):
                    world.set(1, None, pause=world.now + stop)
                    world.sleep(comm, stop)
                account.given += x
                out = x if draw.random() < 0.5 else np.full_like(x, 7)
                try:
                    result = comm.all_reduce(x, None if out is x else out, op=op, key="k", deadline=deadline, fill=fill)
                except tb.SkippedTooOften as error:
                    result = error.result
                done, turn = result.round + 1, turn + 1
                account.behind += result.behind
                account.skips += result.verdict == "skip"
                account.received.append(result.received)
                if result.verdict != "skip":
                    account.got[me] += out
                    account.outputs[me] += out
                if flush_every and turn % flush_every == 0 and not late and not stop:
                    account.got[me] += comm.flush("k")
            began = world.now
            account.got[me] += comm.flush("k")
            account.flush_time = max(account.flush_time, world.now - began)
            account.rounds.append(done)

        world.run(rank)
        account.stats = [comm.stats() for comm in world.comms]
        if op == "avg":
            account.given /= n
    return account
