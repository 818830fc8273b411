"""The oracle of the simulated contract: from the contributions and the delivery log alone it says what every output must be.

It knows the contract, the wire's chunk geometry and integer arithmetic, and nothing of the core. Contributions are
integers chosen so that the value of a chunk tells *whose* data is in it: sum * N / count (or sum / count) is computed
for every set of ranks, and the set that gives the very bytes is the one that was counted. That set is then held against

* the log: whatever was delivered one round trip before its close is in it, whatever was not delivered is not;
* the rule for the close (rule 2), which bounds how early an owner may give up;
* what the result says: received, per_peer by stage, mask, verdict, and time.

The close of an owner is read from the log: the first moment at which it handed out a chunk that lacks somebody.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
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
    room for that, so that renormalised values are exact; random, so that each set of ranks has a value of its own."""
    rng = np.random.default_rng([rank, turn, count])
    if op == "prod":
        return rng.integers(1, 3, count)
    whole = math.lcm(*range(1, n + 1))
    bits = {"float64": 53, "float32": 24}.get(dtype)
    if bits:
        limit = (1 << bits) // (n * n * whole) if bits == 53 else (1 << bits) // (n * whole)
        return whole * rng.integers(-limit + 1, limit, count)
    limit = {"float16": 1000, "bfloat16": 120, "int32": 1 << 31, "uint8": 256}[dtype]
    return rng.integers(0 if dtype == "uint8" else -limit, limit, count)


@dataclass
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
    changed: bool = False  # the buffer was written after the return

    @property
    def count(self) -> int:
        return len(self.ints)

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
    queue: int = 0  # ns that frames may wait in a port when everybody sends at once
    stops: tuple[tuple[int, int, int], ...] = ()  # rank, from, to (ns): its process was stopped

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
    seen: list[Round] = field(default_factory=list)  # lossy rounds, for coverage()

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


class Round:
    """One round of one operation: the calls that took part in it and the log's lines about it."""

    def __init__(self, path: Path, calls: list[Call], issues: dict[int, list[int]], log: Log, report: Report) -> None:
        self.issues, self.log = issues, log
        self.n, self.trip, self.path, self.report = path.n, path.trip, path, report
        self.calls = {call.rank: call for call in calls}
        one = calls[0]
        self.one, self.dtype, self.count, self.round = one, DTYPES[one.dtype], one.count, one.result.round
        self.step = ((path.mtu - HEAD) & ~7) // self.dtype.itemsize
        self.lines = log.of(one.key, self.round)
        self.ranks = sorted(self.calls)
        self.ints = np.array([self.calls[r].ints for r in self.ranks])
        sets = np.arange(1, 1 << len(self.ranks))
        self.sets = (sets[:, None] >> np.arange(len(self.ranks)) & 1).astype(np.int64)
        self.out = {r: np.frombuffer(c.after, self.dtype) for r, c in self.calls.items()}

    def say(self, kind: str, text: str) -> None:
        self.report.add(kind, f"{self.one.name} round {self.round}: {text}")

    def expected(self, members: np.ndarray, part: slice) -> np.ndarray:
        """Value of the sum or mean over these, in the operation's dtype."""
        count = int(members.sum())
        total = self.ints[:, part].T @ members
        mul, div = (1, count) if self.one.op == "avg" else (self.n, count)
        return (total * mul / div).astype(self.dtype) if mul != div else total.astype(self.dtype)

    def equal(self, members: np.ndarray, part: slice, got: np.ndarray) -> np.ndarray:
        want = self.expected(members, part)
        same = want == got
        if self.one.dtype in ("float16", "bfloat16"):  # inexact after renormalising: one ulp
            one = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[self.one.dtype]
            near = np.abs(want.astype(np.float64) - got.astype(np.float64)) <= one * np.abs(want.astype(np.float64))
            same |= near & (members.sum() != self.n)
        return same

    def decode(self, part: slice, got: np.ndarray, must: np.ndarray, may: np.ndarray) -> np.ndarray | None:
        """The set of ranks whose contributions are in this chunk. Where several fit (tiny chunks of narrow types), one
        that the log allows is taken."""
        fits = self.sets[[bool(self.equal(s, slice(part.start, part.start + 1), got[:1])[0]) for s in self.sets]]
        fits = [s for s in fits if self.equal(s, part, got).all()]
        good = [s for s in fits if (s >= must).all() and (s <= may).all()]
        self.vague |= len(good) > 1
        return (good or fits or [None])[0]

    def coverage(self, rank: int, owners: set[int], sources: set[int]) -> float:
        """Mean over the elements of these owners' shards: the share of these ranks' contributions in what `rank` got."""
        whole = got = 0
        for owner, length, members, masks in self.table:
            if owner in owners:
                whole += length
                got += length * masks[rank] * sum(r in sources for r in members) / len(sources)
        return got / whole if whole else 1.0

    def check(self) -> None:
        self.report.rounds += 1
        self.report.seen.append(self)
        self.table: list[tuple[int, int, list[int], dict[int, bool]]] = []  # owner, elements, whose data, who got it
        arrived = self.lines[self.lines["fate"] == DELIVERED]
        self.opened = np.full(self.n, NEVER)  # when each rank first heard of this round
        heard = arrived[arrived["type"] == OPEN]
        np.minimum.at(self.opened, heard["dst"].astype(np.intp), heard["arrived_ns"].astype(np.int64))
        for r, call in self.calls.items():
            self.opened[r] = min(self.opened[r], call.issued)
        self.foreign = Counter()  # per rank: elements x foreign contributions
        self.elems = Counter()
        self.stage1 = {}
        self.stage2 = defaultdict(dict)
        self.hidden: set[int] = set()
        self.vague = False  # some chunk's bytes fit several sets of ranks
        data = arrived[arrived["type"] == DATA]
        sent = self.lines[(self.lines["type"] == DATA) & (self.lines["stage"] == 2)]
        for owner in range(self.n):
            first, length = shard_bounds(self.n, self.count, owner, self.round)
            if length:
                self.shard(owner, first, length, data, sent[sent["src"] == owner])
        for call in self.calls.values():
            self.told(call)

    def shard(self, owner: int, first: int, length: int, data: np.ndarray, sent: np.ndarray) -> None:
        n, chunks = self.n, -(-length // self.step)
        parts = [slice(first + c * self.step, first + min(length, (c + 1) * self.step)) for c in range(chunks)]
        scatter = data[(data["stage"] == 1) & (data["dst"] == owner)]
        came = earliest(scatter, "arrived_ns", (n, chunks), "src", "chunk")
        came[came < self.opened[owner]] = self.opened[owner]  # data that overtook the first OPEN may be kept, or come again
        handed = earliest(sent, "sent_ns", (chunks,), "chunk")
        gather = data[(data["stage"] == 2) & (data["src"] == owner)]
        reached = earliest(gather, "arrived_ns", (n, chunks), "dst", "chunk")
        mine = self.calls.get(owner)
        if mine:
            came[owner] = mine.issued
            handed = np.minimum(handed, mine.returned)
            reached[owner] = 0
        # which bytes were decided, and that all who have them have the same
        masks, chosen = {}, {}
        for r, call in self.calls.items():
            masks[r] = np.array([call.mask[p].all() for p in parts])
            ragged = [c for c, p in enumerate(parts) if call.mask[p].any() != call.mask[p].all()]
            if ragged:
                self.say("torn", f"rank {r}: mask differs inside chunks {ragged[:4]} of rank {owner}'s shard")
            if call.result.verdict == "skip":
                continue
            for c in np.flatnonzero(~masks[r]):
                if self.out[r][parts[c]].astype(np.float64).any():
                    self.say("value", f"rank {r}: undecided chunk {c} of rank {owner}'s shard is not zero")
            for c in np.flatnonzero(masks[r]):
                got = self.out[r][parts[c]]
                if c not in chosen:
                    chosen[c] = got
                elif chosen[c].tobytes() != got.tobytes():
                    self.say("value", f"ranks differ in chunk {c} of rank {owner}'s shard")
        # whose data is in them
        everyone = np.ones(len(self.ranks), np.int64)
        came = came[self.ranks]
        inside: dict[int, np.ndarray] = {}
        whole = len(self.ranks) == n
        for c, got in chosen.items():
            may = (came[:, c] <= handed[c]).astype(np.int64)
            self.report.values += len(got)
            if whole and may.all() and self.equal(everyone, parts[c], got).all():
                inside[c] = everyone
        lacking = [c for c in chosen if c not in inside]
        close = min((int(handed[c]) for c in lacking), default=NEVER)  # of the chunks that lack somebody
        if lacking and self.one.deadline < np.inf:  # nor later than rule 2 has it, whether or not anybody was left to tell
            close = min(close, *(c.until for c in self.calls.values()))
        for c in lacking:
            must = (came[:, c] <= close - self.trip).astype(np.int64)
            must[self.path.stopped(owner, came[:, c])] = 0  # it was in no position to read it before the close
            may = (came[:, c] <= handed[c]).astype(np.int64)
            found = self.decode(parts[c], chosen[c], must, may)
            where = f"chunk {c} of rank {owner}'s shard"
            if found is None:
                self.say("value", f"{where} is no sum or mean of contributions: {chosen[c][:3]}")
                continue
            inside[c] = found
            for i in np.flatnonzero(must > found):
                self.say("stage 1", f"rank {self.ranks[i]}'s {where} came {(close - came[i, c]) / 1e3:.1f} us before the "
                         f"close at {close} and is not counted")
            for i in np.flatnonzero(found > may):
                self.say("value", f"rank {self.ranks[i]} is counted in {where}, which it did not deliver in time")
            self.report.must += int(must.sum())
            self.report.counted += int((must & found).sum())
        self.close_rule(owner, close, came, [c for c in lacking if c in inside], inside)
        self.report.must += len(self.ranks) * (len(inside) - len(lacking))
        self.report.counted += len(self.ranks) * (len(inside) - len(lacking))
        for c, part in enumerate(parts):
            members = [self.ranks[i] for i in np.flatnonzero(inside[c])] if c in inside else []
            self.table.append((owner, part.stop - part.start, members, {r: bool(m[c]) for r, m in masks.items()}))
        # stage 2: what reached a receiver in time is in its output
        for r, call in self.calls.items():
            for c in range(chunks):
                at = reached[r, c]
                if r != owner and masks[r][c] and at > call.returned:
                    self.say("value", f"rank {r} has chunk {c} of rank {owner}'s shard, which did not arrive in time")
                if r == owner or at == NEVER or at < call.issued:
                    continue
                if (at < call.returned or at <= call.until - self.trip) and not self.path.stopped(r, at):
                    self.report.must += 1
                    self.report.counted += bool(masks[r][c])
                    if not masks[r][c]:
                        kind = "stage 2" if at < call.returned else "early return"
                        self.say(kind, f"chunk {c} of rank {owner}'s shard reached rank {r} {(call.until - at) / 1e3:.1f} "
                                 f"us before its deadline and is not in its output (returned {call.returned})")
            if r == owner and not masks[r].all():
                # a chunk may have been closed for want of anybody's data before this rank issued, but not before half time
                half = (min(x.until for x in self.calls.values()) + int(self.opened[r])) / 2
                lost = [int(c) for c in np.flatnonzero(~masks[r]) if c in chosen or call.issued < half]
                if lost:
                    self.say("value", f"rank {r} lacks chunks {lost[:4]} of its own shard")
            for c in np.flatnonzero(masks[r]):
                if c not in inside:  # only calls that were skipped have it, and those do not show it
                    self.hidden.add(r)
                else:
                    own = inside[c][self.ranks.index(r)]
                    self.foreign[r] += (parts[c].stop - parts[c].start) * int(inside[c].sum() - own)
            self.stage2[r][owner] = masks[r].mean()
        if mine and len(inside) == chunks:
            share = np.mean([inside[c] for c in inside], axis=0)
            self.stage1[owner] = dict(zip(self.ranks, share, strict=True))

    def close_rule(self, owner: int, close: int, came: np.ndarray, lacking: list[int], inside: dict[int, np.ndarray]) -> None:
        """Rule 2: not before everybody's deadline less stage 2 and one round trip. Both are measured by the ranks; the
        oracle allows them twice the ideal and another round trip, at most half the time there is. Where a rank is stopped
        in mid-exchange round trips measure that too: then half the time is all that can be asked."""
        if close == NEVER or not all(self.calls[r].deadline < np.inf for r in self.ranks):
            return
        until = min(c.until for c in self.calls.values())
        start = max(int(self.opened[owner]), min(c.issued for c in self.calls.values()))
        length = shard_bounds(self.n, self.count, owner, self.round)[1]
        ideal = (self.n - 1) * length * self.dtype.itemsize * 8e9 / self.path.rate if self.path.rate else 0
        half = max(until - start, 0) / 2
        allowed = until - (half if self.path.stops else min(half, 2 * ideal + 2 * self.trip + self.path.queue)) - self.trip - self.path.queue
        if close >= allowed:
            return
        for i, r in enumerate(self.ranks):
            lost = sum(not inside[c][i] and close < came[i, c] <= allowed for c in lacking)
            if lost and not self.absent(owner, r, close):
                self.say("closed early", f"rank {owner} closed {(until - close) / 1e3:.1f} us before the deadline; {lost} chunks "
                         f"of rank {r} that came before {(until - allowed) / 1e3:.1f} us were lost")

    def absent(self, owner: int, rank: int, close: int) -> bool:
        """Rule 9: nothing came from it in three rounds; then nobody waits for it."""
        if rank == owner:
            return False
        before = [t for t in self.issues[owner] if t < close]
        return len(before) >= 3 and not self.log.heard(rank, owner, before[-3], close)

    def told(self, call: Call) -> None:
        """The result against what was recomputed from the bytes."""
        r, n, result = call.rank, self.n, call.result
        whole = self.count * (n - 1)
        received = self.foreign[r] / whole if whole else 1.0
        if abs(received - result.received) > 1e-9 and not (self.vague or r in self.hidden):
            self.say("result", f"rank {r} says received={result.received}, its bytes say {received}")
        for peer, said in result.by_stage.get(2, {}).items():
            if abs(self.stage2[r].get(peer, 1.0) - said) > 1e-9:
                self.say("result", f"rank {r} says {said} of rank {peer}'s shard arrived, its mask says {self.stage2[r].get(peer, 1.0)}")
        for peer, said in result.by_stage.get(1, {}).items():
            seen = self.stage1.get(r, {}).get(peer, 0.0 if r in self.stage1 else None)
            if shard_bounds(n, self.count, r, self.round)[1] == 0:
                seen = 1.0
            if seen is not None and abs(seen - said) > 1e-9 and not (self.vague or r in self.hidden):
                self.say("result", f"rank {r} says {said} of rank {peer}'s contribution arrived, its bytes say {seen}")
        if result.verdict == "skip" and not call.error and call.after != call.before_or_input():
            self.say("value", f"rank {r}: skip did not leave the input")
        if (result.verdict == "ok") != (result.received >= 1) and result.verdict != "skip":
            self.say("result", f"rank {r}: verdict {result.verdict} with received {result.received}")


def _input(call: Call) -> bytes:
    return call.ints.astype(DTYPES[call.dtype]).tobytes()


Call.before_or_input = _input  # skip leaves the input in the output, in place or not


def exact_value(calls: list[Call]) -> np.ndarray:
    one, ints = calls[0], np.array([c.ints for c in calls])
    dtype = DTYPES[one.dtype]
    if one.op == "avg":
        return (ints.sum(0) / len(calls)).astype(dtype)
    found = {"sum": np.sum, "min": np.min, "max": np.max, "prod": np.prod}[one.op](ints, axis=0)
    return found.astype(dtype)


def check(path: Path, calls: list[Call], lines: np.ndarray) -> Report:
    """Judges all calls of a run by its delivery log."""
    n, report, log = path.n, Report(), Log(lines)
    rounds: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in calls:
        who = f"{call.name}, rank {call.rank}, issued {call.issued}"
        if call.changed:
            report.add("memory", f"{who}: the buffer changed after the return")
        if call.error is not None:
            if call.in_place and call.after != call.before:
                report.add("value", f"{who}: failed and did not restore its input")
            if call.result is None:
                continue
        report.operations += 1
        rounds[call.name, call.result.round].append(call)
        if call.deadline < np.inf and call.returned > call.until + call.stopped:
            report.add("late", f"{who}: {(call.returned - call.until) / 1e3:.3f} us after its deadline of {call.deadline} s")
    issues = {rank: sorted(c.issued for c in calls if c.rank == rank) for rank in range(n)}
    for (name, round_), group in rounds.items():
        if len({c.rank for c in group}) != len(group):
            report.add("round", f"{name}: a rank returned round {round_} twice")
            continue
        if group[0].deadline < np.inf:
            Round(path, group, issues, log, report).check()
            continue
        report.rounds += 1
        if len(group) < n:
            report.add("exact", f"{name} round {round_}: only ranks {[c.rank for c in group]} returned")
            continue
        want = exact_value(group).tobytes()
        for call in group:
            report.must += n
            report.counted += n
            if call.after != want or call.result.received != 1 or not call.mask.all():
                report.add("exact", f"{name} round {round_}: rank {call.rank} has wrong values")
    return report
