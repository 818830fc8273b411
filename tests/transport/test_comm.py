"""comm.py and work.py over the simulated network: arguments to operations, errors, works, lifetime."""

import gc
import math
import os
import threading
import weakref

import numpy as np
import pytest
import tailbound as tb


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
        (lambda c: c.all_reduce(np.zeros(4, np.float32), missing="carry"), tb.ArgumentError, "needs a key"),
        (lambda c: c.all_reduce(np.zeros(4, np.int32), key="k", missing="carry"), tb.ArgumentError, "floats"),
        (
            lambda c: c.all_reduce(np.zeros(4, np.float32), key="k", missing="carry", consistency="agree"),
            tb.ArgumentError,
            "consistency=local",
        ),
        (lambda c: c.all_reduce(np.zeros(4, np.float32), key="k", missing="drop"), tb.ArgumentError, "there are"),
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
