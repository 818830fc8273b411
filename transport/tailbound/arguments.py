"""Checks of the plain arguments of a call: key, op, ranks, tags, shares, and the modes that come in a later version."""

from __future__ import annotations

import operator
from typing import Any

from .buffers import Buffer
from .dtypes import FLOATS, OPS
from .errors import ArgumentError

Deadline = float | str | None
Key = str | int | None

_NOW = {"missing": "renormalise", "consistency": "local"}
_LATER = {"missing": ("carry",), "consistency": ("agree",)}


def call_key(key: Key) -> bytes:
    """A key's bytes on the wire: "s:" or "i:" before it, so that 1 and "1" are different keys; empty = anonymous."""
    if key is None:
        return b""
    if isinstance(key, str):
        encoded = b"s:" + key.encode()
    else:
        encoded = b"i:%d" % _index("key", key, "a str or an int")
    if len(encoded) > 255:
        raise ArgumentError(f"key {str(key)[:40]!r}... has {len(encoded) - 2} bytes; at most 253 fit")
    return encoded


def call_op(op: str, source: Buffer) -> int:
    """The number of a reduction that the dtype allows."""
    code = OPS.get(op) if isinstance(op, str) else None
    if code is None:
        raise ArgumentError(f"op {op!r}: there are {', '.join(OPS)}")
    if op == "avg" and source.code not in FLOATS:
        raise ArgumentError(
            f"op 'avg' of {source.dtype}: a mean of integers is no integer; use 'sum', or convert to float"
        )
    return code


def call_rank(name: str, rank: int, size: int) -> int:
    """A rank of this communicator."""
    number = _index(name, rank, "a rank")
    if not 0 <= number < size:
        raise ArgumentError(f"{name} {number} is no rank of this communicator: 0 to {size - 1}")
    return number


def call_tag(tag: int) -> int:
    """A tag of send and recv."""
    number = _index("tag", tag, "an int")
    if not 0 <= number < 2**32:
        raise ArgumentError(f"tag {number}: 0 to 2**32 - 1")
    return number


def share(name: str, value: Any) -> float:
    """A share from 0 to 1; text as the options table has it ("0.5", "50%")."""
    try:
        if isinstance(value, str) and value.endswith("%"):
            number = float(value[:-1]) / 100
        else:
            number = float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} {value!r}: a share from 0 to 1 is needed") from None
    if not 0 <= number <= 1:
        raise ArgumentError(f"{name} {number!r}: a share from 0 to 1 is needed")
    return number


def only_now(name: str, value: str | None) -> None:
    """Raises for modes that are not in this version, telling them from typing errors."""
    if value is None or value == _NOW[name]:
        return
    if value in _LATER[name]:
        raise ArgumentError(f"{name}={value!r} comes in a later version; this one has {_NOW[name]!r}")
    raise ArgumentError(f"{name}={value!r} is unknown; this version has {_NOW[name]!r}")


def _index(name: str, value: Any, needed: str) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise ArgumentError(f"{name} is a {type(value).__name__}; {needed} is needed")
