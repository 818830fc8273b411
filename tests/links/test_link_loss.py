"""Frames are lost, in the switch or where they arrive: what is missing is repaired in time, or reported exactly, and is
the same for all.
"""
import pytest
from harness import check_on_time, check_values
from job import check_repaired


@pytest.mark.parametrize("probability", [0.01, 0.05])
def test_loss__is_on_time_and_reported_exactly(job, probability):
    check_dropped = job.lose(probability)
    job.rounds(8, "lossy", n=20, count=40_000, deadline=0.1)
    check_dropped()
    check_values(job)
    for rank in job.ranks:
        ops = job.ops(rank)
        assert len(ops) == 20
        check_on_time(ops)
        assert all((o["verdict"] == "ok") == (o["full"] == o["count"]) for o in ops), ops


def test_loss__is_repaired_where_there_is_time(job):
    check_repaired(job)


def test_loss__costs_exact_calls_no_value(job):
    check_dropped = job.lose(0.05)
    for what in ("all_reduce", "broadcast", "all_gather", "messages"):
        said = job.step("exact", timeout=8, what=what, dtype="float32", counts=[1, 30_011], key=job.key(what))
        assert all(line["wrong"] == {"1": 0, "30011": 0} for line in said.values()), said
    check_dropped()


def test_loss__beyond_repair_is_on_time_and_reported_exactly(job):
    check_dropped = job.lose(0.6)
    job.rounds(8, "lost", n=10, count=40_000, deadline=0.1)
    check_dropped()
    check_values(job)
    lost = [o for rank in job.ranks for o in job.ops(rank) if o["received"] < 1]
    assert lost, "60 % loss that nobody noticed"
    assert {o["verdict"] for o in lost} == {"partial"}
    for rank in job.ranks:
        check_on_time(job.ops(rank))


def test_carry__adds_up_to_all_contributions_after_flush(job):
    key, check_dropped = job.key("carry"), job.lose(0.6)
    told = job.step("carry", timeout=6, key=key, n=10, count=20_011, deadline=0.1)
    check_dropped()
    job.lab.calm()  # losses on arrival stay for the communicator's life: flush has to get through them
    for rank, line in job.step("flushed", timeout=8, key=key).items():
        assert (line["wrong"], line["dropped"]) == (0, 0), (rank, line)
    rounds = [r for line in told.values() for r in line["rounds"]]
    assert any(r["carried"] > 0 for r in rounds), "nothing was carried: this test saw no loss"
    check_on_time(rounds)


@pytest.mark.parametrize("probability", [0.05, 0.3])
def test_agree__is_the_same_bytes_on_all_ranks(job, probability):
    check_dropped = job.lose(probability)
    told = job.step("agree", timeout=10, key=job.key("agree"), n=8, count=40_000, deadline=0.1)
    check_dropped()
    assert all(line["rounds"] == told[0]["rounds"] for line in told.values()), told
    assert [r for r, _, _ in told[0]["rounds"]] == list(range(8))
