"""The calls of a communicator: from Python arguments to one operation, and the rules of which class it belongs to.

Lossy: float sum and avg, send and recv of floats. Everything else is exact: a deadline given to it is an error bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .arguments import (
    Deadline,
    Key,
    MinReceived,
    call_consistency,
    call_fill,
    call_groups,
    call_hadamard,
    call_key,
    call_missing,
    call_op,
    call_rank,
    call_tag,
    call_wire_dtype,
    takes_hadamard,
    takes_wire_dtype,
)
from .buffers import Buffer, Like, acquire, acquire_pair, check_like, empty, overlap
from .core import lib
from .dtypes import FLOATS
from .errors import ArgumentError, BufferRejected
from .result import Result
from .work import Work


class Collectives(ABC):
    """What Communicator offers to its user; the issuing itself is Communicator's."""

    rank: int
    size: int
    _last: dict[bytes, Like]
    _wire_dtype: int
    _hadamard: int
    _consistency: int
    _deterministic: int
    _missing: int

    @abstractmethod
    def _issue(
        self, kind: int, what: str, source: Buffer | None, target: Buffer | None, out: Any, **options: Any
    ) -> Work: ...

    def _wire(self, given: str | None, source: Buffer, op: str) -> int:
        able = takes_wire_dtype(source, op)
        if given is None:
            return self._wire_dtype if able else 0
        code = call_wire_dtype(given)
        if code and code != source.code and not able:
            raise ArgumentError(
                f"wire_dtype={given!r} is for sum and avg of float32, not {op} of {source.dtype}: leave it out here"
            )
        return code

    def _transformed(
        self,
        given: bool | str | None,
        source: Buffer,
        op: str,
        key: bytes,
        consistency: str | None,
        missing: str | None,
        fill: str,
    ) -> int:
        able = takes_hadamard(source, op)
        if given is None:
            carries = (self._missing if missing is None else call_missing(missing)) == lib.TB_CARRY
            agrees = self._consistency if consistency is None else call_consistency(consistency)
            if self._hadamard == lib.TB_BY_LOSS and (not key or agrees):
                return lib.TB_PLAIN
            able = able and not carries and call_fill(fill) == lib.TB_FILL_ZERO
            return self._hadamard if able else lib.TB_PLAIN
        wanted = call_hadamard(given)
        if wanted and not able:
            raise ArgumentError(
                f"hadamard is for sum and avg of float32 and float64, not {op} of {source.dtype}: leave it out here"
            )
        return wanted

    # ---- collectives

    def all_reduce(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        key: Key = None,
        deadline: Deadline = None,
        missing: str | None = None,
        consistency: str | None = None,
        stream: Any = None,
        min_received: MinReceived = None,
        on_skip: str | None = None,
        fill: str = "zero",
        wire_dtype: str | None = None,
        hadamard: bool | str | None = None,
        deterministic: bool | None = None,
        groups: bool | None = None,
    ) -> Result:
        """The `sum` of a lossy call is an *estimate* unless carried: where contributions are missing, what arrived is
        scaled by size / count. `avg` is then the mean of what arrived. Reduces x over all ranks; every rank gets the
        result by its deadline, whatever happens to peers, links or packets.

        x             C-contiguous buffer of any shape: NumPy, buffer protocol, or DLPack on the host. float32, float64,
                      float16, bfloat16, or integers. Same element count and dtype on every rank.
        out           where the result goes, same dtype and size; None = in place
        op            "sum", "avg", "min", "max", "prod"
        key           the bucket's name (str or int): its rounds are matched by number, and a rank that fell behind
                      jumps to the round the others are in (Result.round, Result.behind). None: matched by order of the
                      calls.
        deadline      seconds from now; "auto" = from measured arrivals; float("inf") = exact: retransmit to the end.
                      None = the communicator's. Integers and min, max, prod are always exact: the communicator's
                      deadline does not apply to them, and one given here is an error bound (TimedOut).
        missing       what becomes of contributions that did not reach an owner in time. "renormalise": the rest is
                      scaled up. "carry" (sum and avg of floats, with a key): nothing is scaled, avg divides by size,
                      and what was left out is added in full to this rank's contribution to the key's next round.
                      Not with consistency="agree". None = the communicator's
        consistency   "local": each rank returns what reached it by the deadline. "agree": all ranks return the same
                      bytes: what an owner decided by the deadline and a rank lacks then is repaired like in an exact
                      call, usually within a round trip (elapsed tells). A rank that cannot get it (a dead owner:
                      PeerLost after peer_timeout) raises with x as it was while others may have returned: the key then
                      raises ResyncNeeded until resync(key). min_received has to be the same on every rank. None = the
                      communicator's
        stream        for device memory, which this version cannot reduce yet
        min_received  share below which the result is not committed (verdict "skip", x as it was); or three shares:
                      total, what live peers contributed to the shard reduced here, what came of the others' decided
                      shards (stages 1 and 2). None = the communicator's
        on_skip       "skip": skips in a row raise SkippedTooOften (max_skips); "halt": the first one does. None = the
                      communicator's
        wire_dtype    what travels of float32 sum and avg, lossy or exact, the same on every rank: "bf16" or "fp16"
                      (half the bytes, rounded to nearest), "int8" (a quarter; a scale for each packet, rounded at
                      random so that the mean is right), "none". Contributions are added up in float32; all ranks get
                      the same rounded result. fp16 turns values from 65520 into inf, int8 a packet's values into nan
                      where one is not finite. What rounding takes is carried under missing="carry" only. None = the
                      communicator's, for calls that can use it
        hadamard      True: lossy sums and averages of float32 and float64 travel as a randomised block Hadamard
                      transform, on every rank: what is lost costs all elements of many blocks a little instead of a
                      few elements everything. Costs time (a few copies of x) and memory for one x. Nothing is
                      delivered late or carried, nor filled; exact calls ignore it. "auto", with a key: in those
                      rounds in which it gains more than it costs, by the loss that all ranks measure. None = the
                      communicator's, for calls that can use it
        deterministic True: contributions are added in the order of ranks, those that count, so that the same ones give
                      the same bits whatever the order in which they arrive; on every rank. Costs memory for one x.
                      None = the communicator's
        groups        True: within the communicator's groups, across them, and within again (init's groups), on every
                      rank; ArgumentError where that cannot be: missing="carry", consistency="agree", a wire_dtype,
                      hadamard, deterministic, float16 and bfloat16. False: without. None: with them where it can be
        fill          what stands where no decided value came in time: "zero", or "own": x as it is there. With a key
                      it is taken off again by what comes late. Lossy calls, consistency "local"

        Raises BufferRejected or ArgumentError before anything is sent (also when the deadline is below the measured
        minimum), MismatchError on every rank when ranks disagree, SkippedTooOften, PeerLost, TimedOut (exact calls),
        KeyInUseError, BusyError, ClosedError. When a call that was under way fails, x is as it was, in place too; the
        content of another out is undefined. After Ctrl-C x is as it was, or the result of what had arrived.
        """
        return self.all_reduce_async(
            x, out, op, key, deadline, missing, consistency, stream, min_received, on_skip, fill, wire_dtype, hadamard,
            deterministic, groups,
        )._blocking()

    def all_reduce_async(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        key: Key = None,
        deadline: Deadline = None,
        missing: str | None = None,
        consistency: str | None = None,
        stream: Any = None,
        min_received: MinReceived = None,
        on_skip: str | None = None,
        fill: str = "zero",
        wire_dtype: str | None = None,
        hadamard: bool | str | None = None,
        deterministic: bool | None = None,
        groups: bool | None = None,
    ) -> Work:
        """all_reduce that returns at once. Leave x and out alone until the Work is done; the clock of the deadline
        runs."""
        if stream is not None:
            raise ArgumentError("stream is for device memory, which this version cannot reduce yet; leave it out")
        source, target = acquire_pair(x, out)
        code = call_op(op, source)
        encoded = call_key(key)
        work = self._issue(
            lib.TB_ALL_REDUCE,
            f"all_reduce({op})",
            source,
            target,
            x if out is None else out,
            count=source.count,
            redop=code,
            key=encoded,
            deadline=deadline,
            lossy=source.code in FLOATS and op in ("sum", "avg"),
            min_received=min_received,
            on_skip=on_skip,
            consistency=consistency,
            missing=missing,
            fill=fill,
            wire_dtype=self._wire(wire_dtype, source, op),
            hadamard=self._transformed(hadamard, source, op, encoded, consistency, missing, fill),
            deterministic=deterministic,
            groups=call_groups(groups),
            shape=source.shape,
        )
        if encoded:  # a refused call says nothing of the key
            self._last[encoded] = Like(source.shape, source.dtype, source.code, source.count)
        return work

    def reduce_scatter(
        self, x: Any, out: Any = None, op: str = "sum", key: Key = None, deadline: Deadline = None
    ) -> Result:
        """Exact. Reduces x over all ranks and leaves this rank's piece, the rank-th of `size` equal ones, in out.

        x has size * n elements on every rank, out n of the same dtype, sharing no memory with x; None allocates it
        (Result.out). deadline is an error bound in seconds (TimedOut). When the call fails (TimedOut, PeerLost,
        Cancelled, ...) the content of out is undefined; x is never written.
        """
        return self.reduce_scatter_async(x, out, op, key, deadline)._blocking()

    def reduce_scatter_async(
        self, x: Any, out: Any = None, op: str = "sum", key: Key = None, deadline: Deadline = None
    ) -> Work:
        """reduce_scatter that returns at once; Result.out is complete when the Work is done."""
        source = acquire(x, writable=False)
        if source.count % self.size:
            raise BufferRejected(
                f"x has {source.count} elements (shape {source.shape}), which {self.size} ranks cannot share equally: "
                f"pad it to a multiple of {self.size}"
            )
        piece = source.count // self.size
        if out is None:
            rows = source.shape[0] if source.shape else 0
            shape = (rows // self.size, *source.shape[1:]) if rows % self.size == 0 and rows else (piece,)
            out = empty(shape, source.dtype)
        target = acquire(out, writable=True, name="out")
        check_like(target, source.code, source.dtype, piece, f"1/{self.size} of x is")
        if overlap(source, target):
            raise BufferRejected(
                "x and out overlap: reduce_scatter has no in-place form, since the other ranks' pieces are sent from x "
                "while out is written; pass an out that shares no memory with x, or None"
            )
        return self._issue(
            lib.TB_REDUCE_SCATTER,
            f"reduce_scatter({op})",
            source,
            target,
            out,
            count=source.count,
            redop=call_op(op, source),
            key=call_key(key),
            deadline=deadline,
        )

    def all_gather(self, x: Any, out: Any = None, key: Key = None, deadline: Deadline = None) -> Result:
        """Exact. Everybody gets everybody's x, in rank order, in out: size * x.size elements of x's dtype.

        x may be this rank's own piece of out. None allocates out with shape (size, *x.shape) (Result.out). deadline is
        an error bound in seconds (TimedOut). When the call fails (TimedOut, PeerLost, Cancelled, ...) the content of
        out is undefined.
        """
        return self.all_gather_async(x, out, key, deadline)._blocking()

    def all_gather_async(self, x: Any, out: Any = None, key: Key = None, deadline: Deadline = None) -> Work:
        """all_gather that returns at once; Result.out is complete when the Work is done."""
        source = acquire(x, writable=False)
        if out is None:
            out = empty((self.size, *source.shape), source.dtype)
        target = acquire(out, writable=True, name="out")
        check_like(target, source.code, source.dtype, source.count * self.size, f"{self.size} times x is")
        if overlap(source, target) and source.address != target.address + self.rank * source.nbytes:
            raise BufferRejected(
                f"x and out overlap: x must share no memory with out, or be rank {self.rank}'s own piece of it"
            )
        return self._issue(
            lib.TB_ALL_GATHER,
            "all_gather",
            source,
            target,
            out,
            count=source.count,
            key=call_key(key),
            deadline=deadline,
        )

    def broadcast(self, x: Any, root: int = 0, key: Key = None, deadline: Deadline = None) -> Result:
        """Exact. Rank root's x replaces x on every rank; same dtype and size everywhere (root's may be read-only).

        deadline is an error bound in seconds (TimedOut). When the call fails (TimedOut, PeerLost, Cancelled, ...) the
        content of x is undefined on every rank but root, whose x is never written.
        """
        return self.broadcast_async(x, root, key, deadline)._blocking()

    def broadcast_async(self, x: Any, root: int = 0, key: Key = None, deadline: Deadline = None) -> Work:
        """broadcast that returns at once."""
        root = call_rank("root", root, self.size)
        buffer = acquire(x, writable=self.rank != root)
        return self._issue(
            lib.TB_BROADCAST,
            f"broadcast from rank {root}",
            buffer if self.rank == root else None,
            buffer,
            x,
            count=buffer.count,
            root=root,
            key=call_key(key),
            deadline=deadline,
        )

    def barrier(self, key: Key = None, deadline: Deadline = None) -> Result:
        """Exact. Returns once every rank has called it. deadline is an error bound in seconds (TimedOut)."""
        return self.barrier_async(key, deadline)._blocking()

    def barrier_async(self, key: Key = None, deadline: Deadline = None) -> Work:
        """barrier that returns at once; the Work is done when every rank has called it."""
        return self._issue(lib.TB_BARRIER, "barrier", None, None, None, count=0, key=call_key(key), deadline=deadline)

    # ---- the bounded transport itself

    def send(self, x: Any, dst: int, tag: int = 0, deadline: Deadline = None) -> Result:
        """Sends x to rank dst, whose recv has the same tag, dtype and element count; sends of one tag match in order.

        Float buffers are lossy: bounded by the deadline (seconds, "auto", inf = exact; None = the communicator's), and
        Result.received is what dst has acknowledged. Integers are exact; deadline is then an error bound (TimedOut).
        """
        return self.send_async(x, dst, tag, deadline)._blocking()

    def send_async(self, x: Any, dst: int, tag: int = 0, deadline: Deadline = None) -> Work:
        """send that returns at once. Leave x alone until the Work is done."""
        return self._message(lib.TB_SEND, "send to", "dst", dst, x, tag, deadline)

    def recv(self, x: Any, src: int, tag: int = 0, deadline: Deadline = None) -> Result:
        """Receives into x what rank src sends with the same tag, dtype and element count.

        Float buffers are lossy: what did not arrive by the deadline is zero in x and False in Result.mask(). Integers
        are exact; deadline is then an error bound in seconds (TimedOut). When the call fails (TimedOut, PeerLost,
        Cancelled, ...) the content of x is undefined.
        """
        return self.recv_async(x, src, tag, deadline)._blocking()

    def recv_async(self, x: Any, src: int, tag: int = 0, deadline: Deadline = None) -> Work:
        """recv that returns at once. Leave x alone until the Work is done."""
        return self._message(lib.TB_RECV, "recv from", "src", src, x, tag, deadline)

    def _message(self, kind: int, what: str, name: str, peer: int, x: Any, tag: int, deadline: Deadline) -> Work:
        peer = call_rank(name, peer, self.size)
        sends = kind == lib.TB_SEND
        buffer = acquire(x, writable=not sends)
        return self._issue(
            kind,
            f"{what} rank {peer}",
            buffer if sends else None,
            None if sends else buffer,
            x,
            count=buffer.count,
            root=peer,
            tag=call_tag(tag),
            deadline=deadline,
            lossy=buffer.code in FLOATS,
        )
