"""comm.py and work.py over the simulated network: arguments to operations, classes, results, errors, lifetime."""

import gc
import math
import os
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
import tailbound as tb

CLEAN = {"delay": "20us", "rate": "10G"}


@pytest.fixture
def world():
    """world(n, **net): a simulated world, closed at the end."""
    made = []

    def make(n, **net):
        made.append(tb.simulate(n, **{**CLEAN, **net}))
        return made[-1]

    yield make
    for one in made:
        one.close()


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda comm: {"x": np.zeros(10 + comm.rank, np.float32)}, ("10", "11")),
        (lambda comm: {"x": np.zeros(10, np.float64 if comm.rank else np.float32)}, ("float32", "float64")),
        (lambda comm: {"x": np.zeros(10, np.float32), "op": "avg" if comm.rank else "sum"}, ("sum", "avg")),
    ],
    ids=["count", "dtype", "op"],
)
def test_mismatch__on_every_rank(world, change, words):
    w = world(2)

    def rank(comm):
        with pytest.raises(tb.MismatchError) as caught:
            for _ in range(3):  # one that learns only after returning raises at its next call
                comm.all_reduce(**change(comm), key="k", deadline=0.1)
        for word in ("rank 0", "rank 1", *words):
            assert word in str(caught.value)

    w.run(rank)


def test_forget__frees_a_key(world):
    w = world(2)

    def rank(comm):
        comm.all_reduce(np.zeros(4, np.float32), key="k", deadline=0.1)
        with pytest.raises(tb.KeyBoundError, match="forget"):
            comm.all_reduce(np.zeros(5, np.float32), key="k", deadline=0.1)
        comm.barrier()
        comm.forget("k")
        comm.barrier()
        return comm.all_reduce(np.zeros(5, np.float32), key="k", deadline=0.1).received

    assert w.run(rank) == [1.0, 1.0]
    w.comms[0].forget("never used")
    with pytest.raises(tb.ArgumentError, match="anonymous"):
        w.comms[0].forget(None)


@pytest.mark.parametrize(
    ("call", "kind", "word"),
    [
        (lambda c: c.all_reduce(np.zeros(4, np.int32), op="avg"), tb.ArgumentError, "integer"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), op="mean"), tb.ArgumentError, "mean"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), missing="carry"), tb.ArgumentError, "later version"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), consistency="both"), tb.ArgumentError, "agree"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), stream=1), tb.ArgumentError, "stream"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), deadline=0), tb.ArgumentError, "deadline"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), deadline=-0.0), tb.ArgumentError, "deadline"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), deadline=-0.05), tb.ArgumentError, "deadline"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), deadline=-math.inf), tb.ArgumentError, "deadline"),
        (lambda c: c.all_reduce(np.zeros(4, np.int32), deadline=0), tb.ArgumentError, "deadline"),
        (lambda c: c.send(np.zeros(4, np.float32), 1, deadline=0), tb.ArgumentError, "deadline"),
        (lambda c: c.barrier(deadline=np.float32(0)), tb.ArgumentError, "deadline"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), min_received=2), tb.ArgumentError, "min_received"),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), key=1.5), tb.ArgumentError, "key"),
        (lambda c: c.all_reduce([1.0]), tb.BufferRejected, "list"),
        (lambda c: c.reduce_scatter(np.zeros(5, np.float32)), tb.BufferRejected, "multiple of 2"),
        (lambda c: c.all_gather(np.zeros(5, np.float32), np.zeros(9, np.float32)), tb.BufferRejected, "9 elements"),
        (lambda c: c.broadcast(np.zeros(5, np.float32), root=2), tb.ArgumentError, "root 2"),
        (lambda c: c.send(np.zeros(5, np.float32), 5), tb.ArgumentError, "dst 5"),
        (lambda c: c.send(np.zeros(5, np.float32), 0, deadline=0.01), tb.ArgumentError, "itself"),
        (lambda c: c.recv(b"read only", 1), tb.BufferRejected, "read-only"),
        (lambda c: c.recv(np.zeros(5, np.float32), 1, tag=-1), tb.ArgumentError, "tag"),
    ],
)
def test_bad_arguments__before_anything_is_sent(world, call, kind, word):
    w = world(2)
    with pytest.raises(kind) as caught:
        call(w.comms[0])
    assert word in str(caught.value)
    assert w.comms[0].stats()["tx_frames"] == 0


def test_deadline__below_the_measured_reserve(world):
    w = world(2, delay="5ms")

    def rank(comm):
        for _ in range(4):
            comm.all_reduce(np.zeros(100_000, np.float32), key="k", deadline=0.5)
        with pytest.raises(tb.ArgumentError, match="reserve"):
            comm.all_reduce(np.zeros(100_000, np.float32), key="k", deadline=1e-5)

    w.run(rank)


def test_work__done_wait_timeout_and_again(world):
    w = world(2)
    x, y = np.ones(10, np.int32), np.ones(10, np.int32)
    work = w.comms[0].all_reduce_async(x)
    assert not work.done()
    with pytest.raises(tb.TimedOut, match="goes on"):
        work.wait(timeout=0.010)
    assert "under way" in repr(work)
    other = w.comms[1].all_reduce_async(y)
    assert work.wait().received == 1.0
    assert work.done()
    assert work.wait() is work.wait(timeout=0)
    other.wait()
    assert x[0] == y[0] == 2


def test_work__cancel_restores_the_input(world):
    w = world(2)
    x = np.full(10, 5, np.int32)
    work = w.comms[0].all_reduce_async(x)
    work.cancel()
    with pytest.raises(tb.Cancelled):
        work.wait()
    assert work.done()
    assert x[0] == 5


def test_work__dropped_handles_keep_going_and_keep_the_buffer(world):
    class Owned(np.ndarray):
        pass

    w = world(2)
    x = np.ones(100_000, np.float32).view(Owned)
    alive = weakref.ref(x)
    w.comms[0].all_reduce_async(x, key="k", deadline=0.5)
    del x
    gc.collect()
    assert alive() is not None
    r = w.comms[1].all_reduce(np.ones(100_000, np.float32), key="k", deadline=0.5)
    assert r.received == 1.0
    w.advance(0.5)
    w.comms[0]._purge()
    gc.collect()
    assert alive() is None


def test_close__ends_what_is_under_way_and_everything_after_it(world):
    w = world(2)
    comm = w.comms[0]
    work = comm.all_reduce_async(np.ones(4, np.int32))
    w.close()
    w.close()
    with pytest.raises(tb.Error):
        work.wait()
    assert comm.closed
    assert "closed" in repr(comm)
    for use in (
        lambda: comm.all_reduce(np.ones(4, np.float32)),
        lambda: comm.send(np.ones(4, np.float32), 1),
        comm.barrier,
        comm.stats,
        lambda: comm.view,
        lambda: comm.forget("k"),
    ):
        with pytest.raises(tb.ClosedError):
            use()


def test_result__outlives_the_communicator(world):
    w = world(2)
    results = w.run(lambda comm: comm.all_reduce(np.ones((3, 4), np.float32), deadline=0.1))
    w.close()
    for r in results:
        assert r.mask().shape == (3, 4)
        assert r.mask().all()


def test_fork__raises_in_the_child_and_works_in_the_parent(world):
    w = world(2)
    comm = w.comms[0]
    work = comm.all_reduce_async(np.ones(4, np.int32))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for use in (lambda: comm.all_reduce(np.ones(4, np.float32)), work.wait, work.done, comm.close, comm.stats):
            try:
                use()
                said.append("no error")
            except tb.ForkError as error:
                said.append("spawn" if "spawn" in str(error) else "no hint")
            except BaseException as error:
                said.append(repr(error))
        os.write(write, " ".join(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        assert answers.read().split() == ["spawn"] * 5
    assert os.waitpid(child, 0)[1] == 0
    w.comms[1].all_reduce(np.ones(4, np.int32))
    assert work.wait().received == 1.0


def test_threads__one_key_from_two_at_once(world):
    w = world(2)
    comm = w.comms[0]
    comm.all_reduce_async(np.ones(4, np.float32), key="k", deadline=1)
    caught = []

    def intrude():
        try:
            comm.all_reduce_async(np.ones(4, np.float32), key="k", deadline=1)
        except tb.Error as error:
            caught.append(error)

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert [type(error) for error in caught] == [tb.KeyInUseError]
    assert "k" in str(caught[0])


def test_stats__names_and_peers(world):
    w = world(3)
    w.run(lambda comm: comm.all_reduce(np.ones(5000, np.float32), deadline=0.1))
    stats = w.comms[1].stats()
    assert (stats["rank"], stats["size"], stats["link"], stats["operations"]) == (1, 3, "sim", 1)
    assert set(stats["peers"]) == {0, 2}
    for peer in stats["peers"].values():
        assert peer["data_sent"] > 0
        assert peer["data_received"] > 0
        assert peer["bad_index"] == peer["bad_signature"] == 0
    assert stats["rx_truncated"] is None or stats["rx_truncated"] == 0


def test_memory__beyond_the_cap_is_busy(world):
    w = world(2, memory_cap="1M")
    with pytest.raises(tb.BusyError, match="memory"):
        for _ in range(50):
            w.comms[0].all_reduce_async(np.ones(200_000, np.float32), deadline=10)
