"""RDMA ports from a made-up /sys: what is read, what the verbs link would take, and what the doctor says."""

import pytest
from tailbound import doctor, rdma


def gid(folder, index, address, kind, interface="eth0"):
    (folder / "gids" / str(index)).write_text(address + "\n")
    if kind:
        (folder / "gid_attrs/types" / str(index)).write_text(kind + "\n")
        (folder / "gid_attrs/ndevs" / str(index)).write_text(interface + "\n")


def port(root, device, number=1, state="4: ACTIVE", layer="Ethernet"):
    folder = root / "sys/class/infiniband" / device / "ports" / str(number)
    for name in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (folder / name).mkdir(parents=True)
    (folder / "state").write_text(state + "\n")
    (folder / "link_layer").write_text(layer + "\n")
    (folder / "rate").write_text("100 Gb/sec (4X EDR)\n")
    return folder


V4 = "0000:0000:0000:0000:0000:ffff:0a00:0005"
LOCAL, GLOBAL, EMPTY = "fe80::1", "fd00::5", "::"


@pytest.fixture
def roce(tmp_path):
    folder = port(tmp_path, "roce0")
    both = "IB/RoCE v1", "RoCE v2"
    table = [*((LOCAL, kind) for kind in both), (EMPTY, None), *((V4, kind) for kind in both), (GLOBAL, "RoCE v2")]
    for index, (address, kind) in enumerate(table):
        gid(folder, index, address, kind)
    return tmp_path


def test_ports__are_read_and_empty_gids_passed_over(roce):
    (found,) = rdma.ports(roce)
    assert (found.spec, found.state, found.layer, found.interface) == ("roce0:1", "ACTIVE", "Ethernet", "eth0")
    assert [g.index for g in found.gids] == [0, 1, 3, 4, 5]
    assert [str(g.address) for g in found.gids[3:]] == ["10.0.0.5", GLOBAL]


def test_choice__is_routable_roce_v2_of_the_family(roce):
    (found,) = rdma.ports(roce)
    assert [found.choice(family).index for family in (0, 4, 6)] == [4, 4, 5]


def test_choice__link_local_last_and_none_without_v2(tmp_path):
    folder = port(tmp_path, "roce1")
    gid(folder, 0, V4, "IB/RoCE v1")
    assert rdma.ports(tmp_path)[0].choice() is None
    gid(folder, 1, LOCAL, "RoCE v2")
    assert rdma.ports(tmp_path)[0].choice().index == 1


def test_choice__of_infiniband_is_the_first(tmp_path):
    folder = port(tmp_path, "ib0", number=2, layer="InfiniBand")
    gid(folder, 0, "fe80::2:c903:0:1", "IB/RoCE v1", "")
    (found,) = rdma.ports(tmp_path)
    assert (found.spec, found.choice().index, found.interface) == ("ib0:2", 0, "")


def test_ports__without_any(tmp_path):
    assert rdma.ports(tmp_path) == []


def test_doctor__names_what_a_port_lacks(roce, monkeypatch):
    port(roce, "roce1", state="1: DOWN")
    port(roce, "roce2")
    found = rdma.ports(roce)
    monkeypatch.setattr(rdma, "ports", lambda: found)
    said = {finding.what.split()[2]: finding for finding in doctor.devices(0) if finding.what.startswith("RDMA port")}
    assert said["roce0:1"].level == "ok"
    assert "10.0.0.5" in said["roce0:1"].what
    assert (said["roce1:1"].level, "ip link set up" in said["roce1:1"].remedy) == ("note", True)
    assert "ip addr add" in said["roce2:1"].remedy
