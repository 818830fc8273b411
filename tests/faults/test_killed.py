"""A rank dies (SIGKILL)."""
import re
import signal
import time

from harness import Job, check_on_time, median

ENV = {"TAILBOUND_LINK": "udp", "TAILBOUND_PEER_TIMEOUT": "1s", "TAILBOUND_EVICT_AFTER": "0"}  # it stays a member
VICTIM = 2
SURVIVORS = (0, 1, 3)


def names(text, rank):
    return re.search(rf"\brank {rank}\b", text)


def test_killed__others_go_on_and_an_exact_operation_names_it(lab):
    net = lab(4)
    phases = [
        {"name": "lossy", "n": 45, "count": 20_000, "deadline": 0.1, "key": "w", "gap": 0.01, "tagged": False},
        {"name": "exact", "n": 2, "count": 1000, "deadline": "inf", "key": "e"},
        {"name": "after", "n": 5, "count": 20_000, "deadline": 0.1, "key": "w", "tagged": False}]
    # max_skips: on a starved machine survivors are late for each other too, and three such rounds in a row, or a phase
    # that they enter half a second apart, would raise, as it should; more than that in a row is not the machine.
    with Job(net, {"phases": phases, "init": {"min_received": 0.3, "max_skips": 10}}, env=ENV) as job:
        job.wait_for(0, what="op", op=15)
        killed = job.signal(VICTIM, signal.SIGKILL)
        job.join(ranks=SURVIVORS)
        ended = time.monotonic()
        job.processes[VICTIM].wait(5)
    for rank in SURVIVORS:
        lossy = job.ops(rank, "lossy")
        missing = sorted(set(range(45)) - {o["op"] for o in lossy})
        assert not missing, f"rank {rank}, lossy operations {missing}: {job.said(rank, what='error', phase='lossy')}"
        check_on_time(lossy)
        after = [o for o in lossy if o["t0"] > killed]
        assert len(after) > 15
        assert all(o["bad"] == 0 for o in lossy)
        assert median(o["wall"] for o in after[5:]) < 0.05, "a dead peer must not cost the deadline every time"
        assert all(o["received"] < 1 for o in after[1:])

        errors = job.said(rank, what="error")
        assert [error["op"] for error in errors] == [0, 1], f"rank {rank}: {errors}"
        first, second = errors
        issued = [line["t"] for line in job.said(rank, what="issue", phase="exact")]
        assert {first["phase"], second["phase"]} == {"exact"}
        for error in (first, second):
            assert error["text"].startswith(f"rank {VICTIM} was silent"), error  # whoever noticed is named after that
        assert first["t"] - issued[0] < 1.0 + 1.0, "peer_timeout is 1 s"
        assert second["t"] - issued[1] < 0.3, "further exact calls fail at once"

        assert len(job.ops(rank, "after")) == 5
        check_on_time(job.ops(rank, "after"))
        assert job.said(rank, what="closed")[0]["took"] < 2.0 + 0.5, "close lingers at most 2 s"
    assert ended - killed < 12


def test_killed__in_the_middle_of_an_exact_operation_ends_it(lab):
    net = lab(3)
    with Job(net, {"phases": [{"name": "exact", "n": 1, "count": 1000, "deadline": "inf",
                               "delay": {"2": 30}}]}, env=ENV) as job:
        for rank in (0, 1):
            job.wait_for(rank, what="issue")
        time.sleep(1.5)  # longer than peer_timeout: lateness alone must not end it
        assert not job.said(0, what="error")
        assert not job.said(1, what="error")
        killed = job.signal(2, signal.SIGKILL)
        for rank in (0, 1):
            error = job.wait_for(rank, what="error", timeout=6)
            assert names(error["text"], 2), error
            assert 0 < error["t"] - killed < 1.0 + 1.5, error
        job.join(ranks=(0, 1))
