"""What rule 13 owes each output: decided chunks of earlier rounds of its key that came after those had returned.

From the delivery log: the first arrival, after the return, of each chunk that the mask lacks. It is in the next output
that is committed. Where the log cannot tell (a stopped rank, a round near its limits) it may be, and where the sum
is not exact (halves), or nobody's output shows the chunk's value, its place is not compared: the share is, always.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from sim_record import DATA, DELIVERED, NEVER, Call, Path, earliest, shard_bounds

KEPT = 4  # rounds, and
AGE = 4_900_000_000  # ns, that a returned round is surely kept (keep_rounds, keep_age)


@dataclass
class Entry:
    """A chunk that came late."""

    at: int  # ns
    part: slice
    sure: bool  # the rank certainly took it
    value: np.ndarray | None  # None: no output shows it


class Late:
    """Per operation and rank, what waits for the next committed output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: dict[tuple[str, int], list[Entry]] = defaultdict(list)

    def take(self, call: Call, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, str]:
        """The output without what came late, which of its elements cannot be compared, and what is wrong."""
        out = np.frombuffer(call.after, dtype).copy()
        opaque = np.zeros(call.count, bool)
        if call.result.verdict == "skip" or call.error is not None:
            return out, opaque, "late values in a round that was not committed" if call.result.late else ""
        mine = self.waiting[call.name, call.rank]
        due = [e for e in mine if e.at <= call.returned]
        self.waiting[call.name, call.rank] = [e for e in mine if e.at > call.returned]
        sure = [e for e in due if e.sure and e.at < call.returned]
        said = round(call.result.late * call.count)
        least, most = self._elements(sure, call.count), self._elements(due, call.count)
        if not least <= said <= most:
            return out, opaque, f"{said} elements came late, the log says {least} to {most}"
        chosen = sure if said == least else due
        for e in due:
            if said not in (least, most) or e.value is None or dtype.itemsize == 2:
                opaque[e.part] = True
        for e in chosen:
            if not opaque[e.part].any():
                out[e.part] -= e.value
        return out, opaque, ""

    def owe(
        self, call: Call, lines: np.ndarray, step: int, values: dict[tuple[int, int], np.ndarray], issues: list[int]
    ) -> None:
        """After the judgement of a round: what came for this call when it was over. (A rank that was stopped returns
        first and reads then what has come meanwhile.)"""
        n, count = self.path.n, call.count
        data = lines[(lines["fate"] == DELIVERED) & (lines["type"] == DATA) & (lines["stage"] == 2)]
        data = data[(data["dst"] == call.rank) & (data["arrived_ns"].astype(np.int64) >= call.issued)]
        later = [t for t in issues if t > call.issued]
        gone = later[KEPT - 1] if len(later) >= KEPT else NEVER
        for owner in range(n):
            first, length = shard_bounds(n, count, owner, call.result.round)
            chunks = -(-length // step)
            at = earliest(data[data["src"] == owner], "arrived_ns", (chunks,), "chunk")
            for c in np.flatnonzero(at < NEVER):
                part = slice(first + c * step, first + min(length, (c + 1) * step))
                if call.mask[part].all():
                    continue
                sure = call.returned < at[c] < min(gone, call.returned + AGE)
                sure &= not bool(self.path.stopped(call.rank, np.array(at[c])))
                self.waiting[call.name, call.rank].append(
                    Entry(int(at[c]), part, bool(sure), values.get((owner, int(c))))
                )

    @staticmethod
    def _elements(entries: list[Entry], count: int) -> int:
        touched = np.zeros(count, bool)
        for e in entries:
            touched[e.part] = True
        return int(touched.sum())
