"""As many ranks as there may be. The network has no rate, so that what is sent together arrives together."""

import numpy as np
import pytest
import tailbound as tb

RANKS, COUNT = 1024, 2048


def share(rank):
    return ((np.arange(COUNT) + 3 * rank) % 11).astype(np.float32)


@pytest.mark.timeout(400)  # half a minute of processor time
def test_1024_ranks__an_exact_round_and_a_lossy_one_are_complete():
    expected = sum(share(rank).astype(np.int64) for rank in range(RANKS))
    with tb.simulate(RANKS, seed=1, rate=0, delay="50us") as world:
        for key, deadline, loss in (("exact", float("inf"), 0), ("lossy", 1.0, 0.001)):
            world.set(loss=loss)
            tensors = [share(rank) for rank in range(RANKS)]
            works = [
                comm.all_reduce_async(x, key=key, deadline=deadline)
                for comm, x in zip(world.comms, tensors, strict=True)
            ]
            results = [work.wait() for work in works]
            assert {(r.received, r.verdict) for r in results} == {(1.0, "ok")}
            assert all(np.array_equal(x, expected) for x in tensors)
        repaired = sum(peer["repaired"] for peer in world.comms[0].stats()["peers"].values())
        assert repaired > 0, "the second round lost frames"


def test_256_ranks__a_repeated_contribution_does_not_wait_for_a_whole_stage():
    """One frame a shard: all that an owner lacks is one of 255, and every rank has 255 decided frames to send."""
    n, count = 256, 256 * 1024
    x, outputs = np.ones(count, np.float32), [np.empty(count, np.float32) for _ in range(n)]
    with tb.simulate(n, seed=1, rate="10G", delay="50us", mtu=4160, loss=0.0005) as world:
        works = [
            comm.all_reduce_async(x, out, key="k", deadline=10.0)
            for comm, out in zip(world.comms, outputs, strict=True)
        ]
        took = max(work.wait().elapsed for work in works)
    assert all((out == n).all() for out in outputs)
    bound = 2 * (n - 1) * 4160 * 8 / 10e9 + 2 * 50e-6
    assert took < 1.45 * bound  # 1.31; behind the decided frames 1.64
