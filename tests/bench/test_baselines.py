"""baselines.py: each averages exactly where nothing is lost, counts what is, and stays within its deadline."""

import logging
import math

import baselines
import common_sim
import numpy as np
import pytest
import tailbound as tb

N, COUNT = 4, 8000
ALL = ("tar", "exact", "ring", "exact_ring", "p2p", "server")
LOSSY = ("tar", "ring", "p2p", "server")


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("tailbound").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("tailbound").setLevel(logging.NOTSET)


def gradients(seed=0):
    return [np.random.default_rng([seed, rank]).normal(size=COUNT).astype(np.float32) for rank in range(N)]


@pytest.mark.parametrize("name", ALL)
def test_average__without_loss(name):
    xs = gradients()
    with tb.simulate(N, seed=1) as world:
        for _ in range(2):  # tags and keys are used again
            outcome = getattr(baselines, name)(world, xs, 0.01)
            for mean in outcome.outputs:
                np.testing.assert_allclose(mean, np.mean(xs, axis=0), atol=1e-5)
            assert outcome.received == [1.0] * N
            assert 0 < max(outcome.took) < 0.001


@pytest.mark.parametrize("name", ["exact", "exact_ring"])
def test_reliable__whatever_is_lost(name):
    xs = gradients()
    with tb.simulate(N, seed=1, loss=0.1) as world:
        outcome = getattr(baselines, name)(world, xs)
    for mean in outcome.outputs:
        np.testing.assert_allclose(mean, np.mean(xs, axis=0), atol=1e-5)


@pytest.mark.parametrize("name", LOSSY)
def test_lossy__averages_what_came_by_its_deadline(name):
    """Each value is the mean of some set of ranks, and `received` is the size of these sets."""
    names = common_sim.Names(N)
    xs = [names.gradient(rank, COUNT) for rank in range(N)]
    with tb.simulate(N, seed=1, min_received=0.0, loss=0.1, repair=0) as world:
        outcome = getattr(baselines, name)(world, xs, 0.002)
    for mean, received in zip(outcome.outputs, outcome.received, strict=True):
        counts = names.counts[names.sets(mean)]
        assert received == pytest.approx(np.mean(np.maximum(counts - 1.0, 0)) / (N - 1), abs=0.03)
        assert 0.3 < received < 0.98
    assert max(outcome.took) <= 0.002 + 1e-6


def test_ring__a_lost_partial_sum_takes_all_in_it_along():
    names = common_sim.Names(N)
    xs = [names.gradient(rank, COUNT) for rank in range(N)]
    with tb.simulate(N, seed=1, min_received=0.0) as world:
        world.set(0, 1, blackhole=True)
        outcome = baselines.ring(world, xs, 0.004)
    sets = [names.sets(mean) for mean in outcome.outputs]
    # Each sum that should have come from rank 0 begins anew at rank 1; finished segments from there end with it, too.
    assert [sorted({int(one) for one in np.unique(at)}) for at in sets[1:3]] == [[0, 0b0010], [0, 0b0010, 0b0110]]
    assert outcome.received[1] < outcome.received[0]


def test_p2p__moves_whole_tensors():
    xs = gradients()
    sent = {}
    for name in ("tar", "p2p"):
        with tb.simulate(N, seed=1) as world:
            getattr(baselines, name)(world, xs, 0.01)
            sent[name] = sum(p["bytes_sent"] for comm in world.comms for p in comm.stats()["peers"].values())
    assert sent["p2p"] == N * (N - 1) * COUNT * 4
    assert sent["p2p"] / sent["tar"] == pytest.approx(N / 2, rel=0.1)


def test_sends__that_come_too_late_are_no_error():
    """Where less time is left than the library was measured to need, the hop is lost and the average goes on."""
    xs = gradients()
    with tb.simulate(N, seed=1, min_received=0.0, delay="500us") as world:
        baselines.warm_up(world, xs)
        outcome = baselines.ring(world, xs, 0.001)
    assert not math.isnan(float(np.sum(outcome.outputs)))
    assert max(outcome.received) < 0.5
