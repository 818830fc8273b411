"""A rank that starts late, or issues late."""
import pytest
from harness import check_on_time, check_values, mean, run

ENV = {"TAILBOUND_LINK": "udp"}


@pytest.mark.parametrize("late", [0, 2])
def test_late__start_is_waited_for(lab, late):
    net = lab(3)
    job = run(net, {"start_delay": {str(late): 1.5},
                    "phases": [{"name": "exact", "n": 5, "count": 5000, "deadline": "inf", "key": "w"}]}, env=ENV)
    check_values(job)
    for rank in range(3):
        assert all(o["full"] == o["count"] for o in job.ops(rank))
        took = job.said(rank, what="ready")[0]["took"]
        assert took > 1.0 if rank != late else took < 5


def test_late__issue_within_the_deadline_costs_nothing(lab):
    net = lab(4)
    job = run(net, {"phases": [{"name": "late", "n": 12, "count": 20_000, "deadline": 0.4, "key": "w",
                                "delay": {"1": 0.15}}]}, env=ENV)
    check_values(job)
    for rank in range(4):
        check_on_time(job.ops(rank))
        assert mean(o["received"] for o in job.ops(rank)) >= 0.99, [o["received"] for o in job.ops(rank)]


def test_late__issue_near_the_deadline_leaves_the_others_data_complete(lab):
    """Owner duty: the late rank's progress thread reduces its shard of the others' data before it has issued itself."""
    net = lab(4)
    job = run(net, {"init": {"min_received": 0.3},
                    "phases": [{"name": "late", "n": 14, "count": 20_000, "deadline": 0.2, "key": "w", "tagged": False,
                                "delay": {"1": 0.18}}]}, env=ENV)
    check_values(job)
    for rank in (0, 2, 3):
        ops = job.ops(rank)
        check_on_time(ops)
        # the data of the two other punctual ranks, on every shard, the late rank's own included
        assert mean(o["received"] for o in ops) >= 2 / 3 - 0.02, [o["received"] for o in ops]


def test_late__issue_always_beyond_the_deadline_jumps_and_stalls_nobody(lab):
    net = lab(4)
    job = run(net, {"init": {"min_received": 0.3},
                    "phases": [{"name": "late", "n": 16, "count": 20_000, "deadline": 0.1, "key": "w", "tagged": False,
                                "delay": {"1": 0.25}}]}, env=ENV, timeout=20)
    check_values(job)
    for rank in (0, 2, 3):
        check_on_time(job.ops(rank))
    assert sum(o["behind"] for o in job.ops(1)) > 0, [o["behind"] for o in job.ops(1)]
    for before, after in zip(job.ops(1), job.ops(1)[1:], strict=False):
        assert after["behind"] == after["round"] - before["round"] - 1, (before, after)


def test_late__first_issue_does_not_count_as_the_cost_of_the_wire(lab):
    """A rank that loads its data for two seconds must not make the others refuse short deadlines ever after."""
    net = lab(4)
    job = run(net, {"phases": [{"name": "first", "n": 1, "count": 20_000, "deadline": "inf", "key": "e",
                                "delay": {"1": 2.0}},
                               {"name": "then", "n": 10, "count": 20_000, "deadline": 0.2, "key": "w"}]}, env=ENV)
    check_values(job)
    for rank in range(4):
        assert mean(o["received"] for o in job.ops(rank)) >= 0.999


def test_late__ranks_that_are_a_period_apart_get_into_step_again(lab):
    """One rank runs a whole period ahead of the others: it closes a round just before they issue it. All then wait for
    their deadline each time and get little, and would for ever, were the others' shards closed by that rank's clock."""
    net = lab(3)
    start = {"name": "start", "n": 1, "count": 20_000, "deadline": "inf", "key": "e"}
    phase = {"name": "steps", "n": 40, "count": 20_000, "deadline": 0.1, "key": "w", "gap": 0.02, "tagged": False,
             "first_delay": {"0": 0.12, "2": 0.12}}
    job = run(net, {"init": {"min_received": 0.0}, "phases": [start, phase]}, env=ENV)
    check_values(job)
    for rank in range(3):
        end = job.ops(rank, "steps")[15:35]
        assert mean(o["received"] for o in end) >= 0.95, [round(o["received"], 3) for o in job.ops(rank, "steps")]
