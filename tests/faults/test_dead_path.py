"""One of the equal-cost paths between the ranks goes black: whatever takes it is lost, both ways and of every type.

A rank's flows have a port of their own each, and what was lost is repeated on whichever flow is drawn then. The
filter drops by source port, as a dead link of a switch drops what hashes onto it."""
import statistics

from harness import Job, check_on_time, check_values, mean

RANKS = range(4)
PORTS = 41700
ENV = {"TAILBOUND_LINK": "udp", "TAILBOUND_PORT_RANGE": f"{PORTS}-{PORTS + 3}"}


def over_a_dead_path(lab, flows, dead, n):
    net = lab(4)
    phase = {"name": "keyed", "n": n, "count": 200_000, "deadline": 1.0, "key": "w", "wait_for_line": True}
    with Job(net, {"phases": [phase], "init": {"min_received": 0.0}}, env={**ENV, "TAILBOUND_FLOWS": str(flows)},
             stdin=True) as job:
        for rank in RANKS:
            job.wait_for(rank, what="ready")
            net.loss(rank, 1.0, ports=(PORTS + dead, PORTS + dead), of_source=True)
        job.send_line()
        job.join()
    assert all(net.drops(rank) > 10 for rank in RANKS), "nothing took that path"
    check_values(job)
    for rank in RANKS:
        check_on_time(job.ops(rank))
    return [o["received"] for rank in RANKS for o in job.ops(rank)]


def test_dead_path__data_arrives_in_time_on_the_others(lab):
    received = over_a_dead_path(lab, flows=4, dead=2, n=10)
    assert statistics.median(received) >= 0.999
    assert mean(received) >= 0.9


def test_dead_path__is_all_there_is_without_spraying(lab):
    assert max(over_a_dead_path(lab, flows=1, dead=0, n=2)) == 0
