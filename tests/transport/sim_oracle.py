"""The oracle of the simulated contract: from contributions and delivery log alone it says what every output must be.

It knows the contract, the wire's chunk geometry and integer arithmetic, and nothing of the core. Contributions are
integers chosen so that the value of a chunk tells *whose* data is in it: sum * N / count (or sum / count) is computed
for every set of ranks, and the set that gives the very bytes is the one that was counted. That set is then held against

* the log: whatever was delivered one round trip before its close is in it, whatever was not delivered is not;
* the rule for the close (rule 2), which bounds how early an owner may give up;
* what the result says: received, per_peer by stage, mask, verdict, and time.

The close of an owner is read from the log: the first moment at which it handed out a chunk that lacks somebody.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from sim_late import Late
from sim_record import (
    DATA,
    DELIVERED,
    DTYPES,
    HEAD,
    NEVER,
    OPEN,
    Call,
    Log,
    Path,
    Report,
    earliest,
    exact_value,
    shard_bounds,
)


class Round:
    """One round of one operation: the calls that took part in it and the log's lines about it."""

    def __init__(
        self, path: Path, calls: list[Call], issues: dict[int, list[int]], log: Log, report: Report, late: Late
    ) -> None:
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
        self.late, self.values = late, {}
        self.out, self.opaque = {}, {}
        for r, call in self.calls.items():
            self.out[r], self.opaque[r], wrong = late.take(call, self.dtype)
            if wrong:
                self.say("late value", f"rank {r}: {wrong}")

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
        """Mean over the elements of these owners' shards: the share of these ranks' data in what `rank` got."""
        whole = got = 0
        for owner, length, members, masks in self.table:
            if owner in owners:
                whole += length
                got += length * masks[rank] * sum(r in sources for r in members) / len(sources)
        return got / whole if whole else 1.0

    def check(self, of_key: list[Call]) -> None:
        """`of_key`: all calls of this operation, of every round."""
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
        self.bare: set[int] = set()  # ranks with a decided value that lacks their own part
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
            if self.one.lasting:
                mine = sorted(c.issued for c in of_key if c.rank == call.rank)
                self.late.owe(call, self.lines, self.step, self.values, mine)

    def shard(self, owner: int, first: int, length: int, data: np.ndarray, sent: np.ndarray) -> None:
        n, chunks = self.n, -(-length // self.step)
        parts = [slice(first + c * self.step, first + min(length, (c + 1) * self.step)) for c in range(chunks)]
        scatter = data[(data["stage"] == 1) & (data["dst"] == owner)]
        came = earliest(scatter, "arrived_ns", (n, chunks), "src", "chunk")
        came[came < self.opened[owner]] = self.opened[owner]  # data before the first OPEN: kept, or it comes again
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
                if self.out[r][parts[c]].astype(np.float64).any() and not self.opaque[r][parts[c]].any():
                    self.say("value", f"rank {r}: undecided chunk {c} of rank {owner}'s shard is not zero")
            for c in np.flatnonzero(masks[r]):
                got = self.out[r][parts[c]]
                if self.opaque[r][parts[c]].any():
                    continue
                if c not in chosen:
                    chosen[c] = got
                elif chosen[c].tobytes() != got.tobytes():
                    self.say("value", f"ranks differ in chunk {c} of rank {owner}'s shard")
        self.values |= {(owner, int(c)): got for c, got in chosen.items()}
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
        if lacking and self.one.deadline < np.inf:  # nor later than rule 2 has it, even if nobody was told
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
                early = (close - came[i, c]) / 1e3
                self.say(
                    "stage 1",
                    f"rank {self.ranks[i]}: {where} came {early:.1f} us before the close at {close}, not counted",
                )
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
                if at >= call.returned and self.absent(r, owner, call.returned):
                    continue  # nobody waits for an absent rank: what it gives comes late
                # A rank that was stopped takes its clock for late, and ends up to an eighth of its time earlier.
                margin = (call.until - call.issued) / 8 if self.path.stops else 0
                if (at < call.returned or at <= call.until - self.trip - margin) and not self.path.stopped(r, at):
                    self.report.must += 1
                    self.report.counted += bool(masks[r][c])
                    if not masks[r][c]:
                        kind = "stage 2" if at < call.returned else "early return"
                        early = (call.until - at) / 1e3
                        self.say(
                            kind,
                            f"chunk {c} of rank {owner}'s shard reached rank {r} {early:.1f} us before its deadline "
                            f"and is not in its output (returned {call.returned})",
                        )
            if r == owner and not masks[r].all():
                # closed for want of anybody's data before this rank issued: possible, but not before half time
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
                    if not own:
                        self.bare.add(r)
            self.stage2[r][owner] = masks[r].mean()
        if mine and len(inside) == chunks:
            share = np.mean([inside[c] for c in inside], axis=0)
            self.stage1[owner] = dict(zip(self.ranks, share, strict=True))

    def close_rule(
        self, owner: int, close: int, came: np.ndarray, lacking: list[int], inside: dict[int, np.ndarray]
    ) -> None:
        """Rule 2: not before everybody's deadline less stage 2 and one round trip. Both are measured by the ranks; the
        oracle allows them twice the ideal each way and another round trip, at most half the time there is. Where a
        rank is stopped in mid-exchange round trips measure that too, and where every fifth frame is lost a byte's
        cost is that of its repairs: then half the time is all that can be asked."""
        if close == NEVER or not all(self.calls[r].deadline < np.inf for r in self.ranks):
            return
        until = min(c.until for c in self.calls.values())
        start = max(int(self.opened[owner]), min(c.issued for c in self.calls.values()))
        length = shard_bounds(self.n, self.count, owner, self.round)[1]
        ideal = (self.n - 1) * length * self.dtype.itemsize * 8e9 / self.path.rate if self.path.rate else 0
        half = max(until - start, 0) / 2
        usual = 4 * ideal + 2 * self.trip + self.path.queue
        reserve = half if self.path.stops or self.path.hostile else min(half, usual)
        allowed = until - reserve - self.trip - self.path.queue
        if close >= allowed:
            return
        for i, r in enumerate(self.ranks):
            lost = sum(not inside[c][i] and close < came[i, c] <= allowed for c in lacking)
            if lost and not self.absent(owner, r, close):
                early, limit = (until - close) / 1e3, (until - allowed) / 1e3
                self.say(
                    "closed early",
                    f"rank {owner} closed {early:.1f} us before the deadline; {lost} chunks of rank {r} "
                    f"that came at least {limit:.1f} us before it were lost",
                )

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
            seen = self.stage2[r].get(peer, 1.0)
            if abs(seen - said) > 1e-9:
                self.say("result", f"rank {r} says {said} of rank {peer}'s shard arrived, its mask says {seen}")
        for peer, said in result.by_stage.get(1, {}).items():
            seen = self.stage1.get(r, {}).get(peer, 0.0 if r in self.stage1 else None)
            if shard_bounds(n, self.count, r, self.round)[1] == 0:
                seen = 1.0
            if seen is not None and abs(seen - said) > 1e-9 and not (self.vague or r in self.hidden):
                self.say("result", f"rank {r} says {said} of rank {peer}'s contribution arrived, its bytes say {seen}")
        if result.verdict == "skip" and not call.error and call.after != call.input:
            self.say("value", f"rank {r}: skip did not leave the input")
        self.verdict(call)

    def verdict(self, call: Call) -> None:
        """Rule 18: ok is everything of everybody, the own part included; below min_received of what live peers owed, or
        of what all owed with none of them left, it is skip."""
        r, result, least = call.rank, call.result, self.path.min_received
        said = f"rank {r}: verdict {result.verdict} with received {result.received}"
        if result.verdict == "skip":
            if result.received >= least:
                self.say("result", f"{said}, min_received {least}")
            return
        # what absent peers cost is not held against it
        if result.received < least and not any(self.absent(r, p, call.returned) for p in range(self.n)):
            self.say("result", f"{said}, min_received {least}")
        if r in self.hidden or (self.vague and result.received >= 1):
            return
        if (result.verdict == "ok") != (result.received >= 1 and r not in self.bare):
            self.say("result", f"{said}, own part {'not ' if r in self.bare else ''}in all of it")


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
            over = (call.returned - call.until) / 1e3
            report.add("late", f"{who}: {over:.3f} us after its deadline of {call.deadline} s")
    issues = {rank: sorted(c.issued for c in calls if c.rank == rank) for rank in range(n)}
    late = Late(path)
    for (name, round_), group in sorted(rounds.items(), key=lambda item: item[0]):
        if len({c.rank for c in group}) != len(group):
            report.add("round", f"{name}: a rank returned round {round_} twice")
            continue
        if group[0].deadline < np.inf:
            Round(path, group, issues, log, report, late).check([c for c in calls if c.name == name])
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
