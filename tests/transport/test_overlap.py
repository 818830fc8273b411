"""Buffers that share memory: what is refused, and what is not."""

import numpy as np
import pytest
import tailbound as tb
from tailbound.buffers import acquire, overlap

SIZE, PIECE = 3, 2000


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ((0, 4), (4, 8), False),
        ((0, 5), (4, 8), True),
        ((4, 8), (0, 4), False),
        ((4, 8), (0, 8), True),
        ((2, 3), (0, 8), True),
        ((3, 3), (0, 8), False),
        ((0, 8), (3, 3), False),
    ],
)
def test_overlap__of_bytes(one, other, shared):
    memory = np.zeros(8, np.int32)
    first, second = (acquire(memory[slice(*at)], writable=True) for at in (one, other))
    assert overlap(first, second) == overlap(second, first) == shared


@pytest.mark.parametrize("start", [0, 1, PIECE, 2 * PIECE, (SIZE - 1) * PIECE])
def test_reduce_scatter__refuses_any(start):
    """Also a rank's own piece of x: it is written while x is still sent to others."""
    with tb.simulate(SIZE) as world:
        x = np.zeros(SIZE * PIECE, np.float32)
        for comm in world.comms:
            with pytest.raises(tb.BufferRejected, match="overlap"):
                comm.reduce_scatter(x, x[start : start + PIECE])
            assert comm.stats()["tx_frames"] == 0


def test_reduce_scatter__neighbours_in_memory_are_fine():
    with tb.simulate(SIZE, loss=0.05, seed=5) as world:

        def rank(comm):
            memory = np.full((SIZE + 2) * PIECE, comm.rank + 1, np.float32)
            x, out = memory[PIECE:-PIECE], memory[-PIECE:]
            comm.reduce_scatter(x, out)
            return memory

        for number, memory in enumerate(world.run(rank)):
            assert (memory[:-PIECE] == number + 1).all()
            assert (memory[-PIECE:] == 6).all()


def test_all_gather__from_the_own_piece_of_out():
    with tb.simulate(SIZE, loss=0.05, seed=6) as world:

        def rank(comm):
            out = np.zeros((SIZE, PIECE), np.float32)
            out[comm.rank] = comm.rank + np.arange(PIECE)
            comm.all_gather(out[comm.rank], out)
            return out

        expected = np.arange(SIZE)[:, None] + np.arange(PIECE)
        for out in world.run(rank):
            np.testing.assert_array_equal(out, expected)


def test_all_gather__refuses_another_piece_of_out():
    with tb.simulate(SIZE) as world:
        out = np.zeros((SIZE, PIECE), np.float32)
        for comm in world.comms:
            for at in range(SIZE):
                if at != comm.rank:
                    with pytest.raises(tb.BufferRejected, match=f"rank {comm.rank}'s own piece"):
                        comm.all_gather(out[at], out)
            with pytest.raises(tb.BufferRejected, match="overlap"):
                comm.all_gather(out.ravel()[PIECE // 2 : PIECE // 2 + PIECE], out)
