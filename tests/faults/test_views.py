"""Views over real UDP (rule 9): a killed rank is voted out; one that was stopped for long comes back by rejoin()."""
import signal
import time

from local_job import LocalJob

OPTIONS = 'peer_timeout="500ms", evict_after=5, min_received=0.2, max_skips=1000'

KILLED = f"""
comm = tb.init({OPTIONS})
x, rounds, since = np.empty(20000, np.float32), 0, time.monotonic()
say(what="ready")
while comm.view == 1 and time.monotonic() - since < 20:
    x[:] = 1 + RANK
    comm.all_reduce(x, key="w", deadline=0.1)
    time.sleep(0.005)
seen = comm.view, comm.members
while True:  # some may have waited in it when the view changed
    try:
        comm.barrier()
        break
    except (tb.MembershipChanged, tb.PeerLost):
        continue
for _ in range(20):
    x[:] = 1 + RANK
    r = comm.all_reduce(x, key="w", deadline=0.5)
say(what="end", view=seen, received=r.received, verdict=r.verdict, value=float(x[0]), wall=r.elapsed, round=r.round)
comm.close()
"""


def test_killed__is_voted_out_and_the_job_is_whole_again():
    with LocalJob(KILLED, 4) as job:
        for i in range(4):
            assert job.line(i)["what"] == "ready"
        time.sleep(0.3)
        job.processes[2].send_signal(signal.SIGKILL)
        ends = [job.line(i) for i in (0, 1, 3)]
        for i in (0, 1, 3):
            assert job.processes[i].wait(20) == 0
    for end in ends:
        assert end["view"] == [2, [0, 1, 3]], end
        assert (end["verdict"], end["received"], end["value"]) == ("ok", 1.0, 7.0), end
        assert end["wall"] < 0.3, end
    assert len({end["round"] for end in ends}) == 1


STOPPED = f"""
comm = tb.init({OPTIONS})
x, until, left = np.empty(20000, np.float32), time.monotonic() + 60, 0
say(what="ready")
while time.monotonic() < until:
    x[:] = 1 + RANK
    try:
        r = comm.all_reduce(x, key="w", deadline=0.1)
    except tb.MembershipChanged:
        left += 1
        say(what="out", text=comm.rejoin(timeout=10))
        continue
    time.sleep(0.005)
    if comm.view == 3 and r.view == 3 and until > time.monotonic() + 2:
        until = time.monotonic() + 1  # everybody sees it within that
last = np.full(1, float(comm.view))
while True:
    try:
        comm.all_reduce(last, op="min")
        break
    except (tb.MembershipChanged, tb.PeerLost):
        continue
say(what="end", view=int(last[0]), members=comm.members, left=left, verdict=r.verdict, value=float(x[0]))
comm.close()
"""


def test_stopped__for_long_comes_back_by_rejoin():
    with LocalJob(STOPPED, 4) as job:
        for i in range(4):
            assert job.line(i)["what"] == "ready"
        time.sleep(0.2)
        job.processes[3].send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        job.processes[3].send_signal(signal.SIGCONT)
        assert job.line(3)["text"] == 3, "the view after the one it was voted out by"
        ends = [job.line(i) for i in range(4)]
        for process in job.processes:
            assert process.wait(20) == 0
    for rank, end in enumerate(ends):
        assert end["what"] == "end", ends
        assert end["view"] == 3
        assert end["members"] == [0, 1, 2, 3]
        assert end["left"] == (rank == 3)
    assert any(end["value"] == 10.0 for end in ends)
