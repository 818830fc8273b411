"""The core's log lines go to Python's logging, logger "tailbound".

The core keeps them in a ring; they are fetched at the end of each call, of each slice of a wait (of init too), and at
close, so no thread of ours ever runs Python code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .core import ffi, lib
from .wording import readable

logger = logging.getLogger("tailbound")

_LINE = 1024
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


def fetch(handle: Any) -> list[tuple[int, str]]:
    """Takes what is in the ring now. The caller makes sure that the communicator stays open meanwhile."""
    return _taken(lib.tb_log_next, handle)


def fetch_early(config: Any) -> list[tuple[int, str]]:
    """The same while there is no communicator yet, or where none came of it."""
    return _taken(lib.tb_init_log_next, config)


def _taken(take: Callable[..., int], of: Any) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    buffer, level = ffi.new("char[]", _LINE), ffi.new("int *")
    while take(of, buffer, _LINE, level) == 1:
        lines.append((level[0], readable(ffi.string(buffer).decode("utf-8", "replace"))))
    return lines


def emit(lines: list[tuple[int, str]]) -> None:
    """Hands lines to logging, outside of any lock of ours."""
    for level, line in lines:
        logger.log(level, "%s", line)


def follow_environment(level: str, source: str) -> None:
    """TAILBOUND_LOG=info shows the lines even in a program that never set up logging."""
    if not source.startswith("env"):
        return
    if level == "off":
        logger.setLevel(logging.CRITICAL + 1)
    elif level in _LEVELS:
        logger.setLevel(_LEVELS[level])
        if not logger.handlers and not logging.getLogger().handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("tailbound %(levelname)s: %(message)s"))
            logger.addHandler(handler)
