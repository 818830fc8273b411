"""Rendezvous through any object with set(key, bytes) and get(key): a TCPStore, a FileStore, Redis, or a home-made one.

get may block for a while, raise, or return None while a key is not there yet: it is asked again until init_timeout.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from .errors import RendezvousError

_POLL_FIRST, _POLL_MOST = 0.002, 0.1

_used: dict[str, int] = {}  # how many communicators a job made so far: each has keys of its own


class Store(Protocol):
    """What init(store=) needs."""

    def set(self, key: str, value: bytes) -> Any: ...

    def get(self, key: str) -> bytes | None: ...


class StoreExchange:
    """All ranks give a blob and get everybody's, as often as the core asks; every wait ends by `deadline`
    (monotonic)."""

    def __init__(self, store: Any, job: str, rank: int, size: int, timeout: float) -> None:
        for method in ("set", "get"):
            if not callable(getattr(store, method, None)):
                raise RendezvousError(
                    f"store ({type(store).__name__}) has no {method}(); set(key, bytes) and get(key) are needed"
                )
        self.store, self.rank, self.size = store, rank, size
        self.timeout = timeout
        self.deadline = time.monotonic() + timeout
        ordinal = _used.get(job, 0)
        _used[job] = ordinal + 1
        self.prefix = f"tailbound/{job}/{ordinal}"
        self.step = 0

    def __call__(self, tag: str, mine: bytes) -> list[bytes]:
        base = f"{self.prefix}/{self.step}-{tag}"
        self.step += 1
        self.store.set(f"{base}/{self.rank}", mine)
        return [mine if rank == self.rank else self._fetch(f"{base}/{rank}", rank, tag) for rank in range(self.size)]

    def _fetch(self, key: str, rank: int, tag: str) -> bytes:
        pause = _POLL_FIRST
        while True:
            problem: Exception | None = None
            try:
                value = self.store.get(key)
            except Exception as error:  # "not there yet" has a different exception in every store
                value, problem = None, error
            if value is not None:
                if isinstance(value, str):
                    value = value.encode("latin-1")
                return bytes(value)
            if time.monotonic() >= self.deadline:
                last = f"; last error of get: {problem!r}" if problem else ""
                raise RendezvousError(
                    f"rank {self.rank}: nothing from rank {rank} in the store within {self.timeout:g} s "
                    f"(init_timeout), key {key!r}, step {tag!r}{last}. Is it running, with the same job and store?"
                ) from problem
            time.sleep(min(pause, max(0.0, self.deadline - time.monotonic())))
            pause = min(2 * pause, _POLL_MOST)
