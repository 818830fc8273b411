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
