"""Reading a DLPack v1 capsule without copying, for tensors that have no buffer protocol (torch, JAX, CuPy).

NumPy's own from_dlpack knows no bfloat16 and loses writability, so the two structures are read here. The capsule is
never consumed: its destructor frees the export when the last reference to it goes, and until then the memory is pinned.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from .errors import BufferRejected

CPU_DEVICES = {1: "cpu", 3: "cuda_host", 11: "rocm_host"}
DEVICES = {**CPU_DEVICES, 2: "cuda", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda_managed", 14: "oneapi"}
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_READ_ONLY = 1


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Export(NamedTuple):
    """A tensor as its exporter describes it; `capsule` keeps it alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # in elements; None = C order
    dtype: str
    readonly: bool
    capsule: object


def device_of(obj: Any) -> tuple[str, int]:
    """Name and number of the device an object with __dlpack_device__ lies on."""
    kind, number = obj.__dlpack_device__()
    return DEVICES.get(int(kind), f"device type {int(kind)}"), int(number)


def on_host(obj: Any) -> bool:
    """Whether the memory can be read by the CPU."""
    return int(obj.__dlpack_device__()[0]) in CPU_DEVICES


def read(obj: Any) -> Export:
    """Asks for a view of host memory (never a copy) and reads it."""
    try:
        capsule = obj.__dlpack__(max_version=(1, 0), copy=False)
    except TypeError:  # an exporter from before v1.0 takes neither argument; it never copies
        capsule = obj.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.restype, valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    readonly = False
    if valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(get(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise BufferRejected(
                f"{type(obj).__name__} exports DLPack version {managed.major}; version 1 is understood"
            )
        readonly, tensor = bool(managed.flags & _READ_ONLY), managed.tensor
    elif valid(capsule, b"dltensor"):
        tensor = _Tensor.from_address(get(capsule, b"dltensor"))
    else:
        raise BufferRejected(f"{type(obj).__name__}.__dlpack__() gave no unused DLPack capsule")
    kind = _KINDS.get(tensor.dtype.code, f"dlpack-{tensor.dtype.code}-")
    lanes = "" if tensor.dtype.lanes == 1 else f"x{tensor.dtype.lanes}"
    ndim = tensor.ndim
    return Export(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[:ndim]) if ndim else (),
        strides=tuple(tensor.strides[:ndim]) if ndim and tensor.strides else None,
        dtype=f"{kind}{tensor.dtype.bits}{lanes}",
        readonly=readonly,
        capsule=capsule,
    )
