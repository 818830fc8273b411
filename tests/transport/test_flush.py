"""Rule 15: after flush the outputs of all rounds add up to all contributions, to the last bit, on every rank."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sim_carry
import tailbound as tb
from sim_carry import BURSTS

pytestmark = pytest.mark.usefixtures("quiet")

NET = {"delay": 50e-6, "rate": "10G"}


def holds(account):
    assert [account.stat(name) for name in ("dropped_values", "rounds_lost", "late_dropped")] == [0, 0, 0]
    for got in account.got:
        np.testing.assert_array_equal(got, account.given)


@pytest.mark.parametrize("n", range(2, 9))
def test_flush__closes_the_account_over_bursts_of_loss(n):
    net = NET | BURSTS | {"dup": 0.05, "reorder": 0.1, "reorder_by": 100e-6}
    account = sim_carry.run(n, 60, 1500, 10 + n, net, deadline=0.002)
    holds(account)
    assert account.stat("late_delivered") > 0
    assert account.stat("carry_applied") > 0
    assert 0.5 < np.mean(account.received) < 0.9999


@pytest.mark.parametrize("seed", range(4))
def test_flush__closes_the_account_of_ranks_that_are_late_and_stopped(seed):
    net = NET | BURSTS | {"ref": ("prompt", "sync", "none", "prompt")[seed]}
    account = sim_carry.run(3 + seed, 100, 900, seed, net, late=0.007, stop=0.03, op=("sum", "avg")[seed % 2])
    holds(account)
    assert account.behind > 10  # rounds that some rank skipped


@pytest.mark.parametrize("seed", range(2))
def test_flush__counts_skipped_rounds_and_corrections_in_between(seed):
    account = sim_carry.run(4, 60, 900, seed, NET | BURSTS, deadline=0.001, min_received=0.9, flush_every=20)
    holds(account)
    assert account.skips > 3


@pytest.mark.parametrize("missing", ["carry", "renormalise"])
def test_flush__takes_off_what_was_filled_in(missing):
    options = {"deadline": 0.001, "keep_rounds": 64, "missing": missing}
    account = sim_carry.run(4, 60, 900, 3, NET | BURSTS, fill="own", **options)
    assert account.stat("late_delivered") > 10
    for got in account.got:
        if missing == "carry":
            np.testing.assert_array_equal(got, account.given)
        else:
            np.testing.assert_allclose(got, account.got[0], rtol=1e-12)


def test_flush__of_float32():
    account = sim_carry.run(4, 30, 500, 5, NET | BURSTS, deadline=0.001, dtype=np.float32)
    holds(account)


@pytest.mark.parametrize("seed", range(3, 9))
def test_flush__without_carry_what_came_late_makes_all_ranks_equal(seed):
    account = sim_carry.run(4, 60, 900, seed, NET | BURSTS, deadline=0.001, missing="renormalise", keep_rounds=64)
    assert account.stat("late_delivered") > 10
    for got in account.got[1:]:
        np.testing.assert_allclose(got, account.got[0], rtol=1e-12)
    assert np.abs(account.got[0] - account.given).max() > 1  # an estimate


def test_flush__shows_that_late_delivery_and_carry_are_live():
    """Without them the accounts differ: what the rows "without it" of the bench show."""
    account = sim_carry.run(4, 40, 900, 3, NET | BURSTS, deadline=0.001, late_delivery=0)
    assert any((got != account.given).any() for got in account.got)


def test_flush__result_shape_out_and_reuse():
    with tb.simulate(2, missing="carry") as world:

        def rank(comm):
            x = np.ones((3, 4), np.float32)
            comm.all_reduce(x, key="k", deadline=0.01)
            first = comm.flush("k")
            out = np.full(12, 9, np.float32)
            assert comm.flush("k", out=out) is out
            assert not out.any()
            comm.all_reduce(x, key="k", deadline=0.01)
            comm.forget("k")
            comm.all_reduce(np.ones(5), key="k", deadline=0.01)
            assert comm.flush("k").shape == (5,)
            return first, x

        for first, x in world.run(rank):
            assert (first.shape, first.dtype) == ((3, 4), np.float32)
            assert not first.any()
            assert (x == 4).all()


def test_bench__closes_the_account_with_carry_only(tmp_path):
    script = Path(__file__).parents[2] / "bench" / "sim_carry.py"
    command = [sys.executable, script, "--quick", "--png", tmp_path / "carry.png"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    rows = [line for line in done.stdout.splitlines() if "equal" in line]
    assert ["equal 4 of 4" in row for row in rows] == [True, True, False, False, False]


def test_flush__errors():
    with tb.simulate(2, missing="carry") as world:

        def rank(comm):
            with pytest.raises(tb.ArgumentError, match="needs a key"):
                comm.flush(None)
            with pytest.raises(tb.ArgumentError, match="never used"):
                comm.flush("other")
            x = np.ones(4)
            work = comm.all_reduce_async(x, key="k", deadline=0.01)
            with pytest.raises(tb.BufferRejected, match="elements"):
                comm.flush("k", out=np.zeros(3))
            with pytest.raises(tb.BufferRejected, match="dtype"):
                comm.flush("k", out=np.zeros(4, np.float32))
            correction = comm.flush("k")
            assert work.done()  # it waits for what is under way
            return correction

        for correction in world.run(rank):
            assert not correction.any()


def test_flush__a_refused_call_says_nothing_of_the_key():
    with tb.simulate(2, missing="carry") as world:

        def rank(comm):
            comm.all_reduce(np.ones(4), key="k", deadline=0.01)
            if comm.rank == 0:
                with pytest.raises(tb.KeyBoundError):
                    comm.all_reduce(np.ones(7), key="k", deadline=0.01)
            return comm.flush("k", timeout=1.0)

        for correction in world.run(rank):
            assert correction.shape == (4,)


def test_flush__a_key_of_another_size_is_told_before_anybody_waits():
    with tb.simulate(2, missing="carry") as world:

        def rank(comm):
            comm.all_reduce(np.ones(4), key="k", deadline=0.01)
            comm._last[b"s:k"] = tb.buffers.Like((7,), np.dtype(np.float64), comm._last[b"s:k"].code, 7)
            with pytest.raises(tb.ArgumentError, match="another shape"):
                comm.flush("k")

        world.run(rank)


def test_flush__a_dead_peer_is_named():
    with tb.simulate(3, missing="carry", peer_timeout=1.0) as world:

        def rank(comm):
            if comm.rank == 2:
                world.sleep(comm, 0.001)
                return
            comm.all_reduce(np.ones(4), key="k", deadline=0.01)
            world.set(2, None, blackhole=True)
            world.set(None, 2, blackhole=True)
            with pytest.raises(tb.PeerLost, match="rank 2"):
                comm.flush("k")

        world.run(rank)
