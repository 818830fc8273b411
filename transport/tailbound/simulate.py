"""simulate(): n ranks in this process over a simulated network and virtual time, with the very core that a real job
runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .comm import Communicator
from .config import as_text, seconds_ns
from .core import ffi, last_error, lib
from .errors import ArgumentError, Cancelled, ClosedError, Error, from_errno

FATES = ("delivered", "lost", "queue overflow", "corrupted", "truncated", "blackholed", "ring overflow")

_BATCH = 65536  # log lines fetched at once


def _log_dtype() -> np.dtype:
    """tb_sim_log as the compiler laid it out."""
    fields = dict(ffi.typeof("tb_sim_log").fields)
    return np.dtype(
        {
            "names": list(fields),
            "formats": [f"u{ffi.sizeof(field.type)}" for field in fields.values()],
            "offsets": [field.offset for field in fields.values()],
            "itemsize": ffi.sizeof("tb_sim_log"),
        }
    )


def simulate(
    n: int,
    seed: int = 0,
    deadline: float | str = "auto",
    min_received: float = 0.5,
    **net: Any,
) -> World:
    """n communicators over the sim link. The same seed and the same calls give the same run, to the bit.

    net holds the network's options: rate="10G" (bit/s), delay="50us", jitter, loss=0.01, dup, reorder, corrupt,
    truncate, queue, mtu, ... (docs/links.md lists them); set() changes them per direction later. Times given as numbers
    are seconds.
    """
    return World(n, {"seed": seed, **net}, deadline, min_received)


class World:
    """A simulated network and its ranks.

    comms    the communicators, by rank
    now      virtual seconds since the start
    run(fn)  calls fn(comm) for every rank, each in its own thread, one at a time in rank order; virtual time moves when
             all of them wait. Returns the results by rank, or raises the first error.
    Without run(): issue with the `_async` calls, then wait(): a waiting caller drives the time.
    """

    def __init__(self, n: int, net: dict[str, Any], deadline: float | str, min_received: float) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 1024:
            raise ArgumentError(f"simulate({n!r}): 1 to 1024 ranks")
        out = ffi.new("tb_world **")
        status = lib.tb_world_new(n, _options(net).encode(), out)
        if status:
            raise from_errno(-status, last_error())
        self._handle = out[0]
        self._abort: BaseException | None = None
        defaults = {"deadline": deadline, "min_received": min_received}
        try:
            self.comms = [Communicator(lib.tb_world_comm(self._handle, rank), defaults, self) for rank in range(n)]
        except BaseException:
            lib.tb_world_free(self._handle)
            raise

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now_ns() / 1e9

    def advance(self, seconds: float) -> None:
        """Lets virtual time pass outside of run(), with everything that happens in it."""
        self._check(lib.tb_world_advance(self._open(), seconds_ns("advance", seconds)))

    def set(self, src: int | None = None, dst: int | None = None, **net: Any) -> None:
        """Changes options of the path src -> dst from now on; None = every rank. set(2, None, blackhole=True)."""
        options = _options(net).encode()
        self._check(lib.tb_world_set(self._open(), -1 if src is None else src, -1 if dst is None else dst, options))

    def log(self, start: int = 0) -> np.ndarray:
        """The delivery log from line `start`: one record a frame (needs log=True). Fields sent_ns, arrived_ns (0 = not
        delivered), key (hash), round, chunk, step, src, dst, type, stage, fate (see FATES), copy (1 = duplicate)."""
        handle, dtype, pieces = self._open(), _log_dtype(), []
        while True:
            lines = np.zeros(_BATCH, dtype)
            got = lib.tb_world_log(handle, start, ffi.cast("tb_sim_log *", lines.ctypes.data), _BATCH)
            if got < 0:
                raise from_errno(-got, last_error())
            pieces.append(lines[:got])
            start += got
            if got < _BATCH:
                return np.concatenate(pieces)

    def run(self, fn: Callable[[Communicator], Any]) -> list[Any]:
        """fn(comm) in a thread per rank; sleep() inside it is virtual compute time. The results, or the first error."""
        n = len(self.comms)
        results: list[Any] = [None] * n
        failures: list[tuple[int, BaseException]] = []
        self._abort = None
        self._check(lib.tb_world_expect(self._open(), n))

        def speak(rank: int) -> None:
            try:
                self._check(lib.tb_world_enter(self._handle, rank))
                try:
                    results[rank] = fn(self.comms[rank])
                finally:
                    lib.tb_world_leave(self._handle, rank)
            except BaseException as error:
                failures.append((rank, error))
                self._abort = self._abort or error

        threads = [threading.Thread(target=speak, args=(rank,), name=f"sim-rank-{rank}") for rank in range(n)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.1)
        except BaseException as error:  # Ctrl-C: the ranks' waits see it within a slice
            self._abort = error
            for thread in threads:
                thread.join()
            raise
        if failures:
            # The others were cancelled because of the first one; their Cancelled says nothing new.
            rank, first = next(((r, e) for r, e in failures if not isinstance(e, Cancelled)), failures[0])
            if hasattr(first, "add_note"):
                first.add_note(f"raised by simulated rank {rank}")
            raise first
        return results

    def sleep(self, comm: Communicator, seconds: float) -> None:
        """Inside run(): this rank computes for that long, in virtual time."""
        self._check(lib.tb_world_sleep(self._open(), comm.rank, seconds_ns("sleep", seconds)))

    def close(self) -> None:
        """Closes the communicators and frees the network. Twice is fine."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        for comm in self.comms:
            comm.close()
        lib.tb_world_free(handle)
        for comm in self.comms:
            comm._settle()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and hasattr(self, "comms"):
            self.close()

    def __repr__(self) -> str:
        if self._handle is None:
            return "<World: closed>"
        return f"<World of {len(self.comms)} simulated ranks at {self.now:.6f} s>"

    def _open(self) -> Any:
        if self._handle is None:
            raise ClosedError("the simulated world is closed")
        return self._handle

    def _now_ns(self) -> int:
        return lib.tb_world_now(self._open())

    def _check_abort(self) -> None:
        """Between two slices of a rank's wait: another rank failed, or Ctrl-C came."""
        if self._abort is not None:
            raise Cancelled(f"the simulation ends: {self._abort!r}")

    @staticmethod
    def _check(status: int) -> None:
        if status < 0:
            raise from_errno(-status, last_error())


def _options(net: dict[str, Any]) -> str:
    """Keyword arguments as "name=value name=value"."""
    return " ".join(f"{name}={_option(name, value)}" for name, value in net.items())


_TIMES = frozenset(("delay", "jitter", "tail", "reorder_by", "reap_delay"))


def _option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if name in _TIMES and isinstance(value, (int, float)):
        return f"{seconds_ns(name, value)}ns"
    written = as_text(name, value)
    if any(character in written for character in " ,;="):
        raise Error(f"option {name}={written!r}: one value, without blanks, commas or '='")
    return written
