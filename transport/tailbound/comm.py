"""The communicator: from Python arguments to one tb_call, and the rules of which class a call belongs to.

Every use of the core's handle happens under one lock, so that close() in one thread cannot free it under another; the
waits use the operation's own handle, which outlives the communicator.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import warnings
import weakref
from typing import Any

from . import logs
from .arguments import Deadline, Key, call_key, call_op, call_rank, call_tag, only_now, share
from .buffers import Buffer, acquire, acquire_pair, check_like, empty
from .config import deadline_ns
from .core import EXACT, NONE, ffi, last_error, lib, text
from .dtypes import FLOATS
from .errors import ArgumentError, BufferRejected, ClosedError, from_errno
from .result import Result
from .work import Work, fork_error

_PURGE_AT = 64  # beyond this many operations under way the search for ended ones is amortised

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator:
    """This rank's membership in a group; made by `tailbound.init()` or `tailbound.simulate()`.

    rank, size   this rank and how many there are
    link         name of the link in use
    view         number of the agreed list of members
    Every collective has an `_async` form that returns a Work. Calls may come from several threads, each with its own
    key.
    """

    def __init__(self, handle: Any, defaults: dict[str, Any], world: Any = None) -> None:
        self._handle = handle
        self._world = world
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._inflight: set[Work] = set()
        self._purge_at = _PURGE_AT
        self._deadline_ns = deadline_ns(defaults["deadline"])
        self._min_received = share("min_received", defaults["min_received"])
        self.rank: int = lib.tb_rank(handle)
        self.size: int = lib.tb_size(handle)
        self.link: str = text(lib.tb_link_name(handle))
        self._about = text(lib.tb_describe(handle))
        _open.add(self)

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
        min_received: float | None = None,
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
        missing       "renormalise", the only mode of this version
        consistency   "local", the only mode of this version
        stream        for device memory, which this version cannot reduce yet
        min_received  share below which the result is not committed (verdict "skip", x as it was); None = the
                      communicator's

        Raises BufferRejected or ArgumentError before anything is sent (also when the deadline is below the measured
        minimum), MismatchError on every rank when ranks disagree, SkippedTooOften, PeerLost, TimedOut (exact calls),
        KeyInUseError, BusyError, ClosedError.
        """
        return self.all_reduce_async(x, out, op, key, deadline, missing, consistency, stream, min_received).wait()

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
        min_received: float | None = None,
    ) -> Work:
        """all_reduce that returns at once. Leave x and out alone until the Work is done; the clock of the deadline
        runs."""
        only_now("missing", missing)
        only_now("consistency", consistency)
        if stream is not None:
            raise ArgumentError("stream is for device memory, which this version cannot reduce yet; leave it out")
        source, target = acquire_pair(x, out)
        code = call_op(op, source)
        return self._issue(
            lib.TB_ALL_REDUCE,
            f"all_reduce({op})",
            source,
            target,
            x if out is None else out,
            count=source.count,
            redop=code,
            key=call_key(key),
            deadline=deadline,
            lossy=source.code in FLOATS and op in ("sum", "avg"),
            min_received=min_received,
            shape=source.shape,
        )

    def reduce_scatter(
        self, x: Any, out: Any = None, op: str = "sum", key: Key = None, deadline: Deadline = None
    ) -> Result:
        """Exact. Reduces x over all ranks and leaves this rank's piece, the rank-th of `size` equal ones, in out.

        x has size * n elements on every rank, out n of the same dtype; None allocates it (Result.out).
        deadline is an error bound in seconds (TimedOut, nothing written).
        """
        return self.reduce_scatter_async(x, out, op, key, deadline).wait()

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

        None allocates it with shape (size, *x.shape) (Result.out). deadline is an error bound in seconds (TimedOut).
        """
        return self.all_gather_async(x, out, key, deadline).wait()

    def all_gather_async(self, x: Any, out: Any = None, key: Key = None, deadline: Deadline = None) -> Work:
        """all_gather that returns at once; Result.out is complete when the Work is done."""
        source = acquire(x, writable=False)
        if out is None:
            out = empty((self.size, *source.shape), source.dtype)
        target = acquire(out, writable=True, name="out")
        check_like(target, source.code, source.dtype, source.count * self.size, f"{self.size} times x is")
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

        deadline is an error bound in seconds (TimedOut, x as it was).
        """
        return self.broadcast_async(x, root, key, deadline).wait()

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
        return self.barrier_async(key, deadline).wait()

    def barrier_async(self, key: Key = None, deadline: Deadline = None) -> Work:
        """barrier that returns at once; the Work is done when every rank has called it."""
        return self._issue(lib.TB_BARRIER, "barrier", None, None, None, count=0, key=call_key(key), deadline=deadline)

    # ---- the bounded transport itself

    def send(self, x: Any, dst: int, tag: int = 0, deadline: Deadline = None) -> Result:
        """Sends x to rank dst, whose recv has the same tag, dtype and element count; sends of one tag match in order.

        Float buffers are lossy: bounded by the deadline (seconds, "auto", inf = exact; None = the communicator's), and
        Result.received is what dst has acknowledged. Integers are exact; deadline is then an error bound (TimedOut).
        """
        return self.send_async(x, dst, tag, deadline).wait()

    def send_async(self, x: Any, dst: int, tag: int = 0, deadline: Deadline = None) -> Work:
        """send that returns at once. Leave x alone until the Work is done."""
        dst = call_rank("dst", dst, self.size)
        source = acquire(x, writable=False)
        return self._issue(
            lib.TB_SEND,
            f"send to rank {dst}",
            source,
            None,
            x,
            count=source.count,
            root=dst,
            tag=call_tag(tag),
            deadline=deadline,
            lossy=source.code in FLOATS,
        )

    def recv(self, x: Any, src: int, tag: int = 0, deadline: Deadline = None) -> Result:
        """Receives into x what rank src sends with the same tag, dtype and element count.

        Float buffers are lossy: what did not arrive by the deadline is zero in x and False in Result.mask(). Integers
        are exact; deadline is then an error bound in seconds (TimedOut, x as it was).
        """
        return self.recv_async(x, src, tag, deadline).wait()

    def recv_async(self, x: Any, src: int, tag: int = 0, deadline: Deadline = None) -> Work:
        """recv that returns at once. Leave x alone until the Work is done."""
        src = call_rank("src", src, self.size)
        target = acquire(x, writable=True)
        return self._issue(
            lib.TB_RECV,
            f"recv from rank {src}",
            None,
            target,
            x,
            count=target.count,
            root=src,
            tag=call_tag(tag),
            deadline=deadline,
            lossy=target.code in FLOATS,
        )

    # ---- the rest

    def forget(self, key: Key) -> None:
        """Frees a key from its signature (count, dtype, op, ...), so that its next call may have another. Every rank
        calls it between the same two rounds; a key that was never used is fine."""
        encoded = call_key(key)
        if not encoded:
            raise ArgumentError("forget needs a key; anonymous operations are bound to nothing")
        with self._lock:
            status = lib.tb_forget(self._open_handle(), encoded, len(encoded))
            sentence = last_error()
        if status and status != -errno.ENOENT:
            raise from_errno(-status, sentence)

    def stats(self) -> dict[str, Any]:
        """Counters since init, by the core's names, None where the link cannot give one; `peers` has them by rank."""
        with self._lock:
            handle = self._open_handle()
            found: dict[str, Any] = {
                "rank": self.rank,
                "size": self.size,
                "view": lib.tb_view(handle),
                "link": self.link,
                "description": text(lib.tb_describe(handle)),
                **_counters(handle, -1),
            }
            found["peers"] = {peer: _counters(handle, peer) for peer in range(self.size) if peer != self.rank}
        self._drain()
        return found

    @property
    def view(self) -> int:
        """Number of the agreed list of members."""
        with self._lock:
            return lib.tb_view(self._open_handle())

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle is None

    def close(self) -> None:
        """Says goodbye: waits at most 2 s for receipts, cancels what is under way, frees everything. Twice is fine."""
        if os.getpid() != self._pid:
            raise fork_error()
        self._drain()
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is None:
            return
        _open.discard(self)
        if self._world is None:  # a simulated one is freed with its world
            status = lib.tb_close(handle)
            if status:
                logs.logger.warning("close of rank %d: %s", self.rank, last_error() or os.strerror(-status))
        self._inflight.clear()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else self._about
        return f"<Communicator rank {self.rank} of {self.size}: {state}>"

    # ---- inside

    def _open_handle(self) -> Any:
        if os.getpid() != self._pid:
            raise fork_error()
        if self._handle is None:
            raise ClosedError(f"the communicator of rank {self.rank} is closed; make a new one with tailbound.init()")
        return self._handle

    def _issue(
        self,
        kind: int,
        what: str,
        source: Buffer | None,
        target: Buffer | None,
        out: Any,
        *,
        count: int,
        redop: int = 0,
        root: int = 0,
        tag: int = 0,
        key: bytes = b"",
        deadline: Deadline = None,
        lossy: bool = False,
        min_received: float | None = None,
        shape: tuple[int, ...] | None = None,  # of the mask; the output's where not given
    ) -> Work:
        buffer = target or source
        if shape is None:
            shape = buffer.shape if buffer else ()
        call = ffi.new("tb_call *")
        call.kind, call.redop, call.root, call.tag, call.count = kind, redop, root, tag, count
        call.dtype = lib.TB_U8 if buffer is None else buffer.code
        if source is not None:
            setattr(call, "in", ffi.cast("void *", source.address))
        if target is not None:
            call.out = ffi.cast("void *", target.address)
        name = ffi.from_buffer("char[]", key)
        call.key, call.key_len = name, len(key)
        call.min_received = self._min_received if min_received is None else share("min_received", min_received)
        given = None if deadline is None else deadline_ns(deadline)
        if lossy:
            call.deadline_ns = self._deadline_ns if given is None else given
        else:  # 0 = no bound, which is also what "auto" and inf mean for an exact call
            call.deadline_ns, call.error_bound_ns = EXACT, 0 if given in (None, EXACT) else given
        call.thread = threading.get_ident()
        made = ffi.new("tb_work **")
        with self._lock:
            status = lib.tb_issue(self._open_handle(), call, made)
            sentence = last_error() if status else ""
            if status == 0:
                work = Work(self, made[0], (source, target), out, shape, what)
                self._inflight.add(work)
        if status:
            self._drain()
            raise from_errno(-status, sentence)
        if len(self._inflight) > self._purge_at:
            self._purge()
        return work

    def _purge(self) -> None:
        """Ends the books of operations that nobody waits for, so that their buffers are let go."""
        for work in list(self._inflight):
            work._end_if_done()
        self._purge_at = max(_PURGE_AT, 2 * len(self._inflight))

    def _cancel(self, work: Any) -> None:
        """Under the lock, since a cancel reaches into the communicator; once closed nothing is under way any more."""
        with self._lock:
            if self._handle is not None:
                lib.tb_cancel(work)

    def _ended(self, work: Work) -> None:
        self._inflight.discard(work)

    def _between_slices(self) -> None:
        self._drain()
        if self._world is not None:
            self._world._check_abort()

    def _drain(self) -> None:
        """Core's log lines to logging."""
        with self._lock:
            lines = [] if self._handle is None else logs.fetch(self._handle)
        if lines:
            logs.emit(lines)

    def _now_ns(self) -> int:
        return lib.tb_now() if self._world is None else self._world._now_ns()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and self._pid == os.getpid() and self._world is None:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)
            self.close()


@atexit.register
def _close_all() -> None:
    """Peers get a goodbye, not silence, when a program ends without close()."""
    for comm in list(_open):
        if comm._pid == os.getpid():
            comm.close()


def _counters(handle: Any, peer: int) -> dict[str, int | None]:
    names = _counter_names(0 if peer < 0 else 1)
    values = ffi.new("uint64_t[]", len(names))
    status = lib.tb_counters(handle, peer, values, len(names))
    if status < 0:
        raise from_errno(-status, last_error())
    return {name: None if value == NONE else value for name, value in zip(names, values, strict=True)}


def _counter_names(scope: int) -> list[str]:
    names: list[str] = []
    while (name := lib.tb_counter_name(scope, len(names))) != ffi.NULL:
        names.append(text(name))
    return names
