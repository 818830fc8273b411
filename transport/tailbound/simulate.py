"""simulate(): n ranks in this process over a simulated network and virtual time, with the very core that a real job
runs."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .arguments import MinReceived, call_rank, call_seconds, check_defaults, check_text, groups_text, whole_number
from .comm import Communicator
from .config import as_text
from .core import ffi, last_error, lib
from .errors import ArgumentError, BusyError, Cancelled, ClosedError, from_errno
from .single import Single
from .work import fork_error

FATES = ("delivered", "lost", "queue overflow", "corrupted", "truncated", "blackholed", "ring overflow")

_BATCH = 65536  # log lines fetched at once
_SLICE_NS = 10**9  # of virtual time, after which a wait looks for signals: a fraction of that in real time
_PATIENCE_NS = 3600 * 10**9  # of virtual time, in one wait: beyond it nothing will ever happen


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
    min_received: MinReceived = 0.5,
    consistency: str = "local",
    missing: str = "renormalise",
    on_skip: str = "skip",
    wire_dtype: str = "none",
    hadamard: bool | str = False,
    deterministic: bool = False,
    groups: str | int | Sequence[Sequence[int]] | None = "off",
    **net: Any,
) -> World:
    """n communicators over the sim link. The same seed and the same calls give the same run, to the bit.

    net holds the network's options: rate="10G" (bit/s), delay="50us", jitter, loss=0.01, dup, reorder, corrupt,
    truncate, queue, mtu, ... (docs/links.md lists them); set() changes them per direction later. Rows of `tailbound
    config` go there, too: peer_timeout=1.0, evict_after=3; deadline_floor is 100us here. Times given as numbers are
    seconds. missing, wire_dtype, hadamard, deterministic and groups as in init; there are no hosts.
    """
    defaults = {
        "deadline": deadline,
        "min_received": min_received,
        "consistency": consistency,
        "missing": missing,
        "on_skip": on_skip,
        "wire_dtype": wire_dtype,
        "hadamard": hadamard,
        "deterministic": deterministic,
    }
    check_defaults(defaults)
    return World(n, {"seed": seed, "groups": groups_text(groups) or "off", **net}, defaults)


class World(Single):
    """A simulated network and its ranks.

    comms    the communicators, by rank
    now      virtual seconds since the start
    run(fn)  calls fn(comm) for every rank, each in its own thread, one at a time in rank order; virtual time moves when
             all of them wait. Returns the results by rank, or raises the first error.
    Without run(): issue with the `_async` calls, then wait(): a waiting caller drives the time.
    A wait for what does not happen within an hour of virtual time raises an Error with errno EDEADLK.
    """

    _instead = (
        "its ranks live in this process. Threads share the object itself; tailbound.simulate() with the same seed and "
        "options makes another that behaves the same"
    )

    def __init__(self, n: int, net: dict[str, Any], defaults: dict[str, Any]) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 1024:
            raise ArgumentError(f"simulate({n!r}): 1 to 1024 ranks")
        out = ffi.new("tb_world **")
        status = lib.tb_world_new(n, _options(net).encode(), out)
        if status:
            raise from_errno(-status, last_error())
        self._handle = out[0]
        self._pid = os.getpid()
        self._lock = threading.RLock()  # of what decides whether the world may be freed; signal handlers come here, too
        self._uses = 0  # calls that are inside the core's world, of any thread
        self._running = False
        self._abort: BaseException | None = None
        self._speaker = threading.local()  # .rank: of the thread that run() has for it
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
        with self._using() as handle:
            self._check(lib.tb_world_advance(handle, call_seconds("advance", seconds)))

    def set(self, src: int | None = None, dst: int | None = None, **net: Any) -> None:
        """Changes options of the path src -> dst from now on; None = every rank. set(2, None, blackhole=True)."""
        options = _options(net).encode()
        ends = [
            -1 if rank is None else call_rank(name, rank, len(self.comms))
            for name, rank in (("src", src), ("dst", dst))
        ]
        with self._using() as handle:
            self._check(lib.tb_world_set(handle, *ends, options))

    def log(self, start: int = 0) -> np.ndarray:
        """The delivery log from line `start`: one record a frame (needs log=True). Fields sent_ns, arrived_ns (0 = not
        delivered), key (hash), round, chunk, step, src, dst, type, stage, fate (see FATES), copy (1 = duplicate)."""
        start, dtype, pieces = whole_number("start", start, 2**63), _log_dtype(), []
        with self._using() as handle:
            while True:
                lines = np.zeros(_BATCH, dtype)
                got = lib.tb_world_log(handle, start, ffi.cast("tb_sim_log *", lines.ctypes.data), _BATCH)
                self._check(got)
                pieces.append(lines[:got])
                start += got
                if got < _BATCH:
                    return np.concatenate(pieces)

    def run(self, fn: Callable[[Communicator], Any]) -> list[Any]:
        """fn(comm) in a thread per rank; sleep() inside it is virtual compute time. The results, or the first error."""
        n = len(self.comms)
        results: list[Any] = [None] * n
        failures: list[tuple[int, BaseException]] = []

        def speak(rank: int) -> None:
            self._speaker.rank = rank
            try:
                with self._using() as handle:
                    self._check(lib.tb_world_enter(handle, rank))
                    try:
                        self._check_abort()
                        results[rank] = fn(self.comms[rank])
                    except BaseException as error:
                        self._abort = self._abort or error  # while the others stand still
                        raise
                    finally:
                        lib.tb_world_leave(handle, rank)
            except BaseException as error:
                failures.append((rank, error))

        # Ctrl-C reaches the caller's thread alone, and can come between any two steps in it: all ranks' threads are
        # started and joined by one that it cannot reach.
        begun = cancelled = False
        ended = threading.Event()

        def conduct() -> None:
            nonlocal begun
            try:
                with self._using() as handle:
                    with self._lock:
                        if self._running or cancelled:
                            return
                        self._running, self._abort, begun = True, None, True
                    self._check(lib.tb_world_expect(handle, n))
                    threads = [
                        threading.Thread(target=speak, args=(rank,), name=f"sim-rank-{rank}") for rank in range(n)
                    ]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
            finally:
                if begun:
                    self._running, self._abort = False, None
                ended.set()

        def wait() -> None:
            while not ended.wait(0.1):  # a signal may arrive in another thread, which wakes nobody here
                pass

        try:
            with self._using():
                threading.Thread(target=conduct, name="sim-ranks").start()
                wait()
        except BaseException as error:  # Ctrl-C: the ranks' waits see it within a slice. A second one gets out
            with self._lock:
                cancelled = True
                if begun and not ended.is_set():
                    self._abort = error
            if begun:
                wait()
            raise
        if not begun:
            raise BusyError("this world's run() runs already: its ranks can only speak for one fn at a time")
        if failures:
            # The others were cancelled because of the first one; their Cancelled says nothing new.
            rank, first = next(((r, e) for r, e in failures if not isinstance(e, Cancelled)), failures[0])
            if hasattr(first, "add_note"):
                first.add_note(f"raised by simulated rank {rank}")
            raise first
        return results

    def sleep(self, comm: Communicator, seconds: float) -> None:
        """Inside run(): this rank computes for that long, in virtual time."""
        if not isinstance(comm, Communicator) or comm not in self.comms:
            raise ArgumentError(f"sleep is for a communicator of this world, not {comm!r}")
        left = call_seconds("sleep", seconds)
        self._check_speaker(comm.rank)
        with self._using() as handle:
            while True:  # in slices that Ctrl-C and another rank's failure can come between
                self._check_abort()
                piece = min(left, _SLICE_NS)
                self._check(lib.tb_world_sleep(handle, comm.rank, piece))
                left -= piece
                if not left:
                    break
            self._check_abort()

    def close(self) -> None:
        """Closes the communicators, which cancels what nobody waits for, and frees the network. Twice is fine.
        BusyError while run() runs or another thread waits: the world is in use then, and stays open."""
        if os.getpid() != self._pid:
            raise fork_error()
        with self._lock:
            if self._running:
                raise BusyError("the world cannot be closed while its run() runs: close it when run() has returned")
            if self._uses:
                raise BusyError(
                    f"the world cannot be closed: {self._uses} calls on it or on its communicators are in flight in "
                    "other threads. Let these threads end (Work.cancel() ends a wait), then close it"
                )
            handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            for comm in self.comms:
                comm._end(with_world=True)
        except BaseException:  # Ctrl-C: as in Communicator.close
            self._handle = handle
            raise
        lib.tb_world_free(handle)
        for comm in self.comms:
            comm._settle()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and hasattr(self, "comms") and self._pid == os.getpid():
            self.close()

    def __repr__(self) -> str:
        if self._handle is None:
            return "<World: closed>"
        return f"<World of {len(self.comms)} simulated ranks at {self.now:.6f} s>"

    @contextmanager
    def _using(self) -> Iterator[Any]:
        """The handle, which nobody frees meanwhile."""
        if os.getpid() != self._pid:
            raise fork_error()
        counted = False
        try:  # Ctrl-C may come anywhere in here
            with self._lock:
                if self._handle is None:
                    raise ClosedError("the simulated world is closed")
                self._uses += 1
                counted = True
            yield self._handle
        finally:
            if counted:
                with self._lock:
                    self._uses -= 1

    def _wait(self, comm: Communicator, work: Any, bound: int | None) -> tuple[int, str]:
        """tb_wait, in slices that Ctrl-C and another rank's failure can come between."""
        with self._using() as handle:
            now = lib.tb_world_now(handle)
            stop = now + (_PATIENCE_NS if bound is None else min(bound, _PATIENCE_NS))
            while True:
                status = lib.tb_wait(work, min(_SLICE_NS, stop - now))
                if status != -errno.EAGAIN:
                    return status, last_error() if status else ""
                now = lib.tb_world_now(handle)
                if now >= stop:
                    break
                comm._between_slices()
        if bound is not None and bound <= _PATIENCE_NS:
            return status, ""
        return -errno.EDEADLK, (
            f"simulation: rank {comm.rank} waits for something that does not happen within an hour of virtual time: "
            "has every rank issued?"
        )

    def _now_ns(self) -> int:
        with self._using() as handle:
            return lib.tb_world_now(handle)

    def _check_speaker(self, rank: int) -> None:
        """Inside run() a rank's thread speaks for its own rank: another's stands still while this one runs."""
        own = getattr(self._speaker, "rank", rank)
        if own != rank:
            raise ArgumentError(f"inside run() the thread of rank {own} cannot use the communicator of rank {rank}")

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


_TIMES = frozenset(("delay", "jitter", "tail", "reorder_by", "reap_delay", "bg_on", "bg_off"))


def _option(name: str, value: Any) -> str:
    if not name.isidentifier():
        raise ArgumentError(f"option {name!r}: a name without blanks or signs is needed (docs/links.md lists them)")
    if isinstance(value, bool):
        return "1" if value else "0"
    if name in _TIMES and isinstance(value, (int, float)):
        return f"{call_seconds(name, value)}ns"
    written = as_text(name, value)
    check_text(name, written)
    if any(character in written for character in " ,;="):
        raise ArgumentError(f"option {name}={written!r}: one value, without blanks, commas or '='")
    return written
