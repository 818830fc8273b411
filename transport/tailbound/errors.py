"""What Tailbound raises: one base class that carries errno, and a subclass for each thing a caller may want to handle.

The text is the core's sentence, which names what is wrong, where, and the remedy.
"""

from __future__ import annotations

import errno as _errno
import os

from .wording import readable

__all__ = [
    "ArgumentError",
    "BufferRejected",
    "BusyError",
    "Cancelled",
    "ClosedError",
    "ConfigError",
    "Error",
    "ForkError",
    "KeyBoundError",
    "KeyInUseError",
    "MembershipChanged",
    "MismatchError",
    "PeerLost",
    "RendezvousError",
    "ResyncNeeded",
    "SkippedTooOften",
    "TimedOut",
]


class Error(Exception):
    """Base of all of them. `errno` is a positive number of the errno module, `text` the sentence."""

    default_errno = _errno.EIO

    def __init__(self, errno: int | str | None = None, text: str | None = None) -> None:
        if isinstance(errno, str):  # Error("sentence"): the class knows its number
            errno, text = None, errno
        number = self.default_errno if errno is None else abs(errno)
        self.text = readable(text) if text else os.strerror(number)
        super().__init__(number, self.text)
        self.errno = number

    def __str__(self) -> str:
        return self.text


class TimedOut(Error, TimeoutError):
    """An exact call did not end within the bound it was given (all_reduce in place: its input is restored), or
    `wait(timeout=)` ran out and the operation goes on."""

    default_errno = _errno.ETIMEDOUT


class MismatchError(Error):
    """Ranks called the same round with different counts, dtypes, operations, versions or jobs."""

    default_errno = _errno.EPROTO


class KeyBoundError(MismatchError):
    """The key was used with another signature before (`comm.forget(key)` frees it), or two keys share one hash."""

    default_errno = _errno.EEXIST


class PeerLost(Error, ConnectionError):
    """A peer said nothing for `peer_timeout`, or is gone; the text names it."""

    default_errno = _errno.EHOSTDOWN


class SkippedTooOften(Error):
    """`max_skips` rounds in a row arrived below `min_received`."""

    default_errno = _errno.ENODATA


class BusyError(Error):
    """Too much is under way: memory or keys beyond the stated cap. Wait for an operation and issue again. Or a world
    that is in use cannot be closed."""

    default_errno = _errno.EAGAIN


class KeyInUseError(BusyError):
    """Two threads used one key (or anonymous operations) at once; give each bucket its own key."""

    default_errno = _errno.EBUSY


class ArgumentError(Error, ValueError):
    """An argument is out of range, or its combination with others makes no sense."""

    default_errno = _errno.EINVAL


class BufferRejected(ArgumentError, BufferError):
    """A buffer cannot be used: its layout, byte order, dtype, size, device or writability."""


class ConfigError(ArgumentError):
    """An option or environment variable is unknown or has a bad value."""


class RendezvousError(Error, ConnectionError):
    """The ranks did not find each other in time, or not over a usable path."""

    default_errno = _errno.ECONNREFUSED


class ResyncNeeded(Error):
    """An agreed round of this key failed on this rank, or the membership changed, and others may have returned it:
    resync(key) on every rank."""

    default_errno = _errno.ESTALE


class MembershipChanged(Error):
    """The list of members changed. Said once on every rank: by an exact or agreed operation that waited (its input is
    restored), or else by the next exact call, which is not executed: other ranks may have ended an earlier one
    otherwise. Or this rank was voted out: rejoin()."""

    default_errno = _errno.ENETRESET


class ClosedError(Error):
    """The communicator (or simulated world) was closed."""

    default_errno = _errno.ESHUTDOWN


class ForkError(Error):
    """A communicator was used in a forked child, which has its memory but not its progress thread."""

    default_errno = _errno.ECHILD


class Cancelled(Error):
    """The operation was cancelled (all_reduce in place: its input is restored)."""

    default_errno = _errno.ECANCELED


_BY_ERRNO: dict[int, type[Error]] = {
    _errno.ETIMEDOUT: TimedOut,
    _errno.EPROTO: MismatchError,
    _errno.EEXIST: KeyBoundError,
    _errno.EHOSTDOWN: PeerLost,
    _errno.ECONNRESET: PeerLost,
    _errno.ENODATA: SkippedTooOften,
    _errno.ESTALE: ResyncNeeded,
    _errno.ENETRESET: MembershipChanged,
    _errno.EAGAIN: BusyError,
    _errno.ENOBUFS: BusyError,
    _errno.EBUSY: KeyInUseError,
    _errno.EINVAL: ArgumentError,
    _errno.ERANGE: ArgumentError,
    _errno.ECANCELED: Cancelled,
    _errno.ESHUTDOWN: ClosedError,
}

# While communicators are set up the same numbers mean other things: nothing has been agreed yet.
_AT_INIT: dict[int, type[Error]] = {
    _errno.EINVAL: ConfigError,
    _errno.ERANGE: ConfigError,
    _errno.ENOENT: ConfigError,
    _errno.ENODEV: ConfigError,
    _errno.EADDRNOTAVAIL: ConfigError,
    _errno.EPERM: ConfigError,
    _errno.EACCES: ConfigError,
    _errno.EBUSY: ConfigError,
    _errno.EMSGSIZE: ConfigError,
    _errno.ENETDOWN: ConfigError,
    _errno.ENETUNREACH: ConfigError,
    _errno.E2BIG: ConfigError,
    _errno.ELIBACC: ConfigError,
    _errno.EXDEV: ForkError,
    _errno.EPROTO: MismatchError,
    _errno.ENOMEM: Error,
    _errno.ECANCELED: Cancelled,
}


def from_errno(number: int, text: str = "") -> Error:
    """The exception for a -errno of an operation."""
    return _BY_ERRNO.get(abs(number), Error)(abs(number), text)


def from_init(number: int, text: str = "") -> Error:
    """The exception for a -errno of tb_init."""
    return _AT_INIT.get(abs(number), RendezvousError)(abs(number), text)
