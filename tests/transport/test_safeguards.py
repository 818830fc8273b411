"""Rule 18's safeguards: thresholds of the stages, halt, the callback, and peers that lose again and again."""

import threading

import numpy as np
import pytest
import tailbound as tb


def lossy_pair(**options):
    """Two ranks; what rank 1 sends to rank 0 is lost after the first round."""
    return tb.simulate(2, seed=1, delay="50us", rate="10G", **options)


def calls(world, turns=1, callback=None, wait_elsewhere=False, **options):
    """Rank 0's results, or the error it met, of rounds after the first; and what its callback saw."""
    seen = []

    def rank(comm):
        x = np.ones(1000, np.float32)
        comm.all_reduce(x, key="k", deadline=0.010)
        world.set(1, 0, blackhole=True)
        if comm.rank == 0 and callback:
            comm.on_loss(lambda result: callback(seen, result))
        found = []
        for _ in range(turns):
            world.sleep(comm, 0.020)
            x[:] = 1
            mine = options if comm.rank == 0 else {"min_received": 0}
            try:
                found.append(comm.all_reduce(x, key="k", deadline=0.010, **mine))
            except (tb.Error, RuntimeError) as error:
                found.append(error)
        return found, x.copy()

    return world.run(rank)[0], seen


@pytest.mark.parametrize(
    ("least", "verdict"), [((0, 0, 0), "partial"), ((0, 0.1, 0), "skip"), ((0, 0, 0.1), "skip"), (0.1, "skip")]
)
def test_min_received__of_a_stage(least, verdict):
    for options, call in (({"min_received": least}, {}), ({}, {"min_received": least})):
        with lossy_pair(**options) as world:
            (found, x), _ = calls(world, **call)
        assert found[0].verdict == verdict
        assert ((x == 1).all()) == (verdict == "skip")


@pytest.mark.parametrize("least", [(0.5, 0.5), (0.5, 2, 0), "much", (0.5, 0, "x"), -1])
def test_min_received__bad_values(least):
    with pytest.raises(tb.ArgumentError):
        lossy_pair(min_received=least)


def test_min_received__of_a_stage_is_refused_where_ranks_agree():
    with lossy_pair(consistency="agree") as world, pytest.raises(tb.ArgumentError, match="own view"):
        world.comms[0].all_reduce_async(np.ones(8, np.float32), key="k", min_received=(0.5, 0.5, 0))


def test_on_skip__halt_raises_at_once():
    for options, call in (({"on_skip": "halt"}, {}), ({}, {"on_skip": "halt"})):
        with lossy_pair(**options) as world:
            (found, x), _ = calls(world, min_received=0.5, **call)
        assert isinstance(found[0], tb.SkippedTooOften)
        assert found[0].result.verdict == "skip"
        assert "on_skip=halt" in str(found[0])
        assert (x == 1).all()
    with pytest.raises(tb.ArgumentError, match="on_skip"):
        lossy_pair(on_skip="stop")


def test_on_loss__is_called_by_who_waits():
    def note(seen, result):
        seen.append((result, threading.current_thread().name))

    with lossy_pair() as world:
        (found, _), seen = calls(world, turns=2, callback=note, min_received=0.5)
    assert [result for result, _ in seen] == found
    assert [result.verdict for result in found] == ["skip", "skip"]
    assert {name for _, name in seen} == {"sim-rank-0"}, "never a thread of the library's"
    with lossy_pair(max_skips=2) as world:
        (found, _), seen = calls(world, turns=2, callback=note, min_received=0.5)
    assert seen[1][0] is found[1].result, "also before it raises"


def test_on_loss__what_it_raises_ends_the_wait():
    def stop(seen, result):
        raise RuntimeError(f"enough: {result.received}")

    with lossy_pair() as world:
        (found, _), _ = calls(world, callback=stop, min_received=0)
        assert "enough" in str(found[0])
        with pytest.raises(tb.ArgumentError, match="callable"):
            world.comms[0].on_loss("stop")
        world.comms[0].on_loss(None)


def test_repeated_loser__is_named_and_counted(caplog):
    with tb.simulate(3, seed=1, delay="50us", min_received=0) as world:
        world.set(2, 0, loss=0.9)

        def rank(comm):
            for _ in range(60):
                world.sleep(comm, 0.020)
                comm.all_reduce(np.ones(3000, np.float32), key="k", deadline=0.002)
            return comm.stats()["peers"]

        peers = world.run(rank)
    assert peers[0][2]["missed_of_100"] > 50
    assert peers[0][1]["missed_of_100"] < 25
    lines = [record.message for record in caplog.records if "of the last 100 rounds" in record.message]
    assert [line for line in lines if line.startswith("rank 2: ")] == lines[:1]
    assert lines
