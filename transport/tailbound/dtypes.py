"""Element types of the wire and their NumPy names. The numbers are those of tb_dtype in native/include/tailbound.h."""

from __future__ import annotations

import sys

import numpy as np

CODES: dict[str, int] = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 3,
    "int8": 4,
    "uint8": 5,
    "int16": 6,
    "uint16": 7,
    "int32": 8,
    "uint32": 9,
    "int64": 10,
    "uint64": 11,
}
FLOATS = frozenset((0, 1, 2, 3))

OPS: dict[str, int] = {"sum": 0, "avg": 1, "min": 2, "max": 3, "prod": 4}

_BY_DTYPE: dict[np.dtype, int] = {np.dtype(name): code for name, code in CODES.items() if name != "bfloat16"}


def code_of(dtype: np.dtype) -> int | None:
    """The wire's number of a native dtype; None when it has none."""
    code = _BY_DTYPE.get(dtype)
    if code is None and dtype.name == "bfloat16" and dtype.itemsize == 2:  # from ml_dtypes, which we never import
        code = _BY_DTYPE[dtype] = CODES["bfloat16"]
    return code


def bfloat16() -> np.dtype | None:
    """The bfloat16 dtype when ml_dtypes is installed."""
    module = sys.modules.get("ml_dtypes")
    if module is None:
        try:
            import ml_dtypes as module
        except ImportError:
            return None
    return np.dtype(module.bfloat16)
