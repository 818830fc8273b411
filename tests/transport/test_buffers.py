"""buffers.py and dlpack.py: what is accepted, and what each rejection says."""

import array
import ctypes

import ml_dtypes
import numpy as np
import pytest
from tailbound.buffers import acquire, acquire_pair, check_like, empty
from tailbound.dtypes import CODES
from tailbound.errors import ArgumentError, BufferRejected, Error

NUMPY_NAMES = [name for name in CODES if name != "bfloat16"]


def rejected(obj, *words, writable=True):
    """acquire() refuses obj with a text that holds every word."""
    with pytest.raises(BufferRejected) as caught:
        acquire(obj, writable=writable)
    for word in words:
        assert word in str(caught.value)
    assert isinstance(caught.value, (BufferError, ValueError))
    return str(caught.value)


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_acquire__every_numpy_dtype(name):
    x = np.zeros((3, 5), name)
    got = acquire(x, writable=True)
    assert (got.address, got.count, got.code, got.dtype) == (x.ctypes.data, 15, CODES[name], name)
    assert (got.shape, got.nbytes) == ((3, 5), x.nbytes)


def test_acquire__bfloat16():
    x = np.zeros(7, ml_dtypes.bfloat16)
    got = acquire(x, writable=True)
    assert (got.address, got.count, got.code, got.itemsize) == (x.ctypes.data, 7, CODES["bfloat16"], 2)


def test_acquire__pins_the_exporter():
    x = bytearray(64)
    got = acquire(x, writable=True)
    with pytest.raises(BufferError):
        x.extend(b"more")
    del got
    x.extend(b"more")


def test_acquire__pep_3118_objects():
    x = array.array("f", [1, 2, 3])
    got = acquire(x, writable=True)
    assert (got.address, got.count, got.dtype) == (x.buffer_info()[0], 3, "float32")
    assert acquire((ctypes.c_double * 4)(), writable=True).dtype == "float64"
    assert acquire(memoryview(bytearray(12)).cast("i"), writable=True).dtype == "int32"


def test_acquire__empty_and_scalar_shapes():
    assert acquire(np.zeros((0, 4), np.float32), writable=True).count == 0
    assert acquire(np.zeros((), np.float32), writable=True).count == 1


def test_acquire__non_contiguous():
    text = rejected(np.zeros((4, 6), np.float32)[:, ::2], "not C-contiguous", "(4, 3)", "(24, 8)", "float32")
    assert "ascontiguousarray" in text
    rejected(np.zeros((4, 6), np.float32, order="F"), "not C-contiguous")


def test_acquire__read_only():
    x = np.zeros(3, np.float32)
    x.flags.writeable = False
    rejected(x, "read-only", "(3,)", "float32")
    rejected(b"12345678", "read-only", "bytes")
    assert acquire(x, writable=False).count == 3


def test_acquire__byte_order():
    rejected(np.zeros(3, ">f4"), "byte order", "'>'", "(3,)")


def test_acquire__object_dtype():
    rejected(np.array([1, None]), "Python objects", "object")
    rejected(np.zeros(2, [("a", "O"), ("b", "f4")]), "Python objects")


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [
        ("bool", "np.uint8"),
        ("complex64", "np.float32"),
        ("complex128", "np.float64"),
        ("M8[s]", "float32"),
        ("S4", "float32"),
    ],
)
def test_acquire__unsupported_dtype(dtype, hint):
    rejected(np.zeros(3, dtype), "no element type", hint)


def test_acquire__masked_array():
    rejected(np.ma.masked_array(np.zeros(3, np.float32), mask=[0, 1, 0]), "masked", "filled")


def test_acquire__no_buffer_at_all():
    rejected([1.0, 2.0], "list", "np.asarray")
    rejected(3.0, "float", "np.asarray")
    rejected(object(), "object", "buffer protocol")
    rejected(np.float32(3), "NumPy scalar")


def test_acquire__names_the_argument():
    with pytest.raises(BufferRejected, match=r"^out "):
        acquire(np.zeros(3, bool), writable=True, name="out")


class Device:
    """A tensor on a GPU, as its protocol methods describe it."""

    def __init__(self, kind=2):
        self.kind = kind

    def __dlpack_device__(self):
        return (self.kind, 1)

    def __dlpack__(self, **_):
        raise AssertionError("must not be asked for memory on another device")


def test_acquire__device_memory():
    rejected(Device(), "device memory", "cuda:1", "not")
    rejected(Device(10), "rocm:1")

    class OnlyCai:
        @property
        def __cuda_array_interface__(self):
            return {"shape": (3,), "typestr": "<f4", "data": (1, False), "version": 3}

    rejected(OnlyCai(), "device memory", "OnlyCai")


class Exporter:
    """A host tensor that has DLPack and nothing else, like torch's; hands out NumPy's own capsules."""

    def __init__(self, x, versioned=True):
        self.x, self.versioned = x, versioned

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()

    def __dlpack__(self, **options):
        if self.versioned:
            return self.x.__dlpack__(**options)
        if options:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        return self.x.__dlpack__()


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack__same_memory(versioned):
    x = np.arange(12, dtype=np.float64).reshape(3, 4)
    got = acquire(Exporter(x, versioned), writable=True)
    assert (got.address, got.count, got.dtype, got.shape) == (x.ctypes.data, 12, "float64", (3, 4))


def test_dlpack__keeps_the_memory_alive():
    import gc
    import weakref

    class Owned(np.ndarray):
        pass

    x = np.zeros(1000, np.float32).view(Owned)
    alive = weakref.ref(x)
    got = acquire(Exporter(x), writable=True)
    del x
    gc.collect()
    assert alive() is not None
    del got
    gc.collect()
    assert alive() is None


def test_dlpack__offset_and_strides():
    x = np.arange(12, dtype=np.int32)
    assert acquire(Exporter(x[4:]), writable=True).address == x.ctypes.data + 16
    rejected(Exporter(x[::2]), "not C-contiguous", "(6,)", "(2,)")
    rejected(Exporter(x.reshape(3, 4).T), "not C-contiguous")


def test_dlpack__read_only_flag():
    x = np.zeros(3, np.float32)
    x.flags.writeable = False
    rejected(Exporter(x), "read-only")
    assert acquire(Exporter(x), writable=False).count == 3


def test_dlpack__unsupported_dtype():
    rejected(Exporter(np.zeros(3, np.complex64)), "complex64", "no element type")
    rejected(Exporter(np.zeros(3, bool)), "bool8", "no element type")


def test_dlpack__exporter_refuses():
    class Refuses(Exporter):
        def __dlpack__(self, **_):
            raise BufferError("Can't export tensors that require gradient")

    rejected(Refuses(np.zeros(3)), "refuses", "require gradient")


def test_acquire_pair__in_place():
    x = np.zeros(3, np.float32)
    for out in (None, x):
        source, target = acquire_pair(x, out)
        assert source is target


def test_acquire_pair__out():
    x, out = np.zeros(3, np.float32), np.zeros((3, 1), np.float32)
    x.flags.writeable = False
    source, target = acquire_pair(x, out)
    assert (source.address, target.address) == (x.ctypes.data, out.ctypes.data)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.zeros(3, np.float64), ("dtype float64", "float32")),
        (np.zeros((2, 2), np.float32), ("4 elements", "(2, 2)", "3")),
        (np.zeros(6, np.float32)[::2], ("out", "not C-contiguous")),
        (b"0123456789ab", ("out", "read-only")),
    ],
)
def test_acquire_pair__unlike(out, words):
    with pytest.raises(BufferRejected) as caught:
        acquire_pair(np.zeros(3, np.float32), out)
    for word in words:
        assert word in str(caught.value)


def test_acquire_pair__partial_overlap():
    x = np.zeros(10, np.float32)
    with pytest.raises(BufferRejected, match="overlap"):
        acquire_pair(x[:6], x[2:8])
    acquire_pair(x[:5], x[5:])
    same, again = acquire_pair(x[:5], x[:5])
    assert same.address == again.address


def test_check_like__says_what_differs():
    buffer = acquire(np.zeros(3, np.float32), writable=True)
    check_like(buffer, CODES["float32"], "float32", 3, "x has")
    with pytest.raises(BufferRejected, match="3 elements"):
        check_like(buffer, CODES["float32"], "float32", 4, "x has")


def test_empty__makes_every_dtype():
    for name in CODES:
        assert empty((2, 3), name).shape == (2, 3)
    assert empty((2,), "bfloat16").dtype == ml_dtypes.bfloat16


def test_rejections__are_ours_and_errno():
    with pytest.raises(Error) as caught:
        acquire(None, writable=True)
    assert isinstance(caught.value, ArgumentError)
    assert caught.value.errno == 22
