"""Who keeps a caller's memory, and for how long, when exceptions, threads and the garbage collector come between."""

import errno
import gc
import signal
import threading
import weakref

import numpy as np
import pytest
import tailbound as tb
from tailbound import comm as comm_module
from tailbound import work as work_module
from tailbound.core import lib
from tailbound.work import Work

NEVER = 10  # seconds; a thread that is still there has hung


class Owned(np.ndarray):
    """An array that can be watched."""


class Core:
    """The core's functions, some of them replaced."""

    def __init__(self, **replaced):
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(lib, name)


@pytest.fixture
def world():
    made = []

    def make(n, **net):
        made.append(tb.simulate(n, delay="20us", rate="10G", **net))
        return made[-1]

    yield make
    for one in made:
        one.close()


def watched(count=50_000, value=5, dtype=np.float32):
    x = np.full(count, value, dtype).view(Owned)
    return x, weakref.ref(x)


def interrupting(call, *arguments):
    """The core's call, during which Ctrl-C was pressed: Python raises right after it."""
    status = call(*arguments)
    signal.raise_signal(signal.SIGINT)
    return status


# ---- Ctrl-C in an issue


def test_issue__ctrl_c_right_after_the_call_cancels_and_restores(world, monkeypatch):
    w = world(2)
    comm = w.comms[0]
    x, alive = watched()
    monkeypatch.setattr(comm_module, "lib", Core(tb_issue=lambda *a: interrupting(lib.tb_issue, *a)))
    with pytest.raises(KeyboardInterrupt):
        comm.all_reduce_async(x, key="k", deadline=1.0)
    monkeypatch.undo()
    assert comm._inflight == set()
    assert (x == 5).all()
    del x
    gc.collect()
    assert alive() is None
    w.advance(2.0)


def test_issue__ctrl_c_keeps_the_buffers_while_the_core_has_them(world, monkeypatch):
    """The operation cannot be ended at once (a link that is not through with its frames): its memory stays."""
    w = world(2)
    comm = w.comms[0]
    x, alive = watched()
    monkeypatch.setattr(comm_module, "lib", Core(tb_issue=lambda *a: interrupting(lib.tb_issue, *a)))
    monkeypatch.setattr(work_module, "lib", Core(tb_cancel=lambda work: 0))
    with pytest.raises(KeyboardInterrupt):
        comm.all_reduce_async(x, key="k", deadline=1.0)
    monkeypatch.undo()
    del x
    gc.collect()
    assert alive() is not None
    assert len(comm._inflight) == 1
    w.advance(2.0)
    comm._purge()
    gc.collect()
    assert alive() is None


def test_issue__refused_leaves_nothing_behind(world):
    w = world(2)
    x, alive = watched()
    with pytest.raises(tb.ArgumentError):
        w.comms[0].send(x, 0)
    w.comms[0].close()
    with pytest.raises(tb.ClosedError):
        w.comms[0].all_reduce(x)
    assert w.comms[0]._inflight == set()
    del x
    gc.collect()
    assert alive() is None


# ---- Ctrl-C in a wait


@pytest.mark.parametrize("ends", [True, False], ids=["cancel ends it", "cancel does not end it yet"])
def test_wait__ctrl_c_lets_go_only_of_what_the_core_is_through_with(world, monkeypatch, ends):
    w = world(2)
    comm = w.comms[0]
    x, alive = watched(dtype=np.int32)
    work = comm.all_reduce_async(x)
    del x
    if not ends:
        monkeypatch.setattr(work_module, "lib", Core(tb_cancel=lambda work: 0))
    monkeypatch.setattr(comm, "_between_slices", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    monkeypatch.undo()
    assert work.done() == ends
    assert (work in comm._inflight) == (not ends)
    assert (work._hold is None) == ends
    assert (alive() == 5).all()
    work.cancel()
    with pytest.raises(tb.Cancelled):
        work.wait()
    assert comm._inflight == set()
    assert (alive() == 5).all()
    del work
    gc.collect()
    assert alive() is None


def test_wait__an_error_of_the_wait_is_not_the_operations_end(world, monkeypatch):
    w = world(2)
    comm = w.comms[0]
    x, _ = watched(dtype=np.int32)
    work = comm.all_reduce_async(x)
    monkeypatch.setattr(work_module, "lib", Core(tb_wait=lambda work, timeout: -errno.EDEADLK))
    with pytest.raises(tb.Error) as caught:
        work.wait()
    assert caught.value.errno == errno.EDEADLK
    monkeypatch.undo()
    assert not work.done()
    assert work in comm._inflight
    y, _ = watched(dtype=np.int32)
    w.comms[1].all_reduce(y)
    assert work.wait().received == 1.0
    assert (x == 10).all()


# ---- other threads


@pytest.fixture
def stuck(world, monkeypatch):
    """stuck(name): a world, and a thread of rank 0 that hangs in that call of the core until `go` is set."""
    go, inside = threading.Event(), threading.Event()
    threads = []

    def make(name):
        w = world(2)
        comm = w.comms[0]
        mine = threading.current_thread()

        def call(*arguments):
            if threading.current_thread() is not mine:
                inside.set()
                assert go.wait(NEVER)
            return getattr(lib, name)(*arguments)

        module = comm_module if name == "tb_issue" else work_module
        work = comm.all_reduce_async(np.ones(10, np.int32), key="stuck") if name == "tb_cancel" else None
        monkeypatch.setattr(module, "lib", Core(**{name: call}))
        act = work.cancel if work else lambda: comm.all_reduce_async(np.ones(10, np.int32), key="stuck")
        threads.append(threading.Thread(target=act))
        threads[0].start()
        assert inside.wait(NEVER)
        return w, threads[0], go

    yield make
    go.set()
    for thread in threads:
        thread.join(NEVER)


@pytest.mark.parametrize("name", ["tb_issue", "tb_cancel"])
def test_threads__a_call_that_lasts_delays_no_other_operation(stuck, name):
    w, thread, _ = stuck(name)
    work = w.comms[0].all_reduce_async(np.ones(100, np.int32), key="free")
    other = w.comms[1].all_reduce_async(np.ones(100, np.int32), key="free")
    assert work.wait().received == other.wait().received == 1.0
    w.comms[0].all_reduce_async(np.ones(100, np.int32), key="another").cancel()
    assert w.comms[0].stats()["rank"] == 0
    assert thread.is_alive()


@pytest.mark.parametrize("name", ["tb_issue", "tb_cancel"])
def test_close__waits_for_calls_that_use_the_handle(stuck, name):
    w, thread, go = stuck(name)
    closing = threading.Thread(target=w.comms[0].close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    go.set()
    closing.join(NEVER)
    thread.join(NEVER)
    assert not closing.is_alive()
    assert not thread.is_alive()
    assert w.comms[0].closed


# ---- finalisers


def test_finaliser__never_frees_what_is_under_way(world, monkeypatch):
    """Freeing would wait for the link."""
    w = world(2)
    work = w.comms[0].all_reduce_async(np.ones(10, np.int32))
    freed = []
    assert w.comms[0]._inflight == {work}
    Work.__del__(work, _free=freed.append)
    assert freed == []
    other = w.comms[1].all_reduce_async(np.ones(10, np.int32))
    other.wait()
    Work.__del__(other, _free=freed.append)
    assert freed == [other._handle]

    monkeypatch.setattr(work_module, "lib", Core(tb_work_free=lambda handle: (freed.append(handle), real(handle))))
    handle, real = work._handle, lib.tb_work_free
    work._settle()
    w.close()
    assert freed == [other._handle, handle], "freed at the communicator's end, and once"
    assert not work._handle


def test_finaliser__of_a_world_that_was_dropped_with_all_in_it(monkeypatch):
    """The collector may finalise the Work before the world that it belongs to: freed once, by either."""
    freed = []

    def free(handle):
        freed.append(int(work_module.ffi.cast("uintptr_t", handle)))
        lib.tb_work_free(handle)

    gc.collect()  # what other tests left
    monkeypatch.setattr(Work.__del__, "__defaults__", (free, lib.tb_done, *Work.__del__.__defaults__[2:]))
    monkeypatch.setattr(work_module, "lib", Core(tb_work_free=free))
    w = tb.simulate(2)
    x, alive = watched()
    w.comms[0].all_reduce_async(x, key="k", deadline=1.0)
    w.comms[1].all_reduce_async(np.ones(50_000, np.float32), key="k", deadline=1.0)
    handles = [int(work_module.ffi.cast("uintptr_t", work._handle)) for comm in w.comms for work in comm._inflight]
    del w, x
    gc.collect()
    assert alive() is None
    assert sorted(freed) == sorted(handles)


def test_close__of_one_simulated_rank_cancels_its_operations(world):
    w = world(2)
    x, alive = watched(dtype=np.int32)
    work = w.comms[0].all_reduce_async(x)
    w.comms[0].close()
    with pytest.raises(tb.Cancelled):
        work.wait()
    assert (x == 5).all()
    del work, x
    gc.collect()
    assert alive() is None
