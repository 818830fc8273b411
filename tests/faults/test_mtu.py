"""Links of different MTU: what is sent fits the smallest, whether an interface says so or only the path does."""
import pytest
from harness import Job, check_values, run

ENV = {"TAILBOUND_LINK": "udp"}
WORK = [{"name": "work", "n": 5, "count": 100_000, "deadline": "inf", "key": "w", "wait_for_line": True}]


def run_and_watch_lengths(net, limit, ip=4):
    """Run; from the end of init on no datagram of any rank may be longer than the limit."""
    with Job(net, {"phases": WORK}, env=ENV, stdin=True, ip=ip) as job:
        for rank in range(net.n):
            job.wait_for(rank, what="ready")
        for rank in range(net.n):
            net.path_mtu(rank, limit)
        before = [net.counters(rank) for rank in range(net.n)]
        job.send_line()
        job.join()
    after = [net.counters(rank) for rank in range(net.n)]
    assert all(b[0] > a[0] for a, b in zip(before, after, strict=True)), "the filter saw no traffic"
    assert [b[2] - a[2] for a, b in zip(before, after, strict=True)] == [0] * net.n
    check_values(job)
    for rank in range(net.n):
        assert all(o["full"] == o["count"] for o in job.ops(rank))
    return job


@pytest.mark.parametrize("ip", [4, 6])
def test_mtu__of_the_smallest_interface_is_agreed(lab, ip):
    net = lab(3)
    net.mtu(2, 1400)
    run_and_watch_lengths(net, 1400, ip)


def test_mtu__large_frames_are_used_where_all_have_them(lab):
    net = lab(3, mtu=9000)
    for rank in range(3):
        net.path_mtu(rank, 9000)  # counts single datagrams, and drops none
    job = run(net, {"phases": [{"name": "work", "n": 5, "count": 300_000, "deadline": "inf", "key": "w"}]}, env=ENV)
    check_values(job)
    # 2 * (N-1)/N * 1.2 MB from each rank per operation; at 1500 it would take five times as many datagrams
    data = 5 * 2 * 2 / 3 * 300_000 * 4
    for rank in range(3):
        seen, _, too_long = net.counters(rank)
        assert too_long == 0
        assert data / seen > 3000, (data, seen)


def test_mtu__smaller_on_the_path_than_on_the_interface(lab):
    """The path between two switches often is: init must find out, not the first operation."""
    net = lab(3)
    for rank in range(3):
        net.path_mtu(rank, 1300)
    job = run_and_watch_lengths(net, 1300)
    assert sum(net.counters(rank)[2] for rank in range(3)) > 0, "init probed nothing longer than the path allows"
    for rank in range(3):
        assert job.said(rank, what="ready")[0]["took"] < 5
