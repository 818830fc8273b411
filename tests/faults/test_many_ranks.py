"""Many more ranks than cores, on this machine."""
import pytest
from local_job import run_local

WORK = """
with tb.init(init_timeout=60) as comm:
    wrong = 0
    for i in range(5):
        x = (np.arange(10_007) % 97 + RANK + i).astype(np.float32)
        r = comm.all_reduce(x, key="floats", deadline=float("inf"))
        expected = sum(np.arange(10_007) % 97 + rank + i for rank in range(SIZE))
        wrong += int(np.count_nonzero(x != expected)) + (r.received != 1) + (r.verdict != "ok") + (r.round != i)
        y = np.full(3, RANK - i, np.int64)
        comm.all_reduce(y, op="max")
        wrong += int(np.count_nonzero(y != SIZE - 1 - i))
    tiny = np.full(1, 2.0**RANK, np.float32)  # fewer elements than ranks: most shards are empty
    comm.all_reduce(tiny, deadline=float("inf"))
    wrong += int(tiny[0] != 2.0**SIZE - 1)
    everybody = comm.all_gather(np.array([RANK], np.int32)).out
    wrong += int(np.count_nonzero(everybody.ravel() != np.arange(SIZE)))
    z = np.ones(20_000, np.float32)
    lossy = comm.all_reduce(z, key="lossy", deadline=20.0)  # far more than it needs: all of it must come
    wrong += int(np.count_nonzero(z != SIZE)) + (lossy.received != 1)
    comm.barrier()
    began = time.monotonic()
say(wrong=wrong, closed=time.monotonic() - began, threads=len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize("n", [8, 16])
def test_many_ranks__agree_exactly_and_close_cleanly(n):
    for lines in run_local(WORK, n, timeout=60):
        (line,) = lines
        assert line["wrong"] == 0, line
        assert line["closed"] < 2.0 + 1.0, line
        assert line["threads"] == 1, "the progress thread is gone"
