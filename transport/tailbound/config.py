"""Options: the core's one table, filled from the environment and then from the keyword arguments of init().

The table itself (names, environment variables, defaults, units, reasons) lives in the core, so that programs without
Python read the same variables; here are only the Python values and the printing.
"""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any, NamedTuple

from .core import ffi, last_error, lib, text
from .errors import ArgumentError, ConfigError


class Row(NamedTuple):
    """One option. `source` is "default", "env NAME" or "set"."""

    name: str
    env: str
    value: str
    source: str
    unit: str
    why: str


def as_text(name: str, value: Any) -> str:
    """A Python value as the table reads it: times are seconds (2.5, "2ms"), sizes bytes (1 << 20, "1M")."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        if math.isnan(value):
            raise ConfigError(f"option {name} is nan")
        return "inf" if math.isinf(value) and value > 0 else repr(value)
    if isinstance(value, str):
        return value
    with contextlib.suppress(TypeError):  # an array has both methods, and may be none
        number = operator.index(value)
        if number.bit_length() > 64:
            raise ConfigError(f"option {name} is an int of {number.bit_length()} bits: far too large")
        return str(number)
    try:
        real = float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"option {name} is a {type(value).__name__}; a str, int, float or bool is needed") from None
    return as_text(name, real)


class Config:
    """The table with its current values. Reading it reads the environment; bad variables raise ConfigError by name."""

    def __init__(self) -> None:
        out = ffi.new("tb_config **")
        status = lib.tb_config_new(out)
        if status:
            raise ConfigError(-status, last_error())
        self.handle = ffi.gc(out[0], lib.tb_config_free)

    def set(self, name: str, value: Any) -> None:
        """Sets one option; None leaves it as the environment or the default has it."""
        if value is None:
            return
        if not name.isidentifier():
            raise ConfigError(f"there is no option {name!r}; `tailbound config` lists them all")
        status = lib.tb_config_set(self.handle, name.encode(), as_text(name, value).encode())
        if status:
            raise ConfigError(-status, last_error())

    def get(self, name: str) -> str:
        """The value as text."""
        value = lib.tb_config_get(self.handle, name.encode())
        if value == ffi.NULL:
            raise ConfigError(f"there is no option {name}; `tailbound config` lists them all")
        return text(value)

    def rows(self) -> list[Row]:
        """The whole table, in its order."""
        fields = [ffi.new("char **") for _ in Row._fields]
        found: list[Row] = []
        while lib.tb_config_row(self.handle, len(found), *fields) == 0:
            found.append(Row(*(text(field[0]) for field in fields)))
        return found

    def row(self, name: str) -> Row:
        """One row by its name."""
        for row in self.rows():
            if row.name == name:
                return row
        raise ConfigError(f"there is no option {name}; `tailbound config` lists them all")


def split_address(address: str) -> tuple[str, str | None]:
    """ "host", "host:port", "::1" or "[::1]:port" as host and port."""
    host, port = address, None
    if address.startswith("["):
        inside, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"address {address!r}: an IPv6 address with a port is written [addr]:port")
        host, port = inside, rest[1:] if rest else None
    elif address.count(":") == 1:
        host, port = address.split(":")
    if not host or (port is not None and not (port.isdigit() and 0 < int(port) < 65536)):
        raise ConfigError(f"address {address!r}: expected host or host:port of rank 0, with a port from 1 to 65535")
    return host, port


def deadline_ns(value: float | str) -> int:
    """A deadline as the core takes it: 0 = auto, EXACT = inf, else nanoseconds."""
    if isinstance(value, str):
        if value == "auto":
            return 0
        if value in ("exact", "inf"):
            return 2**64 - 1
        raise ArgumentError(f"deadline {value!r}: expected seconds, 'auto', or float('inf') for an exact call")
    seconds = _number("deadline", value)
    if seconds == math.inf:
        return 2**64 - 1
    if not seconds > 0:
        raise ArgumentError(
            f"deadline {seconds!r} s: must be above 0 (seconds, 'auto', or float('inf') for an exact call)"
        )
    return _to_ns("deadline", seconds)


def seconds_ns(name: str, value: float) -> int:
    """Seconds, at least 0, as nanoseconds."""
    seconds = _number(name, value)
    if seconds < 0 or math.isinf(seconds):
        raise ArgumentError(f"{name} {seconds!r} s: must be a finite number of seconds, at least 0")
    return _to_ns(name, seconds)


def _number(name: str, value: float) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} is a {type(value).__name__}; seconds as a number are needed") from None
    if math.isnan(seconds):
        raise ArgumentError(f"{name} is nan; seconds as a number are needed")
    return seconds


def _to_ns(name: str, seconds: float) -> int:
    nanoseconds = max(1, round(seconds * 1e9)) if seconds > 0 else 0
    if nanoseconds > 3600 * 10**9 * 24 * 365:
        raise ArgumentError(f"{name} {seconds!r} s is longer than a year; is it in seconds?")
    return nanoseconds


def table(rows: list[Row], *, reasons: bool = True) -> str:
    """The table for people: values, where each came from, and why the option exists."""
    lines: list[str] = []
    width = max(len(row.name) for row in rows)
    for row in rows:
        lines.append(f"{row.name:{width}}  {row.value or '(empty)'}   [{row.source}]  {row.unit}")
        if reasons:
            lines.append(f"{'':{width}}  {row.why}")
            lines.append(f"{'':{width}}  {row.env}")
    return "\n".join(lines)
