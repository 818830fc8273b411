"""What a call tells about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

VERDICTS = ("ok", "partial", "skip")
NOT_A_MEMBER = -1.0  # what the core says of the share of a rank that was voted out


def owed(shares: Sequence[float], peers: Sequence[int]) -> dict[int, float]:
    """One stage's shares by rank, without the peers that owed nothing in it (NaN) or are no members (-1)."""
    return {rank: shares[rank] for rank in peers if shares[rank] >= 0}


def means(by_stage: Mapping[int, Mapping[int, float]], peers: Sequence[int]) -> dict[int, float]:
    """Each peer's mean over the stages in which it owed something; 1.0 where it owed nothing at all."""
    shares = {rank: [stage[rank] for stage in by_stage.values() if rank in stage] for rank in peers}
    return {rank: sum(found) / len(found) if found else 1.0 for rank, found in shares.items()}


class LazyMask:
    """A mask that nobody has asked for yet, which most masks remain. A deep copy of it is the array."""

    def __init__(self, make: Callable[[], np.ndarray]) -> None:
        self._make = make

    def __call__(self) -> np.ndarray:
        return self._make()

    def __deepcopy__(self, memo: Any) -> np.ndarray:
        return self._make()


@dataclass(frozen=True)
class Result:
    """What arrived, from whom, in which stage, and what was decided. Fractions are 0..1, times seconds.

    received      mean over elements of (contributions in it - own) / (size - 1); 1.0 = everything of everybody
    verdict       "ok": received is 1, and the own part is in; "partial": less, committed; "skip": below min_received
                  of what live peers owed, or of everything if none is left, not committed (in place x is as it was;
                  out= holds a copy of the input)
    deadline_hit  the deadline ended the call, not the arrival of the last piece
    elapsed       from the call to its end
    deadline      the one that applied, from the call; inf = exact
    round         number of this round of its key; behind = rounds before it that this rank skipped to catch up
    view          number of the list of members that took part (comm.members)
    per_peer      rank -> what arrived here from that peer, mean of the stages in which it owed this rank something; 1.0
                  if there is none (left out: the own rank, and who is no member of the view)
    by_stage      stage -> rank -> fraction; 1 = the peer's contribution to the shard reduced here,
                  2 = the decided shard that the peer owns. Peers that owed nothing in a stage are left out of it.
    out           where the result lies: x, the out= given, or a new array of reduce_scatter and all_gather
    carried       share of this rank's contribution to which values of earlier rounds were added (missing="carry")
    late          share of the output to which decided values of earlier rounds of this key were added, which came too
                  late for those rounds
    abort         time in a link's emergency stop, which is not held against the deadline
    """

    received: float
    verdict: str
    deadline_hit: bool
    elapsed: float
    deadline: float
    round: int
    behind: int
    per_peer: dict[int, float]
    by_stage: dict[int, dict[int, float]]
    out: Any = field(default=None, repr=False, compare=False)
    view: int = 1
    abort: float = 0.0
    late: float = 0.0
    carried: float = 0.0
    _mask: Any = field(default=None, repr=False, compare=False)

    @property
    def per_stage(self) -> dict[int, float]:
        """stage -> mean over the peers that owed something in it; 1.0 where none did."""
        return {stage: sum(peers.values()) / len(peers) if peers else 1.0 for stage, peers in self.by_stage.items()}

    def mask(self) -> np.ndarray:
        """Bool array of the output's shape: True where a decided value arrived. What is False is zero in the output
        (or x, with fill="own"), apart from what came late for earlier rounds (`late`). Every call returns the same
        array."""
        if callable(self._mask):
            object.__setattr__(self, "_mask", self._mask())
        return self._mask

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: plain values and arrays, nothing of the operation or of the caller's export."""
        state = dict(self.__dict__)
        if self._mask is not None:
            state["_mask"] = self.mask()
        if isinstance(self.out, memoryview):
            state["out"] = np.array(self.out)
        return state

    def __str__(self) -> str:
        given = [(share, rank, stage) for stage, peers in self.by_stage.items() for rank, share in peers.items()]
        worst = sorted(one for one in given if one[0] < 1)[:3]
        return (
            f"{self.verdict}: received {self.received:.2%} in {self.elapsed * 1e3:.2f} ms, round {self.round}"
            + (f" ({self.behind} behind)" if self.behind else "")
            + (", deadline hit" if self.deadline_hit else "")
            + (", least from " if worst else "")
            + "; ".join(f"rank {rank}, stage {stage}: {share:.1%}" for share, rank, stage in worst)
        )
