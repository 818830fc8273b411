"""Without segmentation offload: switched off in the library, or absent from the interface."""
from harness import check_on_time, check_values, mean, run

WORK = {"phases": [{"name": "exact", "n": 6, "count": 200_000, "deadline": "inf", "key": "e"},
                   {"name": "lossy", "n": 10, "count": 200_000, "deadline": 0.5, "key": "w"}]}
RANKS = range(3)


def check(job):
    check_values(job)
    for rank in RANKS:
        assert all(o["full"] == o["count"] for o in job.ops(rank, "exact"))
        check_on_time(job.ops(rank, "lossy"))
        assert mean(o["received"] for o in job.ops(rank, "lossy")) >= 0.999


def packets_per_op(net, job):
    return min(net.counters(rank)[0] for rank in RANKS) / len(job.ops(0))


def watch(net):
    for rank in RANKS:
        net.loss(rank, 0.0, per_datagram=False)  # installs the filter, which counts a batch as one packet


def test_no_offload__switched_off_sends_single_datagrams(lab):
    on, off = lab(3), None
    watch(on)
    batched = run(on, WORK, env={"TAILBOUND_LINK": "udp"})
    check(batched)
    off = lab(3)
    watch(off)
    single = run(off, WORK, env={"TAILBOUND_LINK": "udp", "TAILBOUND_OFFLOAD": "off"})
    check(single)
    datagrams = 2 * 2 / 3 * 200_000 * 4 / 1500
    assert packets_per_op(off, single) > datagrams
    assert packets_per_op(on, batched) < datagrams / 2, "segmentation offload was not used where it could be"


def test_no_offload__absent_from_the_interface(lab):
    net = lab(3)
    for rank in RANKS:
        for feature in ("tx-udp-segmentation", "tx-generic-segmentation", "tx-checksum-ip-generic", "rx-gro"):
            net.feature(rank, feature, False)
        assert net.feature(rank, "tx-udp-segmentation", False) is False
    check(run(net, WORK, env={"TAILBOUND_LINK": "udp"}))
