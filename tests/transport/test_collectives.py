"""collectives.py over the simulated network: every call, its classes and its results."""

import math

import ml_dtypes
import numpy as np
import pytest
import tailbound as tb


def mine(comm, count, dtype=np.float32):
    """Integer values that differ by rank and element, small enough for every dtype."""
    return ((np.arange(count) * 3 + comm.rank * 5) % 7).astype(dtype)


def everybodys(size, count):
    return np.stack([(np.arange(count) * 3 + rank * 5) % 7 for rank in range(size)])


FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
ORACLES = {"sum": np.sum, "avg": np.mean, "min": np.min, "max": np.max, "prod": np.prod}


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("op", ORACLES)
def test_all_reduce__floats(world, dtype, op):
    w = world(2)

    def rank(comm):
        x = mine(comm, 1000, dtype)
        r = comm.all_reduce(x, op=op, deadline=0.1)
        assert (r.received, r.verdict, r.deadline_hit) == (1.0, "ok", False)
        assert r.out is x
        return x

    expected = ORACLES[op](everybodys(2, 1000), axis=0)
    for x in w.run(rank):
        assert x.dtype == dtype
        np.testing.assert_array_equal(x.astype(np.float64), expected)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: np.dtype(dtype).name)
def test_all_reduce__integers(world, dtype):
    w = world(3)
    for op in ("sum", "min", "max"):
        expected = ORACLES[op](everybodys(3, 50), axis=0)

        def rank(comm, op=op):
            x = mine(comm, 50, dtype)
            r = comm.all_reduce(x, op=op)
            assert r.deadline == math.inf
            return x

        for x in w.run(rank):
            np.testing.assert_array_equal(x, expected.astype(dtype))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 1000, 1001])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_reduce__sizes(world, size, count):
    w = world(size)

    def rank(comm):
        x = mine(comm, count)
        r = comm.all_reduce(x, op="sum", deadline=0.1)
        assert r.received == 1.0
        assert r.mask().shape == (count,)
        assert r.mask().all()
        assert set(r.per_peer) == set(range(size)) - {comm.rank}
        assert all(share == 1.0 for share in r.per_peer.values())
        return x

    for x in w.run(rank):
        np.testing.assert_array_equal(x, everybodys(size, count).sum(axis=0))


def test_all_reduce__out_leaves_the_input(world):
    w = world(2)

    def rank(comm):
        x, out = mine(comm, 100).reshape(10, 10), np.full((100,), -1, np.float32)
        x.flags.writeable = False
        r = comm.all_reduce(x, out, op="sum", deadline=0.1)
        np.testing.assert_array_equal(x.ravel(), mine(comm, 100))
        assert r.out is out
        assert r.mask().shape == (10, 10)
        return out

    for out in w.run(rank):
        np.testing.assert_array_equal(out, everybodys(2, 100).sum(axis=0))


def test_all_reduce__buffers_that_are_no_arrays(world):
    w = world(2)

    def rank(comm):
        x = bytearray([comm.rank + 1] * 8)
        comm.all_reduce(x, op="max")
        return bytes(x)

    assert w.run(rank) == [bytes([2] * 8)] * 2


def test_all_reduce__several_at_once_in_any_order(world):
    w = world(3)

    def rank(comm):
        xs = {key: np.full(500, comm.rank + key, np.float32) for key in range(6)}
        order = sorted(xs, reverse=comm.rank == 1)
        works = {key: comm.all_reduce_async(xs[key], key=key, deadline=0.2) for key in order}
        return {key: (works[key].wait().received, xs[key][0]) for key in order}

    for answers in w.run(rank):
        assert answers == {key: (1.0, 3 + 3 * key) for key in range(6)}


def test_all_reduce__keys_1_and_text_1_are_two(world):
    w = world(2)

    def rank(comm):
        x, y = np.full(4, 1.0, np.float32), np.full(8, 2.0, np.float32)
        a, b = comm.all_reduce_async(x, key=1, deadline=0.1), comm.all_reduce_async(y, key="1", deadline=0.1)
        return a.wait().round, b.wait().round, x[0], y[0]

    assert w.run(rank) == [(0, 0, 2.0, 4.0)] * 2


def test_rounds__count_per_key(world):
    w = world(2)

    def rank(comm):
        return [comm.all_reduce(np.zeros(4, np.float32), key="k", deadline=0.1).round for _ in range(3)]

    assert w.run(rank) == [[0, 1, 2]] * 2


def test_lossy__a_blackholed_peer_costs_its_share_and_is_named(world):
    w = world(4)
    w.set(src=3, blackhole=True)
    w.set(dst=3, blackhole=True)

    def rank(comm):
        x = np.full(4000, comm.rank + 1, np.float32)
        began = w.now
        r = comm.all_reduce(x, op="avg", deadline=0.020)
        assert w.now - began <= 0.0201
        return r, x, r.mask()

    for number, (r, x, mask) in enumerate(w.run(rank)[:3]):
        assert r.verdict == "partial"
        assert r.per_peer[3] == 0.0
        assert all(r.per_peer[peer] == 1.0 for peer in range(3) if peer != number)
        assert 0 < mask.mean() < 1
        assert set(np.unique(x[mask])) == {2.0}
        assert not x[~mask].any()
        assert "rank 3" in str(r)


def test_lossy__skip_restores_the_input(world):
    w = world(3)
    for source in range(3):
        w.set(src=source, blackhole=True)

    def rank(comm):
        x = mine(comm, 1000)
        r = comm.all_reduce(x, op="sum", key="k", deadline=0.010)
        np.testing.assert_array_equal(x, mine(comm, 1000))
        return r.verdict

    assert w.run(rank) == ["skip"] * 3


def test_lossy__too_many_skips_raise(world):
    w = world(2, max_skips=2)
    w.set(blackhole=True)

    def rank(comm):
        x, seen = mine(comm, 100), []
        with pytest.raises(tb.SkippedTooOften) as caught:
            for _ in range(4):
                seen.append(comm.all_reduce(x, key="k", deadline=0.010).verdict)
        assert caught.value.result.verdict == "skip"
        np.testing.assert_array_equal(x, mine(comm, 100))
        return len(seen)

    assert w.run(rank) == [1, 1]


def test_exact__loss_does_not_show(world):
    w = world(3, loss=0.05, seed=3)

    def rank(comm):
        x = mine(comm, 20_000)
        r = comm.all_reduce(x, op="sum", deadline=math.inf)
        assert (r.received, r.deadline) == (1.0, math.inf)
        return x

    for x in w.run(rank):
        np.testing.assert_array_equal(x, everybodys(3, 20_000).sum(axis=0))


def test_exact__a_deadline_is_an_error_bound(world):
    w = world(2)

    def rank(comm):
        if comm.rank == 1:
            w.sleep(comm, 0.5)
            return None
        x = mine(comm, 100, np.int32)
        with pytest.raises(tb.TimedOut):
            comm.all_reduce(x, op="sum", deadline=0.050)
        np.testing.assert_array_equal(x, mine(comm, 100, np.int32))
        return w.now

    assert w.run(rank)[0] == pytest.approx(0.050, abs=0.005)


def test_exact__the_communicators_deadline_does_not_apply(world):
    w = world(2)
    for comm in w.comms:
        comm._deadline_ns = 1_000_000

    def rank(comm):
        if comm.rank == 1:
            w.sleep(comm, 0.2)
        x = mine(comm, 100, np.int32)
        comm.all_reduce(x)
        return x

    for x in w.run(rank):
        np.testing.assert_array_equal(x, everybodys(2, 100).sum(axis=0))


def test_exact__a_silent_peer_is_named(world):
    w = world(2)
    w.set(src=1, blackhole=True)

    def rank(comm):
        if comm.rank == 0:
            with pytest.raises(tb.PeerLost, match="rank 1"):
                comm.all_reduce(np.zeros(4, np.int32))

    w.run(rank)


def test_gathers_and_scatters(world):
    w = world(3)

    def rank(comm):
        gathered = comm.all_gather(mine(comm, 6).reshape(2, 3)).out
        assert gathered.shape == (3, 2, 3)
        scattered = comm.reduce_scatter(np.arange(12, dtype=np.float64).reshape(6, 2) + comm.rank).out
        assert scattered.shape == (2, 2)
        given = np.zeros(4, np.float64)
        r = comm.reduce_scatter(np.arange(12, dtype=np.float64), given, op="max")
        assert r.out is given
        return gathered.reshape(3, 6), scattered.ravel(), given

    for number, (gathered, scattered, given) in enumerate(w.run(rank)):
        np.testing.assert_array_equal(gathered, everybodys(3, 6))
        np.testing.assert_array_equal(scattered, (np.arange(12) * 3 + 3)[number * 4 : number * 4 + 4])
        np.testing.assert_array_equal(given, np.arange(12)[number * 4 : number * 4 + 4])


def test_broadcast(world):
    w = world(4, loss=0.02)

    def rank(comm):
        x = mine(comm, 5000, np.int16)
        if comm.rank == 2:
            x.flags.writeable = False
        comm.broadcast(x, root=2)
        return x

    for x in w.run(rank):
        np.testing.assert_array_equal(x, everybodys(4, 5000)[2])


def test_barrier__waits_for_the_last(world):
    w = world(3)

    def rank(comm):
        w.sleep(comm, comm.rank * 0.1)
        comm.barrier()
        return w.now

    assert min(w.run(rank)) >= 0.2


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_send_recv(world, dtype):
    w = world(3)

    def rank(comm):
        x = mine(comm, 3000, dtype)
        if comm.rank == 0:
            for tag in (7, 7, 8):
                assert comm.send(x + tag, 2, tag, deadline=0.5).received == 1.0
        if comm.rank == 2:
            got = [np.zeros(3000, dtype) for _ in range(3)]
            works = [comm.recv_async(one, 0, tag, deadline=0.5) for one, tag in zip(got, (8, 7, 7), strict=True)]
            assert [work.wait().verdict for work in works] == ["ok"] * 3
            return got
        return None

    base = everybodys(3, 3000)[0]
    for one, tag in zip(w.run(rank)[2], (8, 7, 7), strict=True):
        np.testing.assert_array_equal(one, base + tag)


def test_recv__what_did_not_come_is_zero(world):
    w = world(2)
    w.set(src=0, dst=1, blackhole=True)

    def rank(comm):
        x = np.full(1000, 9.0, np.float32)
        work = comm.send_async(x, 1, deadline=0.05) if comm.rank == 0 else comm.recv_async(x, 0, deadline=0.05)
        r = work.wait()
        return r.received, r.mask().any() if comm.rank == 1 else None, x

    (sent, _, _), (received, arrived, x) = w.run(rank)
    assert (sent, received, arrived) == (0.0, 0.0, False)
    assert set(np.unique(x)) <= {0.0, 9.0}
