"""IPv6 alone: no rank has an IPv4 address."""
from harness import check_on_time, check_values, mean, run


def test_ipv6__alone_is_enough_under_loss(lab):
    net = lab(4, families=(6,))
    for rank in range(4):
        net.loss(rank, 0.01)
    job = run(net, {"phases": [{"name": "exact", "n": 10, "count": 50_000, "deadline": "inf", "key": "e"},
                               {"name": "lossy", "n": 50, "count": 40_000, "deadline": 0.25, "key": "w"}]},
              env={"TAILBOUND_LINK": "udp"}, ip=6)
    check_values(job)
    for rank in range(4):
        assert net.drops(rank) > 0
        assert all(o["full"] == o["count"] for o in job.ops(rank, "exact"))
        check_on_time(job.ops(rank, "lossy"))
        assert mean(o["received"] for o in job.ops(rank, "lossy")) >= 0.999


def test_ipv6__interface_chosen_by_cidr(lab):
    net = lab(2)
    job = run(net, {"phases": [{"name": "exact", "n": 3, "count": 1000, "deadline": "inf"}]},
              env={"TAILBOUND_LINK": "udp", "TAILBOUND_INTERFACE": "fd77::/16"}, ip=4)
    check_values(job)
    for rank in range(2):
        assert "fd77::" in job.said(rank, what="ready")[0]["describe"]
