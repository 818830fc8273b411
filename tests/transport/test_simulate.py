"""simulate.py: virtual time, determinism, the delivery log, options."""

import contextlib
import errno
import time

import numpy as np
import pytest
import tailbound as tb
from tailbound.simulate import FATES


def test_run__results_by_rank():
    with tb.simulate(3) as world:
        assert world.run(lambda comm: comm.rank * 10) == [0, 10, 20]


def test_run__raises_the_first_error_and_ends_the_others():
    def rank(comm):
        if comm.rank == 1:
            raise KeyError("mine")
        comm.barrier()

    with tb.simulate(3) as world:
        began = time.monotonic()
        with pytest.raises(KeyError, match="mine"):
            world.run(rank)
        assert time.monotonic() - began < 10
        assert world.run(lambda comm: 1) == [1, 1, 1]


def test_run__a_failure_ends_ranks_that_only_sleep():
    with tb.simulate(2) as world:

        def rank(comm):
            if comm.rank == 1:
                world.sleep(comm, 0.5)
                raise KeyError("mine")
            while True:
                world.sleep(comm, 0.001)

        with pytest.raises(KeyError, match="mine"):
            world.run(rank)


def test_run__another_ranks_communicator_is_refused():
    with tb.simulate(2) as world:

        def rank(comm):
            other = world.comms[1 - comm.rank]
            for use in (other.barrier, lambda: other.all_reduce(np.ones(3)), lambda: world.sleep(other, 1)):
                with pytest.raises(tb.ArgumentError, match=f"thread of rank {comm.rank}"):
                    use()
            with pytest.raises(tb.ArgumentError, match="communicator of this world"):
                world.sleep(None, 1)
            comm.barrier()

        world.run(rank)
        world.comms[0].barrier_async()  # outside of run() one thread speaks for all
        world.comms[1].barrier()


def test_call__that_raises_writes_nothing_later():
    with tb.simulate(2) as world:
        x = np.ones(3)
        with pytest.raises(tb.Error) as caught:
            world.comms[0].all_reduce(x, key="k", deadline=float("inf"))  # the other rank has not issued
        assert caught.value.errno == errno.EDEADLK
        with contextlib.suppress(tb.Error):
            world.comms[1].all_reduce(np.ones(3), key="k", deadline=float("inf"))
        world.advance(1)
        assert list(x) == [1, 1, 1]


def test_time__is_virtual():
    with tb.simulate(2) as world:
        began = time.monotonic()
        world.advance(1000)
        assert world.now == 1000
        world.run(lambda comm: world.sleep(comm, 500))
        assert world.now == 1500
        assert time.monotonic() - began < 20


def lossy_run(seed):
    with tb.simulate(4, seed=seed, loss=0.02, jitter="50us", delay="100us", rate="10G", dup=0.01, log=True) as world:

        def rank(comm):
            found = []
            for step in range(3):
                x = np.full(5000, comm.rank + step, np.float32)
                world.sleep(comm, 0.001 * comm.rank)
                r = comm.all_reduce(x, op="avg", key="k", deadline=0.010)
                found.append((r.received, r.elapsed, r.round, x.tobytes()))
            return found

        return world.run(rank), world.now, world.log().tobytes()


def test_seed__same_seed_same_run_to_the_bit():
    assert lossy_run(5) == lossy_run(5)
    assert lossy_run(5)[2] != lossy_run(6)[2]


def test_log__fields_and_fates():
    with tb.simulate(2, loss=0.2, delay="100us", log=True) as world:
        world.run(lambda comm: comm.all_reduce(np.ones(20_000, np.float32), deadline=0.05))
        log = world.log()
    assert {"sent_ns", "arrived_ns", "key", "round", "chunk", "src", "dst", "type", "stage", "fate", "copy"} <= set(
        log.dtype.names
    )
    delivered, lost = log[log["fate"] == FATES.index("delivered")], log[log["fate"] == FATES.index("lost")]
    assert len(delivered) > 20
    assert 0.1 < len(lost) / len(log) < 0.3
    assert (delivered["arrived_ns"] >= delivered["sent_ns"] + 100_000).all()
    assert (lost["arrived_ns"] == 0).all()
    assert set(log["src"]) == {0, 1}
    assert (log["src"] != log["dst"]).all()


def test_log__can_be_read_in_parts():
    with tb.simulate(2, log=True) as world:
        world.run(lambda comm: comm.barrier())
        whole = world.log()
        assert len(whole) > 4
        assert world.log(3).tobytes() == whole[3:].tobytes()
        assert len(world.log(len(whole))) == 0


def test_operations__several_in_flight_by_reference():
    """Each has memory of its own that the network reads later."""
    with tb.simulate(3) as world:

        def rank(comm):
            works = [comm.all_reduce_async(np.full(3000, float(i)), key=i, deadline=0.1) for i in range(8)]
            return [(w.wait().received, float(w.wait().out[-1])) for w in works]

        assert world.run(rank) == [[(1.0, 3.0 * i) for i in range(8)]] * 3


def test_set__from_now_on():
    with tb.simulate(2, delay="10us") as world:
        reduce = lambda comm: comm.all_reduce(np.ones(10, np.float32), deadline=0.01).received  # noqa: E731
        assert world.run(reduce) == [1.0, 1.0]
        world.set(src=0, dst=1, loss=1)
        assert world.run(reduce) != [1.0, 1.0]


def test_set__numbers_are_seconds():
    with tb.simulate(2, delay=0.25, log=True) as world:
        world.run(lambda comm: comm.barrier())
        log = world.log()
    arrived = log[log["fate"] == 0]
    assert (arrived["arrived_ns"] - arrived["sent_ns"] >= 250_000_000).all()


@pytest.mark.parametrize(
    ("n", "net", "word"),
    [
        (0, {}, "1 to 1024"),
        (1025, {}, "1 to 1024"),
        (2.0, {}, "1 to 1024"),
        (2, {"los": 1}, "los"),
        (2, {"loss": 2}, "loss"),
        (2, {"delay": "soon"}, "delay"),
        (2, {"rate": "10G loss=1"}, "rate"),
        (2, {"deadline": -1}, "deadline"),
        (2, {"mtu": 512}, "mtu=512"),
        (2, {"peer_timeout": "soon"}, "peer_timeout"),
        (2, {"loss=0.5 dup": 0.5}, "loss=0.5 dup"),
        (2, {"los\udfffs": 0.5}, "name"),
    ],
)
def test_simulate__bad_options(n, net, word):
    with pytest.raises(tb.Error) as caught:
        tb.simulate(n, **net)
    assert word in str(caught.value)


def test_simulate__an_unknown_option_tells_all_there_are():
    with pytest.raises(tb.ArgumentError, match=r"'los' is unknown.* seed, .*loss, .*, pause"):
        tb.simulate(2, los=0.1)


def test_set__bad_options():
    with tb.simulate(2) as world:
        for call in (lambda: world.set(src=2, loss=0.1), lambda: world.set(nothing=1), lambda: world.set(seed=1)):
            with pytest.raises(tb.ArgumentError):
                call()


def test_close__uses_after_it_raise():
    world = tb.simulate(2)
    world.close()
    assert repr(world) == "<World: closed>"
    for use in (lambda: world.now, lambda: world.advance(1), lambda: world.run(print), world.log):
        with pytest.raises(tb.ClosedError):
            use()
