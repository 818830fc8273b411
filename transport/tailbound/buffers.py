"""From a caller's object to (address, count, dtype): every check that only the caller's side can make.

Order of acquisition: NumPy array, PEP 3118 buffer, DLPack v1, __cuda_array_interface__. Nothing is ever copied: an
object that would need a copy is rejected, and the text says which property was wrong, what it was, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import dlpack
from .dtypes import CODES, bfloat16, code_of
from .errors import BufferRejected

_SUPPORTED = ", ".join(CODES)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a caller, pinned for as long as this object lives."""

    address: int
    count: int
    code: int  # tb_dtype
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    owner: object

    @property
    def nbytes(self) -> int:
        return self.count * self.itemsize


class Like(NamedTuple):
    """What another buffer has to be like."""

    shape: tuple[int, ...]
    dtype: str
    code: int
    count: int


def acquire(obj: Any, *, writable: bool, name: str = "x") -> Buffer:
    """The memory behind `obj`, or BufferRejected. `name` is what the caller calls the argument."""
    if isinstance(obj, np.ndarray):
        return _from_array(obj, obj, writable, name, type(obj).__name__)
    if isinstance(obj, np.generic):
        raise BufferRejected(
            f"{name} is a NumPy scalar ({obj.dtype}), which cannot be changed in place: use np.array([...])"
        )
    try:
        view = memoryview(obj)
    except (TypeError, ValueError, BufferError):
        view = None
    if view is not None:
        try:
            array = np.asarray(view)
        except (TypeError, ValueError) as error:
            raise BufferRejected(f"{name} ({type(obj).__name__}) has buffer format {view.format!r}: {error}") from None
        return _from_array(array, view, writable, name, type(obj).__name__)
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return _from_dlpack(obj, writable, name)
    if hasattr(obj, "__cuda_array_interface__"):
        raise _device_memory(obj, name, "cuda")
    hint = " (wrap it: np.asarray(...))" if isinstance(obj, (list, tuple, float, int)) else ""
    raise BufferRejected(
        f"{name} is a {type(obj).__name__}, which gives no buffer{hint}: "
        "a NumPy array, or an object with the buffer protocol, __dlpack__ or __cuda_array_interface__ is needed"
    )


def acquire_pair(x: Any, out: Any) -> tuple[Buffer, Buffer]:
    """Input and output of a reduction: in place when out is None or x itself, else of equal dtype and size and
    apart."""
    if out is None or out is x:
        both = acquire(x, writable=True)
        return both, both
    source = acquire(x, writable=False)
    target = acquire(out, writable=True, name="out")
    check_like(target, source.code, source.dtype, source.count, "x has")
    if source.address != target.address and overlap(source, target):
        raise BufferRejected("x and out overlap in part: pass the same array (in place), or two that share no memory")
    return source, target


def check_like(buffer: Buffer, code: int, dtype: str, count: int, whose: str) -> None:
    """Raises unless `buffer`, an argument called out, has this dtype and size."""
    if buffer.code != code:
        raise BufferRejected(f"out has dtype {buffer.dtype}, {whose} {dtype}: they must be the same")
    if buffer.count != count:
        raise BufferRejected(f"out has {buffer.count} elements (shape {buffer.shape}), {whose} {count}")


def overlap(one: Buffer, other: Buffer) -> bool:
    """Whether the two share any byte."""
    return (
        min(one.nbytes, other.nbytes) > 0
        and one.address < other.address + other.nbytes
        and other.address < one.address + one.nbytes
    )


def _from_array(array: np.ndarray, owner: object, writable: bool, name: str, kind: str) -> Buffer:
    what = f"{name} ({kind}, shape {array.shape}, strides {array.strides}, dtype {array.dtype})"
    if isinstance(array, np.ma.MaskedArray):
        raise BufferRejected(
            f"{what} is a masked array, and what the mask hides would be reduced too: pass x.filled(0) or x.data"
        )
    code = _checked_code(array.dtype, what)
    if not array.flags.c_contiguous:
        raise BufferRejected(f"{what} is not C-contiguous: pass np.ascontiguousarray({name}) and copy the result back")
    if writable and not array.flags.writeable:
        raise BufferRejected(f"{what} is read-only, and the result would be written to it: pass out=, or a copy")
    return Buffer(
        array.__array_interface__["data"][0],
        array.size,
        code,
        array.dtype.name,
        array.dtype.itemsize,
        array.shape,
        (array, owner),
    )


def _checked_code(dtype: np.dtype, what: str) -> int:
    if dtype.hasobject:
        raise BufferRejected(
            f"{what} holds Python objects, which cannot be sent: convert it, for example x.astype(np.float32)"
        )
    if not dtype.isnative:
        native = dtype.newbyteorder("=")
        raise BufferRejected(
            f"{what} has byte order {dtype.byteorder!r}, not this machine's: pass x.astype('{native.str}')"
        )
    code = code_of(dtype)
    if code is None:
        raise BufferRejected(
            f"{what} has no element type that can be reduced; there are {_SUPPORTED}{_dtype_hint(dtype)}"
        )
    return code


def _dtype_hint(dtype: np.dtype) -> str:
    if dtype.kind == "c":
        return f" (complex numbers add as pairs: x.view(np.float{dtype.itemsize * 4}))"
    if dtype.kind == "b":
        return " (bool: x.view(np.uint8), with op max or min)"
    return ""


def _from_dlpack(obj: Any, writable: bool, name: str) -> Buffer:
    kind = type(obj).__name__
    if not dlpack.on_host(obj):
        raise _device_memory(obj, name, ":".join(str(part) for part in dlpack.device_of(obj)))
    try:
        export = dlpack.read(obj)
    except (BufferError, RuntimeError, ValueError) as error:
        if isinstance(error, BufferRejected):
            raise
        raise BufferRejected(f"{name} ({kind}) refuses to share its memory: {error}") from error
    what = f"{name} ({kind}, shape {export.shape}, strides {export.strides} elements, dtype {export.dtype})"
    code = CODES.get(export.dtype)
    if code is None:
        raise BufferRejected(f"{what} has no element type that can be reduced; there are {_SUPPORTED}")
    if not _is_c_order(export.shape, export.strides):
        raise BufferRejected(f"{what} is not C-contiguous: pass {name}.contiguous() and copy the result back")
    if writable and export.readonly:
        raise BufferRejected(f"{what} is read-only, and the result would be written to it: pass out=, or a copy")
    count = 1
    for extent in export.shape:
        count *= extent
    itemsize = {"bfloat16": 2}.get(export.dtype) or np.dtype(export.dtype).itemsize
    return Buffer(export.address, count, code, export.dtype, itemsize, export.shape, (obj, export.capsule))


def _is_c_order(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    if strides is None or 0 in shape:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _device_memory(obj: Any, name: str, where: str) -> BufferRejected:
    return BufferRejected(
        f"{name} ({type(obj).__name__}) lies in device memory ({where}), which this version cannot reduce yet: "
        "copy it to the host first (cupy.asnumpy(x), x.cpu()) and the result back"
    )


def empty(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """A new array for a result; bfloat16 needs ml_dtypes."""
    if dtype != "bfloat16":
        return np.empty(shape, dtype)
    found = bfloat16()
    if found is None:
        raise BufferRejected("a bfloat16 result needs the ml_dtypes package (pip install ml_dtypes), or pass out=")
    return np.empty(shape, found)
