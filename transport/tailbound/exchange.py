"""Rendezvous through any object with set(key, bytes) and get(key): a TCPStore, a FileStore, Redis, or a home-made one.

get may block for a while, raise, or return None while a key is not there yet: it is asked again until init_timeout.

A store may be older than the job: what an earlier run of the same job wrote is still in it, and so is what this run
wrote in an init that failed. So the ranks first agree on a session, under whose name nobody has written anything yet:

    rank r writes its entry "TOKEN -", the token new and random, and reads rank 0's roster
    rank 0 reads the entries and writes the roster of their tokens, its own included, again whenever one changes
    rank r takes only a roster with its own token, and then writes "TOKEN SESSION", SESSION being a digest of the roster
    rank 0, once every entry names the roster's session, writes the roster again as agreed

An old entry never names a session of a roster with rank 0's new token, and an old roster has nobody's new token.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

from .errors import RendezvousError

_POLL_FIRST, _POLL_MOST = 0.002, 0.1
_ABSENT = "-"


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
        self.prefix = f"tailbound/{job}"
        self.token = secrets.token_hex(16)
        self.session: str | None = None
        self.step = 0
        self.problem: Exception | None = None  # what get last raised

    def __call__(self, tag: str, mine: bytes) -> list[bytes]:
        if self.session is None:
            self.session = self._lead(tag) if self.rank == 0 else self._follow(tag)
        base = f"{self.prefix}/{self.session}/{self.step}-{tag}"
        self.step += 1
        self.store.set(f"{base}/{self.rank}", mine)
        return [mine if rank == self.rank else self._fetch(f"{base}/{rank}", rank, tag) for rank in range(self.size)]

    # ---- the session

    def _lead(self, tag: str) -> str:
        """Rank 0: the session, once all ranks are in it."""
        written, entries = "", [("", "")]

        def all_in() -> str | None:
            nonlocal written, entries
            entries = [self._entry(rank) for rank in range(1, self.size)]
            tokens = " ".join([self.token, *(token for token, _ in entries)])
            if tokens != written:
                self.store.set(f"{self.prefix}/roster", f"asked {tokens}".encode())
                written = tokens
            session = _digest(tokens)
            return session if all(named == session for _, named in entries) else None

        def who() -> str:
            missing = [rank for rank, (_, named) in enumerate(entries, 1) if named != _digest(written)]
            return f"nothing from {_ranks(missing)} of this run in the store, keys {self.prefix}/entry/..."

        session = self._poll(all_in, who, tag)
        self.store.set(f"{self.prefix}/roster", f"agreed {written}".encode())
        return session

    def _follow(self, tag: str) -> str:
        """The others: the session, once rank 0 says that all ranks are in it."""
        entry, roster = f"{self.prefix}/entry/{self.rank}", f"{self.prefix}/roster"
        self.store.set(entry, f"{self.token} {_ABSENT}".encode())
        named, seen = "", []

        def agreed() -> str | None:
            nonlocal named, seen
            state, _, tokens = self._text(roster).partition(" ")
            listed = tokens.split(" ")
            if len(listed) != self.size or listed[self.rank] != self.token:
                return None
            session, seen = _digest(tokens), listed
            if session != named:
                self.store.set(entry, f"{self.token} {session}".encode())
                named = session
            return session if state == "agreed" else None

        def who() -> str:
            absent = [rank for rank, token in enumerate(seen) if token == _ABSENT]
            if absent:
                return f"nothing from {_ranks(absent)} in the store, says rank 0"
            if seen:
                return "rank 0 has not heard from all ranks of this run in the store"
            return f"nothing from rank 0 of this run in the store, key {roster}"

        return self._poll(agreed, who, tag)

    def _entry(self, rank: int) -> tuple[str, str]:
        """A rank's token and the session that it names; "-" for what is not there."""
        token, _, session = self._text(f"{self.prefix}/entry/{rank}").partition(" ")
        return token or _ABSENT, session or _ABSENT

    # ---- the store

    def _fetch(self, key: str, rank: int, tag: str) -> bytes:
        return self._poll(lambda: self._get(key), lambda: f"nothing from rank {rank} in the store, key {key}", tag)

    def _poll(self, look: Callable[[], Any], who: Callable[[], str], tag: str) -> Any:
        """What `look` finds, asked until it is not None; at the deadline an error that says `who` it was."""
        pause = _POLL_FIRST
        while True:
            self.problem = None
            found = look()
            if found is not None:
                return found
            if time.monotonic() >= self.deadline:
                problem = self.problem
                last = f"; last error of get: {problem!r}" if problem else ""
                raise RendezvousError(
                    f"rank {self.rank}: {who()}, within {self.timeout:g} s (init_timeout), step {tag!r}{last}. "
                    "Is it running, with the same job and store?"
                ) from problem
            time.sleep(min(pause, max(0.0, self.deadline - time.monotonic())))
            pause = min(2 * pause, _POLL_MOST)

    def _get(self, key: str) -> bytes | None:
        try:
            value = self.store.get(key)
        except Exception as error:  # "not there yet" has a different exception in every store
            self.problem = error
            return None
        if value is None:
            return None
        try:
            return value.encode("latin-1") if isinstance(value, str) else bytes(memoryview(value))
        except (TypeError, UnicodeEncodeError):
            raise RendezvousError(
                f"the store's get({key!r}) gave a {type(value).__name__}: {str(value)[:40]!r}; the bytes that were set "
                "are needed"
            ) from None

    def _text(self, key: str) -> str:
        return (self._get(key) or b"").decode("latin-1")


def _digest(tokens: str) -> str:
    return hashlib.sha256(tokens.encode("latin-1")).hexdigest()[:32]


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
