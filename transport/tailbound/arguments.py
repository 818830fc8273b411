"""Checks of the plain arguments of a call: key, op, ranks, tags, shares, modes and groups."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from .buffers import Buffer
from .config import deadline_ns, seconds_ns
from .core import lib
from .dtypes import CODES, FLOATS, OPS
from .errors import ArgumentError, ConfigError

Deadline = float | str | None
Key = str | int | None
MinReceived = float | tuple[float, float, float] | None

_MISSING = {"renormalise": lib.TB_RENORMALISE, "carry": lib.TB_CARRY}
_FILL = {"zero": lib.TB_FILL_ZERO, "own": lib.TB_FILL_OWN}
_CONSISTENCY = {"local": lib.TB_LOCAL, "agree": lib.TB_AGREE}
_WIRE = {"none": 0, "bf16": CODES["bfloat16"], "fp16": CODES["float16"], "int8": CODES["int8"]}


_MOST_BITS = 3000  # more than fits anywhere here, and still short enough to be written down


def call_key(key: Key) -> bytes:
    """A key's bytes on the wire: "s:" or "i:" before it, so that 1 and "1" are different keys; empty = anonymous."""
    if key is None:
        return b""
    if isinstance(key, str):
        try:
            encoded = b"s:" + key.encode()
        except UnicodeEncodeError:
            raise ArgumentError(f"key {key[:40]!r} has a lone surrogate; text that UTF-8 can hold is needed") from None
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
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} {value!r}: a share from 0 to 1 is needed") from None
    if not 0 <= number <= 1:
        raise ArgumentError(f"{name} {number!r}: a share from 0 to 1 is needed")
    return number


def thresholds(value: Any, stages: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float, float]:
    """min_received as (total, stage 1, stage 2): one share, which leaves the stages' as they are, or all three."""
    if not isinstance(value, (tuple, list)):
        return share("min_received", value), *stages
    if len(value) != 3:
        raise ArgumentError(f"min_received {value!r}: one share, or three (total, stage 1, stage 2)")
    total, first, second = (share("min_received", part) for part in value)
    return total, first, second


def check_defaults(defaults: dict[str, Any]) -> None:
    """Of a communicator: what would make every lossy all_reduce of it fail."""
    _, *stages = thresholds(defaults["min_received"])
    if call_consistency(defaults["consistency"]) == lib.TB_AGREE and any(stages):
        raise ConfigError(
            "consistency='agree' with a min_received of a stage: that is each rank's own view, which an agreed verdict "
            "cannot go by. Give the total only, or consistency='local'"
        )


def call_halt(value: Any) -> bool:
    """Whether a skip raises at once."""
    if not isinstance(value, str) or value not in ("skip", "halt"):
        raise ArgumentError(f"on_skip={value!r}: 'skip' (raise after max_skips in a row) or 'halt' (raise at once)")
    return value == "halt"


def call_deadline(value: float | str) -> int:
    """A deadline as the core takes it, which has no room for 1e300."""
    try:
        return deadline_ns(value)
    except OverflowError:
        raise _too_long("deadline", value) from None


def call_seconds(name: str, value: float) -> int:
    """Seconds as nanoseconds."""
    try:
        return seconds_ns(name, value)
    except OverflowError:
        raise _too_long(name, value) from None


def check_text(name: str, value: Any) -> None:
    """Text that the core can read: UTF-8, without NUL."""
    if isinstance(value, str) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value):
        raise ConfigError(f"{name} {value[:80]!r}: text that UTF-8 can hold, without NUL, is needed")


def whole_number(name: str, value: Any, most: int) -> int:
    """An int from 0 to `most`."""
    number = _index(name, value, "an int")
    if not 0 <= number <= most:
        raise ArgumentError(f"{name} {number}: 0 to {most} is needed")
    return number


def call_consistency(value: Any) -> int:
    """A tb_consistency."""
    code = _CONSISTENCY.get(value) if isinstance(value, str) else None
    if code is None:
        raise ArgumentError(f"consistency={value!r}: there are {', '.join(map(repr, _CONSISTENCY))}")
    return code


def call_fill(value: Any) -> int:
    """A tb_fill."""
    code = _FILL.get(value) if isinstance(value, str) else None
    if code is None:
        raise ArgumentError(f"fill={value!r}: there are {', '.join(map(repr, _FILL))}")
    return code


def call_missing(value: Any) -> int:
    """A tb_missing."""
    code = _MISSING.get(value) if isinstance(value, str) else None
    if code is None:
        raise ArgumentError(f"missing={value!r}: there are {', '.join(map(repr, _MISSING))}")
    return code


def call_wire_dtype(value: Any) -> int:
    """The number of the dtype that travels; 0 = the elements as they are."""
    code = _WIRE.get(value) if isinstance(value, str) else None
    if code is None:
        raise ArgumentError(f"wire_dtype={value!r}: there are {', '.join(map(repr, _WIRE))}")
    return code


def takes_wire_dtype(source: Buffer, op: str) -> bool:
    """Whether an all_reduce may travel as another dtype."""
    return source.code == CODES["float32"] and op in ("sum", "avg")


def call_hadamard(value: Any) -> int:
    """Whether to transform; "on" and "off" are the options table's words."""
    if isinstance(value, str) and value == "auto":
        return lib.TB_BY_LOSS
    plain = isinstance(value, (bool, int, str, np.bool_))  # others may compare as they like
    if plain and (value in (True, "on") or value in (False, "off")):
        return lib.TB_TRANSFORMED if value in (True, "on") else lib.TB_PLAIN
    raise ArgumentError(f"hadamard={value!r}: True, False or 'auto' is needed")


def call_deterministic(value: Any) -> int:
    """Whether contributions are added by rank; "on" and "off" are the options table's words."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, str) and value in ("on", "off")):
        return int(value in (True, "on"))
    raise ArgumentError(f"deterministic={value!r}: True or False is needed")


def call_groups(value: Any) -> int:
    """A tb_call's groups: 0 = where it can be, 1 = must be, -1 = not."""
    if value is None:
        return 0
    if not isinstance(value, (bool, np.bool_)):
        raise ArgumentError(f"groups={value!r}: True or False is needed; which groups there are is init's to say")
    return 1 if value else -1


def _ranks_text(group: Sequence[Any]) -> str:
    runs: list[list[int]] = []
    for rank in sorted(whole_number("a rank of groups", rank, 1024) for rank in group):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def groups_text(value: Any) -> Any:
    """The option `groups` of what init and simulate take: text and numbers as they are, lists of ranks as text."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        if not isinstance(value, bool) and hasattr(value, "__index__"):
            with contextlib.suppress(TypeError):  # an array has the method, and may be no number
                return operator.index(value)
        raise ArgumentError(f"groups={value!r}: 'off', 'auto', 'host', 'local_rank', ranks in each, or lists of ranks")
    if not value or not all(isinstance(group, (list, tuple, range)) and len(group) for group in value):
        raise ArgumentError(f"groups={value!r}: a list of lists of ranks is needed, such as [[0, 1], [2, 3]]")
    return "/".join(_ranks_text(group) for group in value)


def takes_hadamard(source: Buffer, op: str) -> bool:
    """Whether an all_reduce may be transformed."""
    return source.code in (CODES["float32"], CODES["float64"]) and op in ("sum", "avg")


def _too_long(name: str, value: Any) -> ArgumentError:
    shown = f"{value!r} s" if isinstance(value, float) else f"(a {type(value).__name__} beyond 1e300 s)"
    return ArgumentError(f"{name} {shown} is longer than a year; is it in seconds?")


def _index(name: str, value: Any, needed: str) -> int:
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if number.bit_length() > _MOST_BITS:
                raise ArgumentError(f"{name} is an int of {number.bit_length()} bits: far too large")
            return number
    raise ArgumentError(f"{name} is a {type(value).__name__}; {needed} is needed")
