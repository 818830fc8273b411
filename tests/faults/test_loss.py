"""Real UDP through a filter that drops single datagrams of every type, from the first one of init on."""
import pytest
from harness import Job, check_on_time, check_values, mean, run

RANKS = range(4)


def lossy_lab(lab, probability, **how):
    net = lab(4)
    for rank in RANKS:
        net.loss(rank, probability, **how)
    return net


def assert_dropped(net, probability):
    for rank in RANKS:
        seen, dropped, _ = net.counters(rank)
        assert dropped > max(seen * probability * 0.6, 1), (rank, seen, dropped)


@pytest.mark.parametrize(("probability", "least"), [(0.01, 0.9999), (0.05, 0.999)])
def test_loss__is_repaired_within_the_deadline(lab, probability, least):
    net = lossy_lab(lab, probability)
    job = run(net, {"phases": [
        {"name": "keyed", "n": 80, "count": 40_000, "deadline": 0.25, "key": "w"},
        {"name": "anonymous", "n": 20, "count": 40_000, "deadline": 0.25}]}, env={"TAILBOUND_LINK": "udp"})
    assert_dropped(net, probability)
    check_values(job)
    for rank in RANKS:
        check_on_time(job.ops(rank))
        assert len(job.ops(rank)) == 100
        assert mean(o["received"] for o in job.ops(rank)) >= least


def test_loss__never_costs_an_exact_operation_a_value(lab):
    net = lossy_lab(lab, 0.05)
    job = run(net, {"phases": [{"name": "exact", "n": 30, "count": 60_000, "deadline": "inf", "key": "w"},
                               {"name": "small", "n": 50, "count": 3, "deadline": "inf"}]},
              env={"TAILBOUND_LINK": "udp"})
    assert_dropped(net, 0.05)
    check_values(job)
    for rank in RANKS:
        assert all(o["full"] == o["count"] and o["received"] == 1 and o["verdict"] == "ok" for o in job.ops(rank))


def test_loss__beyond_repair_is_reported_exactly_and_on_time(lab):
    net = lossy_lab(lab, 0.0)
    with_loss = {"name": "lost", "n": 25, "count": 40_000, "deadline": 0.1, "key": "w", "wait_for_line": True}
    with Job(net, {"phases": [with_loss], "init": {"min_received": 0.0}}, env={"TAILBOUND_LINK": "udp"},
             stdin=True) as job:
        for rank in RANKS:
            job.wait_for(rank, what="ready")
            net.loss(rank, 0.6)
        job.send_line()
        job.join()
    assert_dropped(net, 0.6)
    check_values(job)
    lost = [o for rank in RANKS for o in job.ops(rank) if o["received"] < 1]
    assert lost, "60 % loss that nobody noticed"
    assert {o["verdict"] for o in lost} == {"partial"}
    for rank in RANKS:
        check_on_time(job.ops(rank))


def test_loss__of_whole_bursts_is_repaired_too(lab):
    net = lossy_lab(lab, 0.05, per_datagram=False)
    job = run(net, {"phases": [{"name": "lossy", "n": 40, "count": 100_000, "deadline": 0.25, "key": "w"},
                               {"name": "exact", "n": 10, "count": 100_000, "deadline": "inf", "key": "e"}]},
              env={"TAILBOUND_LINK": "udp"})
    assert_dropped(net, 0.05)
    check_values(job)
    for rank in RANKS:
        check_on_time(job.ops(rank, "lossy"))
        assert mean(o["received"] for o in job.ops(rank)) >= 0.995
        assert all(o["full"] == o["count"] for o in job.ops(rank, "exact"))
