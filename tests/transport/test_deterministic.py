"""deterministic: contributions are added by rank, so the same ones give the same bits (rule 17)."""

import numpy as np
import pytest
import tailbound as tb

pytestmark = pytest.mark.usefixtures("quiet")

RANKS, COUNT = 5, 6000
BIG = np.array([1e8, 3.0, -1e8, 0.7, 3e7])


def gradient(rank):
    return (BIG[rank] * (1 + np.random.default_rng(rank).random(COUNT))).astype(np.float32)


def run(seed, deterministic, **options):
    """All ranks' results over a network whose frames take their own time, other ones for each seed."""

    def step(comm):
        found = []
        for turn in range(3):
            x = gradient(comm.rank)
            world.sleep(comm, 1e-6 * np.random.default_rng([seed, comm.rank, turn]).integers(300))
            result = comm.all_reduce(x, key="g", deterministic=deterministic, **options)
            assert result.verdict == "ok"
            found.append(x.tobytes())
        return found

    with tb.simulate(RANKS, seed=seed, delay="50us", jitter="200us", reorder=0.1) as world:
        return world.run(step)


@pytest.mark.parametrize(
    "options",
    [
        {"deadline": float("inf")},
        {"deadline": float("inf"), "op": "avg"},
        {"deadline": 0.05, "consistency": "agree"},
        {"deadline": float("inf"), "wire_dtype": "bf16", "op": "avg"},
    ],
    ids=["exact", "avg", "agree", "bf16"],
)
def test_deterministic__same_bits_over_another_network(options):
    runs = [run(seed, True, **options) for seed in range(4)]
    assert all(found == runs[0] for found in runs)
    runs = [run(seed, False, **options) for seed in range(4)]
    assert any(found != runs[0] for found in runs)


def test_deterministic__is_the_sum_by_rank():
    found = run(1, True, deadline=float("inf"))
    total = gradient(0)
    for rank in range(1, RANKS):
        total = total + gradient(rank)
    assert all(x == total.tobytes() for rank in found for x in rank)


def test_deterministic__of_the_communicator_and_on_all_ranks():
    with tb.simulate(2, seed=1, deterministic=True) as world:

        def step(comm):
            comm.all_reduce(gradient(comm.rank), key="g", deadline=float("inf"))
            with pytest.raises(tb.KeyBoundError, match="order=ranks"):
                comm.all_reduce(gradient(comm.rank), key="g", deadline=float("inf"), deterministic=False)
            comm.all_reduce(np.arange(3), deadline=float("inf"))
            with pytest.raises(tb.MismatchError, match="order="):
                comm.all_reduce(gradient(comm.rank), key="h", deadline=0.05, deterministic=comm.rank == 1)

        world.run(step)
        with pytest.raises(tb.ArgumentError, match="deterministic='perhaps'"):
            world.comms[0].all_reduce(gradient(0), deterministic="perhaps")
