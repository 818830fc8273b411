"""More than 4 GiB of bytes in one operation, moved and looked at to the last byte.

Inputs are one small file mapped again and again, so they take no memory; its length has no common factor with a power
of two, so that an offset that lost its upper bits would read or write a visibly wrong value. Rank 0's output is real
memory. Rank 1's is a mapping like the inputs': nobody looks at it.
"""

import ctypes
import mmap
import os

import numpy as np
import pytest
import tailbound as tb

PAGE = mmap.PAGESIZE
PERIOD = 257 * PAGE  # bytes
REPEATS = (1 << 32) // PERIOD + 3
COUNT = REPEATS * PERIOD // 4
NEEDED = 11 << 30  # rank 0's output, both owners' shards, frames under way

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
FIXED = 0x10


def available() -> int:
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


class Repeated:
    """`values` over and over in address space, once in memory."""

    def __init__(self, values: np.ndarray) -> None:
        size = REPEATS * PERIOD
        fd = os.memfd_create("period")
        os.write(fd, values.tobytes())
        self.base = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        for i in range(REPEATS):
            at = libc.mmap(
                self.base + i * PERIOD, PERIOD, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | FIXED, fd, 0
            )
            assert at == self.base + i * PERIOD
        os.close(fd)
        self.array = np.ctypeslib.as_array((ctypes.c_float * COUNT).from_address(self.base))

    def close(self) -> None:
        del self.array
        libc.munmap(self.base, REPEATS * PERIOD)


@pytest.mark.timeout(600)  # half a minute where a core is free
@pytest.mark.skipif(available() < NEEDED, reason=f"needs {NEEDED >> 30} GiB of free memory")
def test_all_reduce__of_more_than_four_gib():
    assert COUNT * 4 > 1 << 32
    values = np.random.default_rng(5).integers(-1000, 1000, PERIOD // 4).astype(np.float32)
    a, b, sink = Repeated(values), Repeated(3 * values), Repeated(0 * values)
    out = np.empty(COUNT, np.float32)
    try:
        with tb.simulate(2, mtu=65535, delay="5us", rate="100G", rx_buffer="64M", queue="64M") as world:
            works = [
                world.comms[0].all_reduce_async(a.array, out, deadline=float("inf")),
                world.comms[1].all_reduce_async(b.array, sink.array, deadline=float("inf")),
            ]
            results = [work.wait() for work in works]
            assert [r.received for r in results] == [1, 1]
            del works, results
    finally:
        for mapped in (a, b, sink):
            mapped.close()
    for i in range(REPEATS):
        part = out[i * PERIOD // 4 : (i + 1) * PERIOD // 4]
        assert np.array_equal(part, 4 * values), f"wrong values in period {i} of {REPEATS}"
