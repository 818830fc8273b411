"""The communicator: its life, its books of what is under way, and the one place where an operation is issued.

close() in one thread must not free the core's handle under another thread that uses it. Who uses it holds a lock that
close() takes too, before the handle is freed: an issue and a cancel that of their own Work, so that they delay nobody
else; a reader of log lines `_log_lock`; the rest `_lock`. The waits use the operation's own handle, which outlives the
communicator, so nothing that lasts in one thread holds up another thread's wait.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import struct
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from . import logs
from .arguments import (
    Deadline,
    Key,
    MinReceived,
    call_consistency,
    call_deadline,
    call_deterministic,
    call_fill,
    call_hadamard,
    call_halt,
    call_key,
    call_missing,
    call_op,
    call_seconds,
    call_wire_dtype,
    thresholds,
)
from .buffers import Buffer, Like, acquire, acquire_pair, check_like, empty
from .collectives import Collectives
from .core import EXACT, NONE, ffi, last_error, lib, text
from .errors import ArgumentError, ClosedError, TimedOut, from_errno
from .result import Result
from .single import Single
from .work import Work, fork_error

_RESYNC, _FLUSH, _FLUSH_SUM = b"r", b"f", b"F"  # uses of the keys that stand beside a key of the caller's
_PURGE_AT = 64  # beyond this many operations under way the search for ended ones is amortised

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


class Communicator(Single, Collectives):
    """This rank's membership in a group; made by `tailbound.init()` or `tailbound.simulate()`.

    rank, size   this rank and how many there are
    link         name of the link in use
    view         number of the agreed list of members, which is in `members`; it changes when a rank is voted out
                 (silent for evict_after rounds and peer_timeout) or comes back (rejoin)
    Every collective has an `_async` form that returns a Work. Calls may come from several threads, each with its own
    key.
    """

    _instead = (
        "it is this process's end of live connections. Threads share the object itself; another process calls "
        "tailbound.init() for one of its own"
    )

    def __init__(self, handle: Any, defaults: dict[str, Any], world: Any = None) -> None:
        self._handle = handle
        self._world = world
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._log_lock = threading.Lock()
        self._about = text(lib.tb_describe(handle))
        self._inflight: set[Work] = set()
        self._last: dict[bytes, Like] = {}  # named all_reduces: of the last x
        self._purge_at = _PURGE_AT
        self._deadline_ns = call_deadline(defaults["deadline"])
        self._min_received = thresholds(defaults["min_received"])
        self._halt = call_halt(defaults["on_skip"])
        self._on_loss: Callable[[Result], Any] | None = None
        self._consistency = call_consistency(defaults["consistency"])
        self._missing = call_missing(defaults["missing"])
        if self._missing == lib.TB_CARRY and self._consistency == lib.TB_AGREE:
            raise ArgumentError('missing="carry" cannot go with consistency="agree": use "local", or "renormalise"')
        self._wire_dtype = call_wire_dtype(defaults["wire_dtype"])
        self._hadamard = call_hadamard(defaults["hadamard"])
        self._deterministic = call_deterministic(defaults["deterministic"])
        self.rank: int = lib.tb_rank(handle)
        self.size: int = lib.tb_size(handle)
        self.link: str = text(lib.tb_link_name(handle))
        if world is None:  # a simulated one has no peers outside of its process
            _open.add(self)

    def forget(self, key: Key) -> None:
        """Frees a key from its signature (count, dtype, op, ...), so that its next call may have another. Every rank
        calls it between the same two rounds; a key that was never used is fine."""
        encoded = call_key(key)
        if not encoded:
            raise ArgumentError("forget needs a key; anonymous operations are bound to nothing")
        self._last.pop(encoded, None)
        with self._lock:
            status = lib.tb_forget(self._open_handle(), encoded, len(encoded))
            sentence = last_error()
            for use in (_RESYNC, _FLUSH, _FLUSH_SUM):
                beside = _beside(encoded, use)
                lib.tb_forget(self._handle, beside, len(beside))
        if status and status != -errno.ENOENT:
            raise from_errno(-status, sentence)

    def resync(self, key: Key, timeout: float | None = None) -> int:
        """Collective, exact: after an agreed round of `key` failed on some rank, or the membership changed, brings the
        key to one next round on all ranks, and returns its number. What was made of earlier results (parameters) is
        the caller's to bring into step, say by a broadcast. timeout: seconds; None = as long as all peers live.

        Raises BusyError while an operation of the key is in flight here, TimedOut, PeerLost.
        """
        encoded = call_key(key)
        if not encoded:
            raise ArgumentError("resync needs a key; anonymous operations are matched by order of issue")
        most = self._largest_round(encoded, _RESYNC, "resync", timeout)
        with self._lock:
            self._check(lib.tb_resync(self._open_handle(), encoded, len(encoded), most))
        return most

    def flush(self, key: Key, out: Any = None, timeout: float | None = None) -> Any:
        """Collective, exact: the last correction of `key`, to be added to the sum of its outputs. That sum is then the
        same on all ranks, to the last bit where sums are exact; with missing="carry" it is the sum (or mean) of all
        that was contributed. Without carry the correction is what came late here. The key may be used on.

        out      a buffer of the key's size and dtype for it; None = a new array of the last x's shape
        timeout  seconds for each exact step; None = as long as all peers live

        Operations of the key that are under way are waited for. Raises ArgumentError for a key that was not used here,
        TimedOut, PeerLost (a peer was silent for peer_timeout: what it counted is not known, and the account does not
        close).
        """
        encoded = call_key(key)
        if not encoded:
            raise ArgumentError("flush needs a key; nothing is kept of anonymous operations")
        if encoded not in self._last:
            raise ArgumentError(f"key {key!r} was never used here in an all_reduce: there is nothing to flush")
        last = self._last[encoded]
        if out is None:
            out = empty(last.shape, last.dtype)
        target = acquire(out, writable=True, name="out")
        check_like(target, last.code, last.dtype, last.count, "the last x has")
        call = ffi.new("tb_call *")
        with self._lock:
            self._check(lib.tb_flush_like(self._open_handle(), encoded, len(encoded), call))
        if (call.count, call.dtype) != (last.count, last.code):
            raise ArgumentError(f"key {key!r} was used with another shape or dtype since: forget() it, on every rank")
        most = self._largest_round(encoded, _FLUSH, "flush", timeout)
        with self._lock:
            self._check(lib.tb_flush_begin(self._open_handle(), encoded, len(encoded), most))
        self._begin(
            Work(self, (None, None), None, (), "flush"),
            lambda handle, slot: lib.tb_settle(handle, encoded, len(encoded), slot),
        ).wait(timeout)
        place = encoded, len(encoded), ffi.cast("void *", target.address), target.nbytes
        with self._lock:
            self._check(lib.tb_flush_take(self._open_handle(), *place))
        if call.missing == lib.TB_CARRY:
            self._issue(
                lib.TB_ALL_REDUCE,
                "flush",
                target,
                target,
                out,
                count=call.count,
                redop=call.redop,
                key=_beside(encoded, _FLUSH_SUM),
                deadline=timeout,
            )._blocking()
        with self._lock:
            self._check(lib.tb_flush_end(self._open_handle(), *place))
        return out

    def _largest_round(self, encoded: bytes, use: bytes, what: str, timeout: float | None) -> int:
        """The largest next round of a key on any rank."""
        if timeout is not None and not call_seconds("timeout", timeout):
            raise ArgumentError("timeout 0 s: must be above 0; None = as long as all peers live")
        found = ffi.new("uint32_t *")
        with self._lock:
            self._check(lib.tb_next_round(self._open_handle(), encoded, len(encoded), found))
        most = np.array([found[0]], np.int64)
        source, target = acquire_pair(most, None)
        self._issue(
            lib.TB_ALL_REDUCE,
            what,
            source,
            target,
            most,
            count=1,
            redop=call_op("max", source),
            key=_beside(encoded, use),
            deadline=timeout,
        )._blocking()
        return int(most[0])

    def on_loss(self, callback: Callable[[Result], Any] | None) -> None:
        """callback(result) runs for every operation whose verdict is not "ok", in the thread that waits for it, before
        wait() returns or raises; what it raises, wait() raises. One at a time; None ends it. It may call stats() and
        start operations."""
        if callback is not None and not callable(callback):
            raise ArgumentError(f"on_loss takes a callable or None, not a {type(callback).__name__}")
        self._on_loss = callback

    def stats(self) -> dict[str, Any]:
        """Counters since init, by the core's names, None where the link cannot give one; `peers` has them by rank."""
        with self._lock:
            handle = self._open_handle()
            found: dict[str, Any] = {
                "rank": self.rank,
                "size": self.size,
                "view": lib.tb_view(handle, ffi.NULL, 0),
                "link": self.link,
                "description": text(lib.tb_describe(handle)),
                **_counters(handle, -1),
            }
            found["peers"] = {peer: _counters(handle, peer) for peer in range(self.size) if peer != self.rank}
        self._drain()
        return found

    @property
    def view(self) -> int:
        """Number of the agreed list of members: 1 at first, one more with each change."""
        with self._lock:
            return lib.tb_view(self._open_handle(), ffi.NULL, 0)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part in collectives, ascending. Their number is the N of sums and averages; `size` and
        the numbers of ranks stay what they were at init."""
        member = ffi.new("uint8_t[]", self.size)
        with self._lock:
            lib.tb_view(self._open_handle(), member, self.size)
        return tuple(rank for rank in range(self.size) if member[rank])

    def rejoin(self, timeout: float | None = None) -> int:
        """Asks the members to let this rank in again after it was voted out (its calls raise MembershipChanged), waits
        until it is, and returns the view's number. At once when it is a member. When it gives up, the members may let
        it in all the same: its calls go on to raise until a rejoin() has returned. The others' exact and agreed
        operations under way may raise MembershipChanged. What this rank missed (parameters) is the caller's to fetch,
        say by a broadcast from a rank that stayed. timeout: seconds; None = no limit.

        Raises TimedOut (nobody who may decide answers: more than half of the members have to), KeyInUseError when
        another thread waits for the same.
        """
        if timeout is not None and not call_seconds("timeout", timeout):
            raise ArgumentError("timeout 0 s: must be above 0; None = no limit")
        work = self._begin(Work(self, (None, None), None, (), "rejoin"), lib.tb_rejoin)
        try:
            work.wait(timeout)
        except BaseException as error:  # Ctrl-C as well: the next call would find somebody waiting
            work.cancel()
            if not isinstance(error, TimedOut):
                raise
            if work._error is not None:  # else it was let in at the last moment
                raise TimedOut(
                    f"nobody let rank {self.rank} in within {timeout} s: more than half of the members of view "
                    f"{self.view} have to answer; call rejoin() again"
                ) from None
        return self.view

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle is None

    def close(self) -> None:
        """Says goodbye: waits at most 2 s for receipts, cancels what is under way, frees everything. Twice is fine."""
        if os.getpid() != self._pid:
            raise fork_error()
        if self._world is None:
            self._end()
            return
        try:
            with self._world._using():
                self._end()
        except ClosedError:  # the world was closed meanwhile, and its communicators with it
            pass

    def _end(self, with_world: bool = False) -> None:
        """`with_world`: nobody is left who would hear a goodbye."""
        self._drain()
        with self._lock, self._log_lock:
            handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            for work in list(self._inflight):
                work._let_calls_end(cancel=with_world)
        except BaseException:  # Ctrl-C: somebody may still use the handle, so the next close() has to do it
            self._handle = handle
            raise
        _open.discard(self)
        if not with_world:
            status = lib.tb_close(handle)
            if status:
                logs.logger.warning("close of rank %d: %s", self.rank, last_error() or os.strerror(-status))
        self._settle()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else self._about
        return f"<Communicator rank {self.rank} of {self.size}: {state}>"

    # ---- inside

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise from_errno(-status, last_error())

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
        min_received: MinReceived = None,
        on_skip: str | None = None,
        consistency: str | None = None,
        missing: str | None = None,
        fill: str = "zero",
        wire_dtype: int = 0,
        hadamard: int = 0,
        deterministic: bool | None = None,
        groups: int = 0,
        shape: tuple[int, ...] | None = None,  # of the mask; the output's where not given
    ) -> Work:
        buffer = target or source
        if shape is None:
            shape = buffer.shape if buffer else ()
        call = ffi.new("tb_call *")
        call.struct_size = ffi.sizeof("tb_call")
        call.kind, call.redop, call.root, call.tag, call.count = kind, redop, root, tag, count
        call.dtype = lib.TB_U8 if buffer is None else buffer.code
        if source is not None:
            setattr(call, "in", ffi.cast("void *", source.address))
        if target is not None:
            call.out = ffi.cast("void *", target.address)
        name = ffi.from_buffer("char[]", key)
        call.key, call.key_len = name, len(key)
        least = self._min_received if min_received is None else thresholds(min_received, self._min_received[1:])
        call.min_received, call.min_stage = least[0], least[1:]
        call.halt = self._halt if on_skip is None else call_halt(on_skip)
        given = None if deadline is None else call_deadline(deadline)
        if lossy:
            call.deadline_ns = self._deadline_ns if given is None else given
        else:  # 0 = no bound, which is also what "auto" and inf mean for an exact call
            call.deadline_ns, call.error_bound_ns = EXACT, 0 if given in (None, EXACT) else given
        call.consistency = self._consistency if consistency is None else call_consistency(consistency)
        if missing is not None:
            call.missing = call_missing(missing)
        elif lossy and kind == lib.TB_ALL_REDUCE:
            call.missing = self._missing
        call.fill = call_fill(fill)
        call.wire_dtype, call.hadamard, call.groups = wire_dtype, hadamard, groups
        call.deterministic = self._deterministic if deterministic is None else call_deterministic(deterministic)
        call.thread = threading.get_ident()
        # Registered before the core knows it: an exception can come between any two steps here (Ctrl-C), and from the
        # call on the core reads and writes the buffers.
        work = Work(self, (source, target), out, shape, what)
        return self._begin(work, lambda handle, slot: lib.tb_issue(handle, call, slot))

    def _begin(self, work: Work, start: Callable[[Any, Any], int]) -> Work:
        if self._world is not None:
            self._world._check_speaker(self.rank)
        try:
            self._inflight.add(work)
            with work._lock:
                status = start(self._open_handle(), work._slot)
                sentence = last_error() if status else ""
        except BaseException:
            work._abandon()  # nobody will get this Work
            raise
        finally:
            if not work._slot[0]:
                self._inflight.discard(work)
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

    def _settle(self) -> None:
        """After the core's end: every operation has ended, and its books with it."""
        for work in list(self._inflight):
            work._settle()

    def _ended(self, work: Work) -> None:
        self._inflight.discard(work)

    def _between_slices(self) -> None:
        self._drain()
        if self._world is not None:
            self._world._check_abort()

    def _drain(self) -> None:
        """Core's log lines to logging."""
        with self._log_lock:
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


def _beside(encoded: bytes, use: bytes) -> bytes:
    """The key for collective steps about a key: no key of a caller's begins like that. Of the longest a hash stands for
    the end."""
    if len(encoded) < 255:
        return use + encoded
    return use + encoded[:222] + hashlib.blake2b(encoded, digest_size=16).hexdigest().encode()


def _counters(handle: Any, peer: int) -> dict[str, int | float | None]:
    names = _counter_names(0 if peer < 0 else 1)
    values = ffi.new("uint64_t[]", len(names))
    status = lib.tb_counters(handle, peer, values, len(names))
    if status < 0:
        raise from_errno(-status, last_error())
    found: dict[str, int | float | None] = {
        name: None if value == NONE else value for name, value in zip(names, values, strict=True)
    }
    if "dropped_mass" in found:
        found["dropped_mass"] = struct.unpack("=d", struct.pack("=Q", found["dropped_mass"]))[0]
    return found


def _counter_names(scope: int) -> list[str]:
    names: list[str] = []
    while (name := lib.tb_counter_name(scope, len(names))) != ffi.NULL:
        names.append(text(name))
    return names
