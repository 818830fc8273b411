"""What the sim scripts compute with: sets of ranks from means, errors from sets, closed forms, the bound."""

import common_bound
import common_mse
import common_sim
import numpy as np
import pytest
import sim_mse
import sim_uneven
import tailbound as tb


@pytest.mark.parametrize("n", range(2, 9))
def test_names__every_set_is_told_from_its_mean(n):
    names = common_sim.Names(n)
    xs = np.array([names.gradient(rank, 1)[0] for rank in range(n)], np.float32)
    for bits, members in enumerate(names.members):
        mean = xs[members].mean(dtype=np.float32) if bits else np.float32(0)
        assert names.sets(np.array([mean], np.float32)) == [bits]
    with pytest.raises(ValueError, match="no set"):
        names.sets(np.array([0.5], np.float32))


def correlated(rho, count, seed):
    rng = np.random.default_rng(seed)
    return rho**0.5 * rng.normal(size=count) + (1 - rho) ** 0.5 * rng.normal(size=(sim_mse.N, count))


def test_errors__are_those_of_real_gradients():
    """The same network and seed with real gradients: the error that sets foretell."""
    n, count = sim_mse.N, 100_000
    names = [sim_mse.NAMES.gradient(rank, count) for rank in range(n)]

    def outputs(xs):
        with tb.simulate(n, seed=3, min_received=0.0, loss=0.05, repair=0) as world:
            work = [
                comm.all_reduce_async(x.copy(), op="avg", key="k", deadline=0.005)
                for comm, x in zip(world.comms, xs, strict=True)
            ]
            return [w.wait().out for w in work]

    counts = np.array([sim_mse.NAMES.counts[sim_mse.NAMES.sets(mean)] for mean in outputs(names)])
    assert counts.min() < n
    for i, rho in enumerate(common_mse.CORRELATIONS):
        xs = correlated(rho, count, seed=4)
        real = np.mean([(mean - xs.mean(axis=0)) ** 2 for mean in outputs(list(xs.astype(np.float32)))])
        assert common_mse.errors(counts, plain=False)[i] == pytest.approx(real, rel=0.05)


def drawn(name, p, trials, seed=5):
    """Counts at a random rank of a random element, when each frame is lost with probability p."""
    rng, n = np.random.default_rng(seed), sim_mse.N
    if name == "ring":
        counts = np.ones(trials, int)
        for _ in range(n - 1):
            counts = np.where(rng.random(trials) < p, 1, counts + 1)
        hops = rng.integers(0, n, trials)
        return np.where(rng.random(trials) < (1 - p) ** hops, counts, 0)
    counts = 1 + rng.binomial(n - 1, 1 - p, trials)
    if name == "p2p":
        return counts
    owner = rng.random(trials) < 1 / n
    return np.where(owner | (rng.random(trials) >= p), counts, 0)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", sim_mse.MECHANISMS)
@pytest.mark.parametrize("p", [0.01, 0.1, 0.4])
def test_closed_form__is_the_mean_of_independent_losses(name, p, plain):
    want = common_mse.errors(drawn(name, p, 400_000), plain)
    np.testing.assert_allclose(common_mse.closed_form(name, p, plain), want, rtol=0.05, atol=1e-4)


def test_closed_form__of_renormalised_means_by_the_text():
    """The formulas in common_mse.py's text, written out."""
    n, p, rho = common_mse.N, 0.1, np.array(common_mse.CORRELATIONS)
    nothing = rho + (1 - rho) / n
    owner = (1 - rho) * ((1 - p**n) / (n * (1 - p)) - 1 / n)
    missed = p * (n - 1) / n
    np.testing.assert_allclose(common_mse.closed_form("p2p", p), owner)
    np.testing.assert_allclose(common_mse.closed_form("tar", p), (1 - missed) * owner + missed * nothing)


def test_many_rounds__what_is_carried_is_not_lost():
    """New gradients in each round: what carry adds is noise there, and right in the sum; flush() brings the rest."""
    lost = sim_mse.many_rounds("renormalise", 0, 0.5, seed=2, rounds=4)
    carried = sim_mse.many_rounds("carry", 0, 0.5, seed=2, rounds=4)
    assert carried[1] < lost[1] / 2
    assert carried[2] < 1e-10 < lost[2]


def test_figures__of_known_sets():
    n = sim_uneven.N
    full, without_7 = 2**n - 1, 2 ** (n - 1) - 1
    sets = np.full((4, n, 100), full, np.uint8)
    assert sim_uneven.figures(sets, plain=False) == pytest.approx(
        {"scale": 1, "least": 1, "bias": 0, "deviation": 0, "received": 1}, abs=1e-3
    )
    sets[:] = without_7
    always = sim_uneven.figures(sets, plain=True)
    assert always["scale"] == pytest.approx(7 / 8, abs=1e-3)
    assert always["least"] == pytest.approx(0, abs=1e-3)
    assert always["bias"] == pytest.approx(1 / 8, abs=1e-3)
    assert always["deviation"] == pytest.approx(0, abs=1e-3)
    sets[::2] = full
    half = sim_uneven.figures(np.tile(sets, (50, 1, 1)), plain=True)
    assert half["bias"] == pytest.approx(1 / 16, abs=1e-3)
    assert half["deviation"] == pytest.approx(1 / 16, abs=1e-3)


def test_bursts__are_where_the_simulator_has_them():
    """Probes wait at the port while a burst lasts or what it left in the queue drains, and at no other time."""
    on, off = 50_000, 200_000
    found = common_bound.bursts(7, 1, on, off, 0)
    line = [next(found) for _ in range(100)]
    with tb.simulate(2, seed=7, log=True, delay=0, rate="100G", queue="100k", repair=0) as world:
        world.set(1, None, bg_rate="200G", bg_on=on * 1e-9, bg_off=off * 1e-9)
        x = np.zeros(1, np.float32)
        for _ in range(1000):
            world.comms[0].send_async(x, 1, 0, 1e-5)
            world.advance(1e-5)
        log = world.log()
    log = log[(log["dst"] == 1) & (log["arrived_ns"] > 0)]
    waited = (log["arrived_ns"] - log["sent_ns"]).astype(int) > 500
    drain = 100 * 1024 * 8 / 100
    inside = np.array([any(a <= t <= b for a, b in line) for t in log["sent_ns"]])
    near = np.array([any(a <= t <= b + drain + 1000 for a, b in line) for t in log["sent_ns"]])
    assert waited.sum() > 50
    assert not (waited & ~near).any()
    assert (waited & inside).sum() > 0.9 * inside.sum()


def test_bound__counts_what_bursts_leave():
    lines = [iter([(100, 200), (10**12, 10**12 + 1)]), iter([(10**12, 10**12 + 1)])]
    bound = common_bound.Bound(lines, rate=8e9, background=8e9)  # a byte a ns, half of it in a burst
    assert bound.took(0, 90, 0) == pytest.approx(90e-9)
    assert bound.took(0, 120, 0) == pytest.approx(140e-9)
    assert bound.took(0, 180, 0) == pytest.approx(230e-9)
    assert bound.took(150, 100, 1e-6) == pytest.approx(125e-9 + 1e-6)
    assert bound.took(500, 100, 0) == pytest.approx(100e-9)


def test_bound__with_queues_that_drain():
    bursts = [(100, 200), (1000, 5000)]
    longer = list(common_bound.with_queues(iter(bursts), rate=8e9, background=16e9, queue=300))
    assert longer == [(100, 400), (1000, 5300)]  # of the first 200 bytes are left, of the second what the queue holds
