"""Eight ranks send to one at once, over real UDP: its socket buffers, of a stock kernel's size, never overflow."""
import pytest
from local_job import run_local

STOCK = "212992"
INCAST = """
count, rounds = 500_000, 4
with tb.init(min_received=0.0) as comm:
    x = np.full(count, RANK, np.float32)
    boxes = [np.empty(count, np.float32) for _ in range(SIZE)]
    wrong = 0
    for i in range(rounds):
        comm.barrier()
        if RANK:
            comm.send(x, 0, deadline=float("inf"))
            continue
        works = [comm.recv_async(boxes[p], p, deadline=float("inf")) for p in range(1, SIZE)]
        for work in works:
            work.wait()
        wrong += sum(int(np.count_nonzero(boxes[p] != p)) for p in range(1, SIZE))
    comm.barrier()
    s = comm.stats()
    say(wrong=wrong, overflow=s["rx_overflow"], frames=s["rx_frames"])
"""


@pytest.mark.parametrize("ranks", [9])
def test_incast__never_overflows_the_receivers_buffers(ranks):
    said = run_local(INCAST, ranks, timeout=60, env={"TAILBOUND_BUFFER": STOCK})
    for (line,) in said:
        assert line["wrong"] == 0
    (receiver,) = said[0]
    assert receiver["frames"] > 1000
    assert receiver["overflow"] == 0


def test_incast__overflows_them_where_credit_knows_nothing_of_the_buffers():
    """Without: each peer may have far more under way than its share."""
    said = run_local(INCAST, 9, timeout=60, env={"TAILBOUND_BUFFER": STOCK, "TAILBOUND_WINDOW_MIN": "4096"})
    assert said[0][0]["wrong"] == 0
    assert said[0][0]["overflow"] > 0
