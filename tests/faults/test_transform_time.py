"""The transform on real UDP: its time at both ends is inside the deadline, and other operations do not wait for it."""
from local_job import run_local

CODE = """
comm = tb.init(min_received=0)
x = np.ones(2_000_000, np.float32)
late, most = [], 0
for turn in range(12):
    if RANK == 1 and turn % 3 == 2:
        time.sleep(0.4)
    x[:] = RANK + 1
    start = time.monotonic()
    r = comm.all_reduce(x, op="avg", key="g", deadline=DEADLINE, hadamard=True)
    late.append(time.monotonic() - start - DEADLINE)
    if r.verdict == "ok":
        assert abs(x - 1.5).max() < 1e-4, abs(x - 1.5).max()
        most += 1
say(late=late, ok=most, deadline=r.deadline)
comm.close()
"""


def test_hadamard__returns_by_the_deadline():
    for lines in run_local(CODE.replace("DEADLINE", "0.25"), 2, timeout=60):
        said = lines[-1]
        assert said["deadline"] == 0.25
        assert said["ok"] >= 3
        # A round that waits for the late rank ends by its deadline, the inverse included.
        assert sorted(said["late"])[-3] < 0.02, said["late"]
        assert max(said["late"]) < 0.25, said["late"]
