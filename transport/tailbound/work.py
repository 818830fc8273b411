"""One operation under way: waiting for it in slices that Ctrl-C can come between, and reading its result.

Who holds what: the communicator holds every Work until it is done, and a Work holds the caller's buffers until then; a
handle that the caller drops therefore neither cancels the operation nor frees memory under it.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from . import logs
from .arguments import call_seconds
from .core import ffi, last_error, lib, text
from .errors import Cancelled, ClosedError, Error, ForkError, SkippedTooOften, TimedOut, from_errno
from .result import NOT_A_MEMBER, VERDICTS, LazyMask, Result, means, owed
from .single import Single

if TYPE_CHECKING:
    from .comm import Communicator

SLICE_NS = 50_000_000  # Python looks for signals this often while the core waits; well inside the promised 200 ms


class Work(Single):
    """What the `_async` calls return.

    done()               True once the operation ended, well or not; never blocks, but with hadamard the first to find
                         it ended makes the output, which takes milliseconds
    wait(timeout=None)   the Result; raises what the operation failed with. With a timeout in seconds: TimedOut when it
                         is not done by then, and the operation goes on. Ctrl-C during the wait cancels it.
    cancel()             ends it now; wait() then raises Cancelled. all_reduce in place then has its input back, for all
                         others the content of `out` is undefined. A lossy all_reduce in place that has enough to be
                         sure of its commit cannot go back: wait() then returns what has arrived, as a Result.
    """

    _instead = "it is one operation under way. Keep the object itself, or copy the Result that wait() returns"

    def __init__(self, comm: Communicator, hold: tuple, out: Any, shape: tuple[int, ...], what: str) -> None:
        self._comm = comm
        self._slot = ffi.new("tb_work **")  # the core writes its handle here; NULL = not issued
        self._hold: tuple | None = hold  # the caller's buffers
        self._out = out  # what the caller passed, or a new array
        self._shape = shape
        self._what = what
        self._lock = threading.Lock()  # held by whoever reaches through this into the communicator, or ends the books
        self._result: Result | None = None
        self._error: Error | None = None
        self._told = False  # the loss callback, if there is one and a loss to tell
        self._dropped = False  # finalised while under way
        self._pid = os.getpid()

    def done(self) -> bool:
        self._check_fork()
        return self._result is not None or self._error is not None or self._core_done()

    def wait(self, timeout: float | None = None) -> Result:
        self._check_fork()
        if self._result is None and self._error is None:
            bound = None if timeout is None else call_seconds("timeout", timeout)
            status, sentence = self._outcome() if self.done() else self._block(bound)
            self._comm._drain()
            if status == -errno.EAGAIN:
                raise TimedOut(f"{self._what} is not done after {timeout} s; it goes on, wait() again or cancel()")
            self._conclude(status, sentence)
        self._tell_loss()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _blocking(self) -> Result:
        """For calls that return no Work: what they raise ends the operation, which nobody could wait for any more."""
        try:
            return self.wait()
        except BaseException:
            if self._result is None and self._error is None:
                self._abandon()
            raise

    def _tell_loss(self) -> None:
        """To the user's callback, once, from a thread of the user's."""
        with self._lock:
            callback, told, self._told = self._comm._on_loss, self._told, True
        result = self._result or getattr(self._error, "result", None)
        if callback is not None and not told and result is not None and result.verdict != "ok":
            callback(result)

    def cancel(self) -> None:
        self._check_fork()
        if self._result is None and self._error is None:
            self._cancel_in_core()
            self._conclude(*(self._outcome() if self.done() else self._block(None)))

    @property
    def _handle(self) -> Any:
        return self._slot[0]

    def _core_done(self) -> bool:
        return bool(self._handle) and lib.tb_done(self._handle) == 1

    def _check_fork(self) -> None:
        if os.getpid() != self._pid:
            raise fork_error()

    def _outcome(self) -> tuple[int, str]:
        """Status and sentence of the done operation."""
        status = lib.tb_wait(self._handle, 0)
        return status, last_error() if status else ""

    def _block(self, bound: int | None) -> tuple[int, str]:
        """The operation's status and the sentence to it; -EAGAIN when so many ns of the communicator's clock passed
        first."""
        world = self._comm._world
        try:
            if world is not None:
                return world._wait(self._comm, self._handle, bound)
            limit = None if bound is None else lib.tb_now() + bound
            while True:
                piece = SLICE_NS if limit is None else max(0, min(SLICE_NS, limit - lib.tb_now()))
                status = lib.tb_wait(self._handle, piece)
                if status != -errno.EAGAIN or (limit is not None and lib.tb_now() >= limit):
                    return status, last_error() if status else ""
                self._comm._between_slices()
        except ClosedError:  # the world was closed between two looks at it, which ended the operation
            if not self._core_done():
                raise
            return self._outcome()
        except BaseException:  # Ctrl-C, or whatever a signal handler raised
            self._abandon()
            raise

    def _cancel_in_core(self) -> None:
        """Not once the communicator is closed: close() cancels what is under way itself."""
        with self._lock:
            if self._handle and not self._core_done() and self._comm._handle is not None:
                lib.tb_cancel(self._handle)

    def _abandon(self) -> None:
        """Cancels it for an exception that goes on to the caller. Where the link is not through with the buffers yet,
        the communicator goes on to hold them."""
        self._cancel_in_core()
        self._end_books()

    def _end_books(self) -> bool:
        """Ends the books if the operation is done."""
        done = self._core_done()
        if done:
            self._finish(lib.tb_wait(self._handle, 0))
        return done

    def _conclude(self, status: int, sentence: str) -> None:
        """Takes in what a wait returned; that need not be the operation's end (a simulation in which nothing moves)."""
        if not self._core_done():
            raise from_errno(-status, sentence)
        self._finish(status)

    def _finish(self, status: int) -> None:
        """Turns the done operation into a result or an error, once, and lets go of the caller's buffers."""
        with self._lock:
            if self._result is None and self._error is None:
                if status == 0:
                    self._result = self._read()
                else:
                    sentence = text(lib.tb_work_error(self._handle))
                    if status == -errno.ECANCELED:
                        self._error = Cancelled(sentence or f"{self._what} was cancelled")
                    else:
                        self._error = from_errno(-status, sentence or f"{self._what}: {os.strerror(-status)}")
                    if isinstance(self._error, SkippedTooOften):
                        self._error.result = self._read()
            self._hold = None
        self._comm._ended(self)

    def _end_if_done(self) -> None:
        """For operations that nobody waits for: their failure is at least logged."""
        open_books = self._result is None and self._error is None
        if self._end_books() and open_books and self._error is not None:
            logs.logger.warning("nobody waited for an operation that failed: %s", self._error)

    def _let_calls_end(self, cancel: bool) -> None:
        """For close(): returns when no other thread is inside an issue or a cancel of this operation."""
        with self._lock:
            if cancel and self._handle and not self._core_done():
                lib.tb_cancel(self._handle)

    def _settle(self) -> None:
        """The communicator's end."""
        if self._end_books() and self._dropped:
            lib.tb_work_free(self._handle)
            self._slot[0] = ffi.NULL

    def _read(self) -> Result:
        raw = ffi.new("tb_result *")
        lib.tb_work_result(self._handle, raw)
        shares = {stage: self._per_peer(stage) for stage in (1, 2)}
        peers = [rank for rank in range(self._comm.size) if rank != self._comm.rank and shares[1][rank] != NOT_A_MEMBER]
        by_stage = {stage: owed(shares[stage], peers) for stage in (1, 2)}
        return Result(
            received=raw.received,
            verdict=VERDICTS[raw.verdict],
            deadline_hit=bool(raw.deadline_hit),
            elapsed=raw.elapsed_ns / 1e9,
            deadline=float("inf") if raw.deadline_ns == 2**64 - 1 else raw.deadline_ns / 1e9,
            round=raw.round,
            behind=raw.behind,
            view=raw.view,
            per_peer=means(by_stage, peers),
            by_stage=by_stage,
            out=self._out,
            abort=raw.abort_ns / 1e9,
            late=raw.late,
            carried=raw.carried,
            _mask=LazyMask(self._mask),
        )

    def _per_peer(self, stage: int) -> list[float]:
        size = self._comm.size
        out = ffi.new("double[]", size)
        status = lib.tb_work_per_peer(self._handle, stage, out, size)
        if status:
            raise from_errno(-status, last_error())
        return list(out)

    def _mask(self) -> np.ndarray:
        self._check_fork()
        arrived = np.empty(self._shape, np.bool_)
        status = lib.tb_work_mask(self._handle, ffi.cast("uint8_t *", arrived.ctypes.data), arrived.size)
        if status != 0:
            raise from_errno(-status, f"{self._what}: no mask ({os.strerror(-status)})")
        return arrived

    def __repr__(self) -> str:
        if os.getpid() != self._pid:
            return f"<Work {self._what} of the parent process>"
        state = "done" if self.done() else "under way"
        return f"<Work {self._what}: {self._error or self._result or state}>"

    def __del__(self, _free: Any = lib.tb_work_free, _done: Any = lib.tb_done, _getpid: Any = os.getpid) -> None:
        """Never blocks, which freeing an operation under way would: that one is left to its communicator's end, which
        comes with it, since only a cycle that holds both can drop an operation under way."""
        if getattr(self, "_pid", None) != _getpid() or not self._slot[0]:
            return  # a forked child must not touch the parent's locks
        if _done(self._slot[0]):
            _free(self._slot[0])
        else:
            self._dropped = True


def fork_error() -> ForkError:
    """What every use in a forked child raises."""
    return ForkError(
        "this communicator belongs to the parent process: a forked child has no progress thread. Start workers with "
        "the 'spawn' method (multiprocessing.set_start_method('spawn')) and call tailbound.init() in each"
    )
