"""The compiled core, and the few things every caller of it needs: its strings, its sentence for the last error."""

from __future__ import annotations

from typing import Any

try:
    from tailbound._tailbound import ffi, lib
except ImportError as error:  # a source tree that was never built
    raise ImportError(
        f"tailbound's compiled core is not usable ({error}). In a source tree run `make build` (or `pip install .`); "
        "an installed wheel is for another machine or Python: pip install --force-reinstall --no-cache-dir tailbound"
    ) from error

__all__ = ["ffi", "last_error", "lib", "text"]

EXACT = 2**64 - 1  # deadline_ns of an exact call
NONE = 2**64 - 1  # a counter that the device cannot give


def text(pointer: Any) -> str:
    """A C string; "" for NULL."""
    return "" if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


def last_error() -> str:
    """What tb_last_error() says on this thread, whose call just failed."""
    return text(lib.tb_last_error())
