"""Rules 3 and 4 over the simulated network: whom the automatic deadline waits for, and what it costs."""

import numpy as np
import pytest
import tailbound as tb

N = 8
EXACT = float("inf")


def rounds(world, turns, before=lambda comm, turn: None, period=0.050, deadline="auto"):
    """Results by rank of `turns` all-reduces on a fixed beat; before(comm, turn) may sleep, or end the rank by True."""

    def rank(comm):
        found, x, turn = [], np.ones(8000, np.float32), 0
        while turn < turns:
            at = period * (turn + 1)
            if world.now < at:
                world.sleep(comm, at - world.now)
            if before(comm, turn):
                break
            found.append(comm.all_reduce(x, op="avg", key="k", deadline=deadline, min_received=0))
            turn = found[-1].round + 1
        return found

    return world.run(rank)


@pytest.mark.parametrize("seed", [1, 2])
def test_auto__a_peer_three_times_slower_loses_nothing(seed):
    """Permanently: its computation takes three times as long, and so do its frames. Nobody leaves it out."""
    with tb.simulate(N, seed=seed, delay="50us", rate="1G") as world:
        for ends in ((7, None), (None, 7)):
            world.set(*ends, rate="333M")
        rng = [np.random.default_rng([seed, rank]) for rank in range(N)]

        def compute(comm, turn):
            world.sleep(comm, (3 if comm.rank == 7 else 1) * rng[comm.rank].uniform(0.004, 0.006))

        found = rounds(world, 60, compute)
    got = np.array([[r.received for r in calls[8:]] for calls in found])
    assert got.mean() >= 0.995
    assert np.mean([r.by_stage[1][7] for calls in found[:7] for r in calls[8:]]) >= 0.995


def test_auto__a_dead_peer_costs_the_others_nothing():
    """Rank 7 dies after 20 rounds: of what the others owe each other nothing is missing, and once it is absent (three
    rounds) the time is what it was."""
    with tb.simulate(N, seed=1, delay="50us", rate="10G") as world:

        def die(comm, turn):
            dies = comm.rank == 7 and turn == 20
            for ends in ((7, None), (None, 7)) if dies else ():
                world.set(*ends, blackhole=True)
            return dies

        found = rounds(world, 40, die)
    for calls in found[:7]:
        assert all(r.by_stage[s][p] == 1 for r in calls for s in (1, 2) for p in r.by_stage[s] if p != 7)
        before, after = [r.elapsed for r in calls[10:20]], [r.elapsed for r in calls[24:]]
        assert max(after) < 1.1 * max(before)


def test_auto__jitter_manufactures_no_loss():
    """10 ms of jitter in the time of issue, nothing else: as complete, and as fast, as the exact class."""
    took = {}
    for deadline in (EXACT, "auto"):
        with tb.simulate(N, seed=3, delay="50us", rate="10G") as world:
            rng = [np.random.default_rng([3, rank]) for rank in range(N)]

            def compute(comm, turn, world=world, rng=rng):
                world.sleep(comm, rng[comm.rank].uniform(0, 0.010))

            found = rounds(world, 80, compute, period=0, deadline=deadline)
            took[deadline] = world.now
        assert all(r.received == 1 for calls in found for r in calls)
    assert took["auto"] <= 1.02 * took[EXACT]


def test_early_timeout__ends_a_round_that_repair_cannot_mend():
    """What was lost when the path dies stays lost; all senders are through. The round ends long before its deadline."""
    fired, slowest = {}, {}
    for setting in ("always", "off"):
        with tb.simulate(2, seed=5, delay="50us", rate="10G", early_timeout=setting) as world:

            def rank(comm, world=world):
                x = np.ones(100_000, np.float32)
                for _ in range(12):
                    comm.all_reduce(x, key="k", deadline=0.020, min_received=0)
                if comm.rank == 1:
                    world.set(1, 0, loss=0.05)
                work = comm.all_reduce_async(x, key="k", deadline=0.020, min_received=0)
                if comm.rank == 1:  # what was lost until now stays lost
                    world.sleep(comm, 0.00035)
                    world.set(1, 0, blackhole=True)
                return work.wait(), comm.stats()["early_timeouts"]

            found = world.run(rank)
        fired[setting] = sum(count for _, count in found)
        slowest[setting] = max(r.elapsed for r, _ in found)
    assert fired["always"] > 0
    assert fired["off"] == 0
    assert slowest["always"] < slowest["off"] / 2
