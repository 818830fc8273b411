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
from .config import seconds_ns
from .core import ffi, lib, text
from .errors import Cancelled, Error, ForkError, SkippedTooOften, TimedOut, from_errno
from .result import VERDICTS, Result

if TYPE_CHECKING:
    from .comm import Communicator

SLICE_NS = 50_000_000  # Python looks for signals this often while the core waits; well inside the promised 200 ms


class Work:
    """What the `_async` calls return.

    done()               True once the operation ended, well or not; never blocks
    wait(timeout=None)   the Result; raises what the operation failed with. With a timeout in seconds: TimedOut when it
                         is not done by then, and the operation goes on. Ctrl-C during the wait cancels it (input
                         restored).
    cancel()             ends it now, input restored; wait() then raises Cancelled
    """

    def __init__(
        self, comm: Communicator, handle: Any, hold: tuple, out: Any, shape: tuple[int, ...], what: str
    ) -> None:
        self._comm = comm
        self._handle = handle
        self._hold: tuple | None = hold  # the caller's buffers
        self._out = out  # what the caller passed, or a new array
        self._shape = shape
        self._what = what
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._result: Result | None = None
        self._error: Error | None = None

    def done(self) -> bool:
        self._check_fork()
        if self._result is not None or self._error is not None:
            return True
        return lib.tb_done(self._handle) == 1

    def wait(self, timeout: float | None = None) -> Result:
        self._check_fork()
        if self._result is None and self._error is None:
            bound = None if timeout is None else seconds_ns("timeout", timeout)
            status = lib.tb_wait(self._handle, 0) if self.done() else self._block(bound)
            self._comm._drain()
            if status == -errno.EAGAIN:
                raise TimedOut(f"{self._what} is not done after {timeout} s; it goes on, wait() again or cancel()")
            self._finish(status)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        self._check_fork()
        if self._result is None and self._error is None:
            self._comm._cancel(self._handle)
            self._finish(lib.tb_wait(self._handle, -1))

    def _check_fork(self) -> None:
        if os.getpid() != self._pid:
            raise fork_error()

    def _block(self, bound: int | None) -> int:
        """The operation's status; -EAGAIN when so many ns of the communicator's clock passed first."""
        clock = self._comm._now_ns
        try:
            limit = None if bound is None else clock() + bound
            while True:
                piece = SLICE_NS if limit is None else max(0, min(SLICE_NS, limit - clock()))
                status = lib.tb_wait(self._handle, piece)
                if status != -errno.EAGAIN or (limit is not None and clock() >= limit):
                    return status
                self._comm._between_slices()
        except BaseException:  # Ctrl-C, or whatever a signal handler raised
            self._comm._cancel(self._handle)
            status = lib.tb_wait(self._handle, 0)
            self._finish(-errno.ECANCELED if status == -errno.EAGAIN else status)
            raise

    def _finish(self, status: int) -> None:
        """Turns the ended operation into a result or an error, once, and lets go of the caller's buffers."""
        with self._lock:
            if self._result is None and self._error is None:
                if status == 0:
                    self._result = self._read()
                else:
                    sentence = text(lib.tb_work_error(self._handle))
                    if status == -errno.ECANCELED:
                        self._error = Cancelled(sentence or f"{self._what} was cancelled; its input is as it was")
                    else:
                        self._error = from_errno(-status, sentence or f"{self._what}: {os.strerror(-status)}")
                    if isinstance(self._error, SkippedTooOften):
                        self._error.result = self._read()
            self._hold = None
        self._comm._ended(self)

    def _end_if_done(self) -> None:
        """For operations that nobody waits for: their failure is at least logged."""
        if self.done():
            self._finish(lib.tb_wait(self._handle, 0))
            if self._error is not None:
                logs.logger.warning("nobody waited for an operation that failed: %s", self._error)

    def _read(self) -> Result:
        raw = ffi.new("tb_result *")
        lib.tb_work_result(self._handle, raw)
        stages = {stage: self._per_peer(stage) for stage in (1, 2)}
        by_stage = {stage: peers for stage, peers in stages.items() if peers is not None}
        ranks = next(iter(by_stage.values()), {})
        return Result(
            received=raw.received,
            verdict=VERDICTS[raw.verdict],
            deadline_hit=bool(raw.deadline_hit),
            elapsed=raw.elapsed_ns / 1e9,
            deadline=float("inf") if raw.deadline_ns == 2**64 - 1 else raw.deadline_ns / 1e9,
            round=raw.round,
            behind=raw.behind,
            per_peer={rank: sum(peers[rank] for peers in by_stage.values()) / len(by_stage) for rank in ranks},
            by_stage=by_stage,
            out=self._out,
            abort=raw.abort_ns / 1e9,
            _mask=self._mask,
        )

    def _per_peer(self, stage: int) -> dict[int, float] | None:
        size, own = self._comm.size, self._comm.rank
        out = ffi.new("double[]", size)
        if lib.tb_work_per_peer(self._handle, stage, out, size) != 0:
            return None  # this kind of operation has no such stage
        return {rank: out[rank] for rank in range(size) if rank != own}

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

    def __del__(self, _free: Any = lib.tb_work_free, _getpid: Any = os.getpid) -> None:
        if getattr(self, "_pid", None) == _getpid():  # a forked child must not touch the parent's locks
            _free(self._handle)


def fork_error() -> ForkError:
    """What every use in a forked child raises."""
    return ForkError(
        "this communicator belongs to the parent process: a forked child has no progress thread. Start workers with "
        "the 'spawn' method (multiprocessing.set_start_method('spawn')) and call tailbound.init() in each"
    )
