"""Ranks that stop, die, cannot reach each other, disagree, or come back."""
import re
import signal
import time

import pytest
from harness import check_on_time, check_values, median
from job import PEER_TIMEOUT

DEADLINE = 0.1


def test_stopped__others_return_by_the_deadline_and_it_is_back_at_once(job):
    victim, others, key = job.n - 1, range(job.n - 1), job.key("steps")

    def phase(name, n):
        return {"name": name, "key": key, "n": n, "count": 20_000, "deadline": DEADLINE, "gap": 0.01, "tagged": False}

    job.step("phase", timeout=4, phase=phase("before", 5))
    job.stop(victim)
    job.step("phase", timeout=5, ranks=others, phase=phase("during", 12))
    job.go_on(victim)
    job.step("phase", timeout=4, phase=phase("after", 12))

    check_values(job)
    for rank in others:
        during = job.ops(rank, "during")
        check_on_time(during)
        # three rounds wait for it; from then on it is absent and costs nothing, but it is never said to be whole
        check_quick(during[4:])
        assert all(o["peers"][str(victim)] < 1 for o in during), during
    for rank in job.ranks:
        check_on_time(job.ops(rank, "after"))
        assert median(o["received"] for o in job.ops(rank, "after")) == 1, job.ops(rank, "after")
    assert sum(o["behind"] for o in job.ops(victim, "after")) >= 10, "it takes up the others' round"


def test_killed__others_go_on_an_exact_call_names_it_and_a_new_job_is_whole(job):
    victim, others, key = job.n - 1, range(job.n - 1), job.key("steps")
    step = job.begin("phase", phase={"name": key, "key": key, "n": 30, "count": 20_000, "deadline": DEADLINE,
                                     "gap": 0.01, "tagged": False})
    for rank in job.ranks:
        job.wait_for(rank, 2, what="op", op=4)
    killed = job.signal(victim, signal.SIGKILL)
    job.end(step, timeout=4, ranks=others)
    check_values(job, others)
    for rank in others:
        after = [o for o in job.ops(rank) if o["t0"] > killed]
        assert len(after) > 8, (rank, after)
        check_on_time(after)
        check_quick(after[4:])
        assert all(o["received"] < 1 for o in after[1:])

    asked = time.monotonic()
    said = job.step("exact", timeout=PEER_TIMEOUT + 3, ranks=others, errors=True, what="all_reduce", dtype="float32",
                    counts=[1000], key=job.key("exact"))
    for rank, line in said.items():
        assert line["error"] == "PeerLost", (rank, line)
        assert line["text"].startswith(f"rank {victim} was silent"), (rank, line)
        assert line["t"] - asked < PEER_TIMEOUT + 1, (rank, line)

    for rank, line in job.step("close", timeout=4, ranks=others).items():
        assert line["took"] < 1.0 + 0.5, f"rank {rank} lingered for {line['took']} s instead of 1 s"
    job.start(victim)
    job.init()
    exact(job)


@pytest.mark.parametrize("deadline", ["inf", 1.0], ids=["exact", "lossy"])
@pytest.mark.parametrize(("what", "odd", "values"), [("count", {"count": 1001}, ("1000", "1001")),
                                                     ("dtype", {"dtype": "float64"}, ("float32", "float64"))])
def test_mismatch__names_both_ranks_on_every_rank(job, what, odd, values, deadline):
    victim, key = job.n - 1, job.key(what)
    step = job.begin("mismatch", key=key, deadline=deadline,
                     each=lambda rank: {"count": 1000, "dtype": "float32", **(odd if rank == victim else {})})
    for rank, line in job.end(step, timeout=4).items():
        assert line.get("raised") == "MismatchError", (rank, line)
        for part in (rf"\brank {victim}\b", rf"\brank [0-{victim - 1}]\b", *values):
            assert re.search(part, line["why"]), (rank, part, line)
        assert line["kept"], f"rank {rank}: the input must be as it was"
        assert line["wrong"] == 0, f"rank {rank}: another key is not affected"


def test_close__and_init_again_in_the_same_processes(job):
    descriptors = []
    for _ in range(3):
        for rank, line in job.step("close", timeout=4).items():
            assert line["took"] < 1.5, (rank, line)
        said = job.init(timeout=6)
        descriptors.append([said[rank]["descriptors"] for rank in job.ranks])
        exact(job)
    assert descriptors[-1] == descriptors[0], f"open files of each rank, cycle by cycle: {descriptors}"


def test_blocked_pair__is_named_by_init_and_reached_once_it_is_open(job, net):
    low, high = 0, job.n - 1
    job.step("close", timeout=4)
    net.block(low, high)
    net.block(high, low)
    before = net.drops(low, high), net.drops(high, low)
    for rank, line in job.init(errors=True, timeout=5, init_timeout=2.0).items():
        assert line["error"] == "RendezvousError", (rank, line)
        assert f"1 pair of ranks (rank {low} and rank {high})" in line["text"], (rank, line)
        assert line["took"] < 3.5, (rank, line)
    assert net.drops(low, high) > before[0]
    assert net.drops(high, low) > before[1]
    net.calm()
    job.init(timeout=6)
    exact(job)


def check_quick(ops):
    """Rounds that wait for an absent rank all take the deadline; a loaded machine makes some of the others as slow."""
    walls = sorted(o["wall"] for o in ops)
    assert walls[len(walls) // 4] < DEADLINE / 2, walls


def exact(job):
    said = job.step("exact", timeout=4, what="all_reduce", dtype="float32", counts=[1, 50_021], key=job.key("exact"))
    assert all(line["wrong"] == {"1": 0, "50021": 0} for line in said.values()), said
