"""Dpdk ranks over IPv6 and in a VLAN, among themselves and with the kernel's udp: exact calls, and rounds with loss."""
import pytest
from job import check_repaired
from kinds import Kind, by_turns, dpdk, dpdk_over_xdp, dpdk_plugin


def over_ipv6(options, **more):
    def changed(lab, rank, folder):
        given = options(lab, rank, folder)
        address = lab.ip6(rank) if given["link"] == "dpdk" else ""
        return {**given, **({"ip": f"{address}/64", **more} if address else {})}

    return changed


def udp6(lab, rank, folder):
    return {"link": "udp", "interface": lab.ip6(rank)}


AF_PACKET, AF_XDP = dpdk("af_packet:eth0"), dpdk("af_xdp:eth0")


def in_vlan(lab, rank, folder):
    return {**AF_PACKET(lab, rank, folder), "vlan": 4094}


SHARED = [
    (Kind("dpdk-ipv6", over_ipv6(AF_PACKET), dpdk_plugin), 4, {}),
    (Kind("dpdk-xdp-ipv6", over_ipv6(AF_XDP), dpdk_over_xdp), 2, {}),
    (Kind("mixed-ipv6", by_turns(udp6, over_ipv6(AF_PACKET)), dpdk_plugin), 4, {}),
    # the filters of the laboratory's switch know no tags: these lose on arrival
    (Kind("dpdk-vlan", in_vlan, dpdk_plugin, switched=False), 2, {}),
    (Kind("dpdk-vlan-ipv6", over_ipv6(AF_PACKET, vlan=7), dpdk_plugin, switched=False), 2, {}),
]
COUNTS = [1, 367, 100_003, 500_003]


@pytest.mark.parametrize("what", ["all_reduce", "messages"])
def test_exact__is_the_oracles_over_other_networks(job, what):
    before = job.step("stats", timeout=2)
    said = job.step("exact", timeout=10, what=what, dtype="float32", counts=COUNTS, key=job.key(what))
    for rank, line in said.items():
        assert line["wrong"] == {str(count): 0 for count in COUNTS}, rank
    for rank, line in job.step("stats", timeout=2).items():
        old, new = before[rank]["stats"], line["stats"]
        assert (new["link"], new["rx_frames"] > old["rx_frames"]) == (job.kind.link(rank), True)
        refused = {name: count for name, count in new.items()
                   if name.startswith("bad_") or name in ("rx_truncated", "tx_errors") if count}
        assert not refused, (rank, refused)
        if new["link"] == "dpdk":
            check_described(job, rank, new)


def check_described(job, rank, stats):
    """Its network is the one asked for, and only over IPv6, where we sum, payloads are copied to be sent."""
    options = job.options_of(rank)
    vlan = f" vlan {options['vlan']}" if "vlan" in options else ""
    assert f"{options['ip']}{vlan} port" in stats["description"], stats["description"]
    frame = 1500 - (48 if ":" in options["ip"] else 28)
    assert f"mtu {frame}, " in stats["description"], stats["description"]
    assert (stats["tx_copied"] > stats["tx_bytes"] // 2) == (":" in options["ip"]), stats


def test_loss__is_repaired_where_there_is_time(job):
    check_repaired(job)
