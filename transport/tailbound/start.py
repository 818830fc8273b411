"""init(): from options and environment to a communicator, interruptible all the way.

tb_init blocks up to init_timeout, so it runs in a thread of its own while the caller's thread looks for signals and
serves the store, whose methods are thereby only ever called from the caller's thread. An interrupted init is cancelled,
and waited for as long as Ctrl-C may take; what outlasts that (a name server that does not answer) closes behind itself.
"""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Sequence
from typing import Any

from . import logs
from .arguments import Deadline, MinReceived, call_deadline, check_defaults, check_text, groups_text, thresholds
from .comm import Communicator
from .config import Config, split_address
from .core import ffi, last_error, lib, text
from .errors import ConfigError, from_init
from .exchange import StoreExchange

_LOOK = 0.1  # seconds between two looks for signals
_LEAVE = 0.15  # seconds that a cancelled tb_init is waited for


def init(
    link: str | None = None,
    deadline: Deadline = None,
    missing: str | None = None,
    consistency: str | None = None,
    min_received: MinReceived = None,
    rank: int | None = None,
    size: int | None = None,
    address: str | None = None,
    store: Any = None,
    groups: str | int | Sequence[Sequence[int]] | None = None,
    **options: Any,
) -> Communicator:
    """Joins the job and returns this rank's communicator; every rank calls it. Ends by init_timeout (60 s), well or
    not.

    What is left out comes from TAILBOUND_* variables, then from torchrun, SLURM or Open MPI, then from the default.

    link          "auto" (default: the best there is, named in repr(comm) and the log), "udp"; a named one is strict
    deadline      of lossy operations: "auto" (default), seconds, or float("inf") = exact
    missing       of lossy all_reduces: "renormalise" (default): what did not arrive is estimated; or "carry": it is
                  added to the key's next round
    consistency   "local" (default) or "agree": the same bytes on all ranks; see all_reduce
    min_received  0.5 (default): below this share an operation is not committed (verdict "skip"); or three shares:
                  total, contributions to the shard reduced here, the others' decided shards
    rank, size    this process's number from 0, and how many there are
    address       "host" or "host:port" of rank 0's rendezvous
    store         any object with set(key, bytes) and get(key), used instead of that rendezvous
    groups        all_reduces within groups of ranks, across them and within again, so that each rank has few peers:
                  "off" (default), "host", "local_rank" (LOCAL_RANK of the launcher), ranks in each, [[0, 1], [2, 3]];
                  all of one size and the same on every rank. "auto": by host, or off where that does not go
    options       any row of `tailbound config`, such as interface="eth", flows=8, init_timeout=10, peer_timeout="3s";
                  times are seconds, sizes bytes

    Raises ConfigError (an option or variable, by name), RendezvousError (who is missing, with address and interface),
    MismatchError (ranks of different jobs, versions or options).
    """
    config = Config()
    if isinstance(min_received, (tuple, list)):
        min_received, options["min_received_stage1"], options["min_received_stage2"] = thresholds(min_received)
    if deadline is not None:
        call_deadline(deadline)  # a bad one is reported in Python's terms
    for name, value in {
        **options,
        "link": link,
        "deadline": deadline,
        "missing": missing,
        "consistency": consistency,
        "min_received": min_received,
        "rank": rank,
        "size": size,
        "groups": groups_text(groups),
    }.items():
        check_text(name, value)
        config.set(name, value)
    if address is not None:
        if not isinstance(address, str):
            raise ConfigError(
                f"address {address!r} is a {type(address).__name__}; a str is needed, 'host' or 'host:port' of rank 0"
            )
        check_text("address", address)
        host, port = split_address(address)
        config.set("master_addr", host)
        config.set("master_port", port)
    if config.get("link") == "sim":
        raise ConfigError("link sim is not for init: simulated communicators come from tailbound.simulate(n)")
    row = config.row("log")
    logs.follow_environment(row.value, row.source)
    config.set("log", "off")  # the core's own echo to stderr: the lines go to logging instead

    limit = config.get("deadline")
    defaults = {
        "deadline": limit if limit in ("auto", "exact", "inf") else seconds(limit),
        "min_received": tuple(config.get(f"min_received{part}") for part in ("", "_stage1", "_stage2")),
        **{
            name: config.get(name)
            for name in ("on_skip", "consistency", "missing", "wire_dtype", "hadamard", "deterministic")
        },
    }
    check_defaults(defaults)
    exchange = None
    if store is not None:
        job = f"{config.get('job')}/{config.get('restart')}"
        exchange = StoreExchange(
            store, job, int(config.get("rank")), int(config.get("size")), seconds(config.get("init_timeout"))
        )
    handle = _Start(config, exchange).run()
    try:
        comm = Communicator(handle, defaults)
    except BaseException:
        lib.tb_close(handle)
        raise
    comm._drain()
    return comm


def seconds(value: str) -> float:
    """A time of the options table in seconds: "60s", "2ms", "1.5min", a bare number."""
    for suffix, factor in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("min", 60.0), ("h", 3600.0), ("s", 1.0)):
        if value.endswith(suffix):
            return float(value[: -len(suffix)]) * factor
    return float(value)


class _Start:
    """One tb_init in its own thread."""

    def __init__(self, config: Config, exchange: StoreExchange | None) -> None:
        self.config, self.exchange = config, exchange
        self.out = ffi.new("tb_comm **")
        self.events: queue.SimpleQueue[tuple] = queue.SimpleQueue()  # to the caller's thread
        self.answers: queue.SimpleQueue[list[bytes] | BaseException] = queue.SimpleQueue()  # and back
        self.lock = threading.Lock()
        self.ended = self.abandoned = False
        self.raised: BaseException | None = None  # by the store

    def run(self) -> Any:
        thread = threading.Thread(target=self._connect, name="tailbound-init", daemon=True)
        thread.start()
        try:
            status, sentence = self._attend()
            thread.join()
        except BaseException:  # Ctrl-C
            self._abandon(thread)
            raise
        if status:
            if self.raised is not None:
                raise self.raised
            raise from_init(-status, sentence)
        return self.out[0]

    def _attend(self) -> tuple[int, str]:
        """In the caller's thread: serves the store until tb_init has ended."""
        while True:
            try:
                what, *arguments = self.events.get(timeout=_LOOK)
            except queue.Empty:
                continue
            finally:  # what keeps it waiting, and why it failed
                logs.emit(logs.fetch_early(self.config.handle))
            if what == "ended":
                status, sentence = arguments
                return status, sentence
            self._serve(*arguments)

    def _abandon(self, thread: threading.Thread) -> None:
        with self.lock:
            self.abandoned = True
            lib.tb_init_cancel(self.config.handle)
            self.answers.put(KeyboardInterrupt())
            ended = self.ended
        if not ended:
            thread.join(_LEAVE)
        elif self.out[0]:
            lib.tb_close(self.out[0])

    def _connect(self) -> None:
        exchange, me = ffi.NULL, ffi.NULL
        if self.exchange is not None:
            exchange, me = lib.tailbound_exchange, ffi.new_handle(self)
        status = lib.tb_init(self.config.handle, exchange, me, self.out)
        sentence = last_error() if status else ""
        with self.lock:
            self.ended = not self.abandoned
        if self.ended:
            self.events.put(("ended", status, sentence))
        elif self.out[0]:
            lib.tb_close(self.out[0])

    def _serve(self, tag: str, mine: bytes) -> None:
        assert self.exchange is not None
        try:
            self.answers.put(self.exchange(tag, mine))
        except Exception as error:
            self.raised = error
            self.answers.put(error)

    def ask(self, tag: str, mine: bytes) -> list[bytes] | BaseException:
        """From tb_init's thread: has the caller's thread do the exchange."""
        self.events.put(("exchange", tag, mine))
        return self.answers.get()


_CANCELED, _PROTO = -errno.ECANCELED, -errno.EPROTO


@ffi.def_extern(name="tailbound_exchange", error=_CANCELED)
def _exchange(context: Any, tag: Any, mine: Any, length: int, everybody: Any, stride: int) -> int:
    answer = ffi.from_handle(context).ask(text(tag), bytes(ffi.buffer(mine, length)))
    if isinstance(answer, BaseException):
        return _CANCELED
    for rank, blob in enumerate(answer):
        if len(blob) > stride:
            return _PROTO  # the core names the tag; a rank of another version wrote this
        ffi.memmove(everybody + rank * stride, blob.ljust(stride, b"\0"), stride)
    return 0
