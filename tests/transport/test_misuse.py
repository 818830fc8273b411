"""What must neither crash nor hang nor leave the library's own errors: closing what is in use, copies, odd values."""

import copy
import dataclasses
import errno
import importlib
import multiprocessing
import pickle
import signal
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import tailbound as tb
from tailbound.core import lib

NEVER = 10  # seconds; a thread that is still there has hung


@pytest.fixture
def world():
    with tb.simulate(2, delay="20us", rate="10G") as one:
        yield one


# ---- closing a world that is in use


@pytest.fixture
def waiting(world, monkeypatch):
    """A thread that is inside a wait on rank 0 until `go` is set."""
    inside, go, ended = threading.Event(), threading.Event(), []

    class Core:
        def __getattr__(self, name):
            return getattr(lib, name)

        def tb_wait(self, work, timeout):
            if threading.current_thread() is thread:
                inside.set()
                assert go.wait(NEVER)
            return lib.tb_wait(work, timeout)

    def wait():
        try:
            ended.append(work.wait())
        except tb.Error as error:
            ended.append(error)

    monkeypatch.setattr(importlib.import_module("tailbound.simulate"), "lib", Core())
    work = world.comms[0].all_reduce_async(np.ones(10, np.int32), key="k")
    thread = threading.Thread(target=wait)
    thread.start()
    assert inside.wait(NEVER)
    yield work, thread, go, ended
    go.set()
    thread.join(NEVER)


def test_close__of_a_world_that_another_thread_waits_in_is_refused(world, waiting):
    work, thread, go, ended = waiting
    with pytest.raises(tb.BusyError, match=r"1 calls on it .* in flight"):
        world.close()
    assert not any(comm.closed for comm in world.comms)
    work._cancel_in_core()
    go.set()
    thread.join(NEVER)
    assert [type(end) for end in ended] == [tb.Cancelled]
    world.close()
    assert all(comm.closed for comm in world.comms)


def test_close__of_one_simulated_rank_ends_the_waits_of_other_threads(world, waiting):
    _, thread, go, ended = waiting
    world.comms[0].close()
    go.set()
    thread.join(NEVER)
    assert [type(end) for end in ended] == [tb.Cancelled]


def test_close__races_with_waits():
    """Whoever comes first: the world is closed, or the close is refused; nobody reads freed memory."""
    outcomes = []
    for turn in range(8):
        world = tb.simulate(12, seed=turn)
        works = [comm.all_reduce_async(np.ones(50, np.int32), key="k") for comm in world.comms[1:]]
        threads = [threading.Thread(target=lambda work=work: outcomes.append(end_of(work.wait))) for work in works[:2]]
        for thread in threads:
            thread.start()
        outcomes.append(end_of(world.close))
        for thread in threads:
            thread.join(6 * NEVER)
            assert not thread.is_alive()
        world.close()
    assert set(outcomes) <= {None, tb.BusyError, tb.Cancelled, tb.ClosedError, tb.Error}


def end_of(call):
    """The class of the error that it ends with."""
    try:
        call()
    except tb.Error as error:
        return type(error)
    return None


def test_close__inside_run_is_refused(world):
    def rank(comm):
        if comm.rank == 0:
            with pytest.raises(tb.BusyError, match="run"):
                world.close()
        return comm.all_reduce(np.ones(4, np.float32), deadline=0.1).received

    assert world.run(rank) == [1.0, 1.0]


def test_run__inside_run_is_refused(world):
    def rank(comm):
        if comm.rank == 0:
            with pytest.raises(tb.BusyError, match="run"):
                world.run(print)
        return comm.rank

    assert world.run(rank) == [0, 1]


def test_run__an_error_in_it_does_not_end_later_waits(world):
    def fails(comm):
        raise KeyError(comm.rank)

    with pytest.raises(KeyError):
        world.run(fails)
    with pytest.raises(tb.Error) as caught:
        world.comms[0].barrier()
    assert caught.value.errno == errno.EDEADLK


def test_run__ctrl_c_ends_every_rank(world):
    def rank(comm):
        if comm.rank == 1:
            comm.barrier()
        signal.raise_signal(signal.SIGINT)
        while world._abort is None:
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        world.run(rank)
    world.close()  # no rank's thread is left


@pytest.mark.parametrize("launched", [False, True])
def test_run__ctrl_c_before_the_ranks_have_begun(world, monkeypatch, launched):
    class Interrupted(threading.Thread):
        def start(self):
            if launched:
                super().start()
            if self.name == "sim-ranks":
                raise KeyboardInterrupt

    monkeypatch.setattr(threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        world.run(lambda comm: comm.barrier())
    monkeypatch.undo()
    assert [result.received for result in world.run(lambda comm: comm.barrier())] == [1.0, 1.0]
    world.close()


def test_run__a_second_ctrl_c_gets_out(world):
    let_go, first = threading.Event(), threading.Event()

    def rank(comm):
        if comm.rank == 0:
            signal.raise_signal(signal.SIGINT)
            while world._abort is None:
                time.sleep(0.001)
            first.set()
            assert let_go.wait(NEVER)

    def again():
        assert first.wait(NEVER)
        signal.raise_signal(signal.SIGINT)

    presser = threading.Thread(target=again)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        world.run(rank)
    presser.join()
    assert not let_go.is_set()
    with pytest.raises(tb.BusyError, match="run"):  # a rank still computes
        world.close()
    let_go.set()
    end = time.monotonic() + NEVER
    while world._running and time.monotonic() < end:
        time.sleep(0.001)
    world.close()


def test_world__in_a_forked_child_raises(world):
    def child(pipe):
        pipe.send([end_of(world.close), end_of(lambda: world.now), end_of(lambda: world.advance(1))])

    mine, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(other,))
    process.start()
    assert mine.poll(NEVER)
    assert mine.recv() == [tb.ForkError] * 3
    process.join(NEVER)


# ---- waits in a simulation that nothing can end


def test_wait__for_a_peer_that_never_joins_ends(world):
    work = world.comms[0].all_reduce_async(np.ones(10, np.int32), key="k")
    with pytest.raises(tb.Error, match=r"rank 0 waits .* within an hour") as caught:
        work.wait()
    assert caught.value.errno == errno.EDEADLK
    assert world.now == pytest.approx(3600)
    assert not work.done()
    assert world.comms[1].all_reduce(np.ones(10, np.int32), key="k").received == 1.0
    assert work.wait().received == 1.0


def test_wait__in_run_for_a_rank_that_has_returned_ends(world):
    with pytest.raises(tb.Error) as caught:
        world.run(lambda comm: comm.rank == 0 or comm.barrier())
    assert caught.value.errno == errno.EDEADLK
    assert not world.comms[0].closed


def test_wait__peers_that_owe_each_other_nothing_let_the_time_pass():
    """Three ranks and one element: two of them exchange nothing, for longer than peer_timeout."""
    with tb.simulate(3) as world, pytest.raises(tb.Error) as caught:
        world.run(lambda comm: comm.rank == 0 or comm.barrier())
    assert caught.value.errno == errno.EDEADLK


def test_wait__a_timeout_is_virtual_time(world):
    work = world.comms[0].all_reduce_async(np.ones(10, np.int32), key="k")
    for until, timeout in ((2.5, 2.5), (2.5, 0), (12.5, 10)):
        with pytest.raises(tb.TimedOut):
            work.wait(timeout=timeout)
        assert world.now == pytest.approx(until)


@pytest.mark.parametrize("in_run", [False, True])
def test_close__of_a_simulated_rank_is_a_goodbye(world, in_run):
    def rank(comm):
        if comm.rank == 1:
            comm.close()
            return None
        with pytest.raises(tb.PeerLost, match="has closed"):
            comm.all_reduce(np.ones(10, np.int32), key="k")
        return world.now

    if in_run:
        assert world.run(rank)[0] < 1
    else:
        rank(world.comms[1])
        assert rank(world.comms[0]) < 1
    assert world.comms[1].closed
    assert not world.comms[0].closed


# ---- handles cannot be copied


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps, lambda x: pickle.dumps(x, 0)])
def test_copy__of_a_handle_is_refused(world, how):
    comm = world.comms[0]
    work = comm.all_reduce_async(np.ones(10, np.float32), deadline=0.01)
    for one, remedy in ((world, "simulate"), (comm, r"init\(\)"), (work, "Result")):
        with pytest.raises(TypeError, match=f"cannot be copied or pickled: .*{remedy}"):
            how(one)
    work.wait()


# ---- results can


def same(a, b):
    for field in dataclasses.fields(tb.Result):
        if field.name not in ("out", "_mask"):
            assert getattr(a, field.name) == getattr(b, field.name)
    assert np.array_equal(a.mask(), b.mask())
    assert a.mask().dtype == b.mask().dtype == np.bool_


def results():
    """One of every kind, from a world that is closed by then."""

    def rank(comm):
        x, other = np.ones(6, np.float32), 1 - comm.rank
        sent = comm.send_async(x, other, deadline=0.1)
        return [
            comm.all_reduce(np.ones(30_000, np.float32), key="k", deadline=0.0003),
            comm.all_reduce(np.ones(4, ml_dtypes.bfloat16), np.ones(4, ml_dtypes.bfloat16), deadline=0.01),
            comm.all_reduce(memoryview(bytearray(4)), op="max"),
            comm.recv(np.ones(6, np.float32), other, deadline=0.1),
            sent.wait(),
            comm.reduce_scatter(x),
            comm.all_gather(x),
            comm.broadcast(x),
            comm.barrier(),
        ]

    with tb.simulate(2, seed=3, loss=0.5, min_received=0) as world:
        return world.run(rank)[0]


def test_result__is_plain_data():
    lossy = results()[0]
    assert 0 < lossy.mask().mean() < 1
    for r in results():
        for again in (pickle.loads(pickle.dumps(r)), copy.deepcopy(r), copy.copy(r)):
            same(r, again)
            assert r.out is None or np.array_equal(again.out, r.out)


def test_result__asdict_before_and_after_the_mask_was_asked_for():
    for r in results():
        if not isinstance(r.out, memoryview):  # which nothing can copy deeply
            first = dataclasses.asdict(r)
            assert np.array_equal(first.pop("_mask"), r.mask())
            second = dataclasses.asdict(r)
            assert np.array_equal(second.pop("_mask"), r.mask())
            assert first.keys() == second.keys()
            assert first["per_peer"] == r.per_peer


def test_result__its_mask_is_made_once_and_outlives_the_world():
    r = results()[0]
    assert r.mask() is r.mask()
    assert isinstance(r._mask, np.ndarray), "nothing of the operation is held any more"
    same(dataclasses.replace(r), r)


def test_result__of_an_error_goes_through_a_pickle():
    with tb.simulate(2, min_received=1.0) as world:
        world.set(blackhole=True)
        with pytest.raises(tb.SkippedTooOften) as caught:
            for _ in range(9):
                world.comms[0].all_reduce(np.ones(10, np.float32), key="k", deadline=0.01)
    again = pickle.loads(pickle.dumps(caught.value))
    same(again.result, caught.value.result)


# ---- arguments far outside

X = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda w: w.comms[0].all_reduce(X, deadline=1e300), "deadline 1e.300 s is longer than a year"),
        (lambda w: w.comms[0].all_reduce(X, deadline=10**400), "deadline .* is longer than a year"),
        (lambda w: w.comms[0].barrier(deadline=1e300), "deadline 1e.300 s is longer than a year"),
        (lambda w: w.comms[0].all_reduce(X, min_received=10**400), "a share from 0 to 1"),
        (lambda w: w.comms[0].all_reduce(X, key="\ud800"), r"key '\\ud800' has a lone surrogate"),
        (lambda w: w.comms[0].forget("k\udfff"), r"key 'k\\udfff' has a lone surrogate"),
        (lambda w: w.comms[0].barrier_async().wait(timeout=1e300), "timeout 1e.300 s is longer than a year"),
        (lambda w: w.advance(1e300), "advance 1e.300 s is longer than a year"),
        (lambda w: w.comms[0].all_reduce(X, key=10**5000), "key is an int of 16610 bits"),
        (lambda w: w.comms[0].send(X, 1, tag=10**5000), "tag is an int of 16610 bits"),
        (lambda w: w.comms[0].all_reduce(X, missing=np.array([1, 2])), "missing=array"),
        (lambda w: w.comms[0].all_reduce(X, fill=np.array([1, 2])), "fill=array"),
        (lambda w: w.comms[0].all_reduce(X, on_skip=np.array([1, 2])), "on_skip=array"),
        (lambda w: w.comms[0].all_reduce(X, hadamard=np.array([1, 2])), "hadamard=array"),
        (lambda w: tb.simulate(2, loss=np.array([1, 2])), "loss is a ndarray"),
        (lambda w: tb.simulate(2, loss=10**5000), "loss is an int of 16610 bits"),
        (lambda w: tb.init(rank=0, size=1, **{"\ud800": 1}), r"option '\\ud800'"),
        (lambda w: w.sleep(w.comms[0], 1e300), "sleep 1e.300 s is longer than a year"),
        (lambda w: w.log(-5), "start -5: 0 to"),
        (lambda w: w.log(2**64), "start 18446744073709551616: 0 to"),
        (lambda w: w.log(1.5), "start is a float; an int is needed"),
        (lambda w: w.set(-1), "src -1 is no rank"),
        (lambda w: w.set(0, 2**40), "dst 1099511627776 is no rank"),
        (lambda w: w.set("0"), "src is a str"),
        (lambda w: w.set(loss="\ud800"), r"loss '\\ud800'"),
        (lambda w: w.set(loss="0.1\0"), r"loss '0.1\\x00'"),
        (lambda w: tb.simulate(2, deadline=1e300), "deadline 1e.300 s is longer than a year"),
        (lambda w: tb.simulate(2, delay=1e300), "delay 1e.300 s is longer than a year"),
        (lambda w: tb.simulate(2, delay=10**400), "delay .* is longer than a year"),
        (lambda w: tb.simulate(2, rate="1G 2G"), "rate='1G 2G'"),
        (lambda w: tb.init(rank=0, size=1, deadline=1e300), "deadline 1e.300 s is longer than a year"),
        (lambda w: tb.init(rank=0, size=2, address=5), "address 5 is a int; a str is needed, 'host' or 'host:port'"),
        (lambda w: tb.init(rank=0, size=2, address=b"x"), "address b'x' is a bytes; a str is needed"),
        (lambda w: tb.init(rank=0, size=2, address="\ud800"), r"address '\\ud800'"),
        (lambda w: tb.init(rank=0, size=1, link="\ud800"), r"link '\\ud800'"),
    ],
)
def test_arguments__far_outside(world, call, word):
    with pytest.raises(tb.ArgumentError, match=word):
        call(world)
    assert len(world.log(2**63)) == 0
