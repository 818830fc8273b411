"""What the dpdk link cannot do here is said before anything else happens, each time with the line that helps.

Most are seen by one rank alone: its link is opened before it looks for the others.
"""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

import netlab
import netlab_host
import pytest
from kinds import dpdk_over_xdp, dpdk_plugin, laboratory

TRANSPORT = pathlib.Path(__file__).resolve().parent.parent.parent / "transport"
FREE = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"

FREE_WANTED = 96  # pages of 2 MB: more than one device takes

ASK = """
import json, sys, threading
import tailbound as tb

def ask(options):
    try:
        tb.init(**options)
        return {"error": "", "text": "it started"}
    except tb.Error as error:
        return {"error": type(error).__name__, "text": str(error)}

first, *others = json.loads(sys.argv[1])
if sys.argv[2] == "beside":  # a second communicator, while the first still waits for its peers
    waiting = threading.Thread(target=ask, args=(first,))
    waiting.start()
    while threading.active_count() < 3:
        pass
    threading.Event().wait(1.0)
    print(json.dumps([ask(options) for options in others]))
    waiting.join()
else:
    print(json.dumps([ask(options) for options in (first, *others)]))
"""


@pytest.fixture(scope="module")
def lab():
    reason = laboratory() or dpdk_plugin()
    if reason:
        pytest.skip(reason)
    with netlab.Lab(2, management=True, bare=[0, 1]) as one:
        yield one


def options(lab, rank=0, **more):
    return {"rank": rank, "size": 2, "address": f"{lab.management(0)}:29556", "link": "dpdk", "hugepages": "off",
            "device": "af_packet:eth0", "ip": f"{lab.ip4(rank)}/16", "init_timeout": 3.0, **more}


def begin(lab, asked, rank=0, user=None, mode="", shell=""):
    argv = [sys.executable, "-c", ASK, json.dumps(asked), mode]
    if shell:
        argv = ["sh", "-ec", f'{shell}\nexec "$@"', "sh", *argv]
    return lab.run(rank, argv, user=user, text=True, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                   stderr=subprocess.PIPE, env={"PYTHONPATH": str(TRANSPORT), "PYTHONDONTWRITEBYTECODE": "1",
                                                "OPENBLAS_NUM_THREADS": "1"})


def end(process):
    out, said = process.communicate(timeout=40)
    assert process.returncode == 0, said
    return json.loads(out)


def answers(lab, asked, **how):
    return end(begin(lab, asked, **how))


def check(answer, *parts):
    print(answer["text"])
    assert answer["error"], answer
    for part in parts:
        assert part in answer["text"], (part, answer["text"])


def hugetlb_folder():
    """Where groups of the kernel's second cgroup version are, if that limits huge pages here."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        where, _, kind = line.partition(" - ")
        folder = pathlib.Path(where.split()[4])
        if kind.startswith("cgroup2 ") and "hugetlb" in (folder / "cgroup.controllers").read_text().split():
            return folder
    return None


@contextlib.contextmanager
def cgroup(limit):
    """A group that limits huge pages, and one in it for processes."""
    top = hugetlb_folder()
    if top is None:
        pytest.skip("this kernel has no hugetlb controller of cgroup version 2 that is free")
    above, control = top / f"tailbound-test-{os.getpid()}", top / "cgroup.subtree_control"
    was_on = "hugetlb" in control.read_text().split()
    control.write_text("+hugetlb")
    own = above / "own"
    try:
        own.mkdir(parents=True)
        (above / "hugetlb.2MB.max").write_text(str(limit))
        yield above
    finally:
        own.rmdir()
        above.rmdir()
        if not was_on:
            control.write_text("-hugetlb")


@contextlib.contextmanager
def huge_pages(more):
    """So many more of 2 MB on this machine."""
    total = pathlib.Path(FREE.replace("free_", "nr_"))
    before = int(total.read_text())
    total.write_text(str(before + more))
    try:
        assert int(total.read_text()) == before + more, "no memory for huge pages"
        yield
    finally:
        total.write_text(str(before))


def test_refused__before_dpdk_starts(lab, tmp_path):
    cases = [
        ({"plugins": str(tmp_path)}, "tailbound build-plugin dpdk", str(tmp_path)),
        ({"device": ""}, "name a device", "eth0", "mgmt0"),
        ({"device": "eth0"}, 'device "eth0" is none', "af_packet:IFACE", "eth0", "mgmt0"),
        ({"device": "af_packet:eth9"}, "there is no interface eth9", "here are:", "eth0", "mgmt0"),
        ({"device": "0000:ff:1f.7"}, "there is no PCI device 0000:ff:1f.7", "here are:"),
        ({"eal_args": "--help"}, "--help cannot be one of the EAL arguments"),
        ({"eal_args": "--no-such-thing"}, 'check the device and TAILBOUND_EAL_ARGS="--no-such-thing"'),
        ({"device": "net_af_packet0,iface=eth0,framesz=1"}, "framesz and bsize lie between 256 and 32768"),
        ({"device": "net_nonesuch0"}, "net_nonesuch0", "check the device"),
        ({"mtu": 100}, "raise TAILBOUND_MTU"),
        ({"port_range": "50000-50000"}, "widen TAILBOUND_PORT_RANGE"),
    ]
    found = answers(lab, [options(lab, **more) for more, *_ in cases])
    for (_, *parts), answer in zip(cases, found, strict=True):
        check(answer, *parts)


def test_refused__addresses(lab):
    cases = [
        ({"ip": "10.77.0.0/16"}, '"10.77.0.0/16" cannot be this rank\'s address', "TAILBOUND_IP", "10.0.0.5/24"),
        ({"ip": "somewhere"}, "cannot be this rank's address", "TAILBOUND_IP"),
        ({"gateway": "10.77.0.300"}, "cannot be a gateway", "TAILBOUND_GATEWAY"),
        ({"gateway": "10.99.0.1"}, "the gateway 10.99.0.1 is not in the network of 10.77.0.1/16"),
        ({"ip": "fd77::/64"}, '"fd77::/64" cannot be this rank\'s address', "fd00::5/64"),
        ({"ip": "fd77::1/64", "gateway": "10.77.0.9"}, "cannot be a gateway", "its IPv6 address"),
        ({"vlan": 4095}, "vlan", "4095", "0 to 4094"),
        ({"vlan": "blue"}, "vlan", "blue"),
    ]
    found = answers(lab, [options(lab, **more) for more, *_ in cases])
    for (_, *parts), answer in zip(cases, found, strict=True):
        check(answer, *parts)


def test_refused__interface_that_is_down(lab):
    answer, = answers(lab, [options(lab, device="af_packet:dark0")],
                      shell="ip link add dark0 type veth peer name dark1; trap 'ip link del dark0' EXIT; set +e; " +
                            '"$@"; exit')
    check(answer, "interface dark0 is down: ip link set dark0 up")


def test_refused__huge_pages_that_are_not_free(lab, tmp_path):
    """Whatever this machine has: the rank sees a file of the test's in its own mount namespace."""
    pathlib.Path(tmp_path / "none").write_text("0\n")
    total = int(pathlib.Path(FREE.replace("free_", "nr_")).read_text())
    answer, = answers(lab, [options(lab, hugepages="on")], shell=f"mount --bind {tmp_path}/none {FREE}")
    check(answer, "0 huge pages of 2048 kB are free", "echo ", f"> {FREE.replace('free_', 'nr_')}")
    needed = int(answer["text"].split(" are needed")[0].split()[-1])
    assert f"echo {total + needed} >" in answer["text"]


def test_refused__without_the_capability(lab):
    answer, = answers(lab, [options(lab)], user="nobody")
    check(answer, "a raw socket on eth0 needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_IPC_LOCK: run as root, or",
          "--ambient-caps=+net_raw,+net_admin,+ipc_lock")


def as_nobody_with(rights):
    """A shell line: what follows runs as a user with these rights, as the refusal advises; if the interpreter is not
    open to others, with that of reading it too."""
    rights += "" if netlab_host.readable_by_others(sys.executable) else ",+dac_read_search"
    return f'exec setpriv --reuid=nobody --clear-groups --inh-caps={rights} --ambient-caps={rights} "$@"'


def test_refused__without_room_for_the_ring(lab):
    """DPDK's driver would wait for ever in a full ring."""
    answer, = answers(lab, [options(lab)], shell=as_nobody_with("+net_raw"))
    check(answer, "a send buffer of ", "net.core.wmem_max allows ", "on eth0 needs CAP_NET_ADMIN", "setpriv ")


@pytest.mark.parametrize("device", ["af_packet", "af_xdp"])
def test_rights__that_the_refusal_names_are_enough(lab, device):
    if device == "af_xdp" and (reason := dpdk_over_xdp()):
        pytest.skip(reason)
    asked = [options(lab, device=f"{device}:eth0", init_timeout=1.0)]
    refusal, = answers(lab, asked, shell=as_nobody_with("+ipc_lock"))
    rights = refusal["text"].split("--ambient-caps=")[1].split()[0]
    answer, = answers(lab, asked, shell=as_nobody_with(rights))
    check(answer, "did not connect")


def test_refused__an_xdp_program_without_sys_admin(lab):
    """DPDK's own words for it would be "Invalid argument"."""
    if reason := dpdk_over_xdp():
        pytest.skip(reason)
    rights = as_nobody_with("+net_raw,+net_admin,+ipc_lock,+bpf")
    answer, = answers(lab, [options(lab, device="af_xdp:eth0")], shell=rights)
    check(answer, "an XDP program on eth0 needs CAP_NET_RAW, CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_IPC_LOCK", "setpriv ")


def test_refused__huge_pages_beyond_the_cgroups_limit(lab):
    """The kernel's own limit, of the group above the process's."""
    with cgroup(limit=6 << 20) as above, huge_pages(FREE_WANTED):
        seen = f"/sys/fs/cgroup/{above.name}"  # `ip netns exec` shows a /sys without it
        enter = f"mount -t cgroup2 none /sys/fs/cgroup\necho $$ > {seen}/own/cgroup.procs"
        answer, = answers(lab, [options(lab, hugepages="on")], shell=enter)
        check(answer, "the cgroup of this process allows 6 MB more of huge pages and ", " MB are needed: raise ",
              f"{seen}/hugetlb.2MB.max")
        (above / "hugetlb.2MB.max").write_text("max")
        answer, = answers(lab, [options(lab, hugepages="on", init_timeout=1.0)], shell=enter)
        check(answer, "did not connect")


def test_refused__second_communicator_of_a_process(lab):
    answer, = answers(lab, [options(lab, init_timeout=2.5), options(lab, rank=1)], mode="beside")
    check(answer, "net_af_packet_eth0 is open already in this process: one communicator at a time")


def until_held(lab):
    """The first process holds eth0."""
    for _ in range(200):
        shown = subprocess.run(["ip", "netns", "exec", lab.namespace(0), "ss", "-xa"], capture_output=True, text=True,
                               check=True).stdout
        if "@tailbound/dpdk/eth0" in shown:
            return
        time.sleep(0.05)
    raise AssertionError("nobody held eth0 in 10 s")


@pytest.mark.parametrize("device", ["af_packet", "af_xdp"])
def test_refused__second_process_on_an_interface(lab, device):
    if device == "af_xdp" and (reason := dpdk_over_xdp()):
        pytest.skip(reason)
    first = begin(lab, [options(lab, device=f"{device}:eth0", init_timeout=20.0)])
    try:
        until_held(lab)
        answer, = answers(lab, [options(lab, rank=1, device=f"{device}:eth0")])
        check(answer, "another process has a device on eth0", "interface of its own")
        assert answer["error"] == "ConfigError"
    finally:
        first.kill()
        first.communicate()
    answer, = answers(lab, [options(lab, rank=1, device=f"{device}:eth0", init_timeout=1.0)])
    assert "another process" not in answer["text"], "the device is free once its process has ended"


def both(lab, *each):
    told = [options(lab, rank=rank, **{"init_timeout": 10.0, **more}) for rank, more in enumerate(each)]
    ranks = [begin(lab, [one], rank=one.pop("place", rank)) for rank, one in enumerate(told)]
    return [end(process)[0] for process in ranks]


def test_refused__peer_outside_the_network(lab):
    for rank, answer in enumerate(both(lab, {"ip": "10.77.0.1/24"}, {"ip": "10.99.0.1/24"})):
        check(answer, f"rank {rank} cannot reach rank {1 - rank}", "lies outside our network", "set TAILBOUND_GATEWAY",
              "TAILBOUND_IP")
        assert answer["error"] == "ConfigError"


def test_refused__one_address_on_two_ranks(lab):
    for answer in both(lab, {"ip": "10.77.0.1/24"}, {"ip": "10.77.0.1/24"}):
        check(answer, "rank 0 and rank 1 both have the address 10.77.0.1: give every rank one of its own",
              "TAILBOUND_IP")


def test_refused__no_address_on_one_rank(lab):
    for answer in both(lab, {}, {"ip": ""}):
        check(answer, f"rank 0 has {lab.ip4(0)} and rank 1 169.254.", "the address of rank 1 is link-local",
              "set TAILBOUND_IP there")


@pytest.mark.parametrize(("own", "kernels"), [("10.77.0.1/16", "10.77.9.9/16"), ("fd77::1/64", "fd77::99/64")])
def test_refused__udp_and_dpdk_on_one_interface(lab, own, kernels):
    """The kernel has an address on the interface under rank 0's device, and rank 1 takes that."""
    netlab_host.ip("-n", lab.namespace(0), "addr", "add", kernels, "dev", "eth0", *["nodad"] * (":" in kernels))
    try:
        udp = {"link": "udp", "device": "", "ip": "", "interface": kernels.split("/")[0], "place": 0}
        first, second = both(lab, {"ip": own}, udp)
    finally:
        netlab_host.ip("-n", lab.namespace(0), "addr", "del", kernels, "dev", "eth0")
    check(first, "rank 0 cannot reach rank 1", "is on interface eth0 by the kernel", "TAILBOUND_DEVICE")
    check(second, "rank 0")
    assert "firewall" not in second["text"]


def test_refused__udp_with_the_address_of_a_device(lab):
    netlab_host.ip("-n", lab.namespace(1), "addr", "add", f"{lab.ip4(0)}/16", "dev", "mgmt0")
    try:
        answers = both(lab, {}, {"link": "udp", "device": "", "ip": "", "interface": lab.ip4(0)})
    finally:
        netlab_host.ip("-n", lab.namespace(1), "addr", "del", f"{lab.ip4(0)}/16", "dev", "mgmt0")
    for answer in answers:
        check(answer, f"rank 0 and rank 1 both have the address {lab.ip4(0)}, one of them as its kernel's")


def test_two_ranks__on_one_host_with_an_interface_each(lab):
    """In one network namespace, at both ends of a cable."""
    netlab_host.ip("-n", lab.namespace(0), "link", "add", "one0", "type", "veth", "peer", "name", "one1")
    try:
        for end in ("one0", "one1"):
            netlab_host.ip("-n", lab.namespace(0), "link", "set", end, "up")
        answers = both(lab, *({"device": f"af_packet:one{rank}", "place": 0} for rank in range(2)))
    finally:
        netlab_host.ip("-n", lab.namespace(0), "link", "del", "one0")
    assert [answer["text"] for answer in answers] == ["it started"] * 2


@pytest.mark.parametrize("culprit", [0, 1])
def test_refused__is_told_to_the_other_ranks(lab, culprit):
    """Not the whole of init_timeout: the one that has no link says so before it ends."""
    asked = [{"init_timeout": 40.0}, {"init_timeout": 40.0}]
    asked[culprit]["device"] = "af_packet:eth9"
    began = time.monotonic()
    found = both(lab, *asked)
    assert time.monotonic() - began < 30
    check(found[culprit], f"rank {culprit}: dpdk: there is no interface eth9")
    check(found[1 - culprit], f"rank {culprit} could not begin: dpdk: there is no interface eth9")
    assert {answer["error"] for answer in found} == {"ConfigError"}


def test_refused__is_said_at_once(lab):
    """Not only to the other ranks, who may come much later."""
    began = time.monotonic()
    with begin(lab, [options(lab, device="af_packet:eth9", init_timeout=40.0)]) as rank:
        try:
            assert "rank 0: dpdk: there is no interface eth9" in rank.stderr.readline()
            assert time.monotonic() - began < 6
            assert rank.poll() is None, "it still waits, to tell the others"
        finally:
            rank.kill()


def warned(lab, *each):
    """What the log of each of two ranks says while init fails."""
    told = [options(lab, rank=rank, init_timeout=8.0, **more) for rank, more in enumerate(each)]
    ranks = [begin(lab, [one], rank=rank) for rank, one in enumerate(told)]
    said = [process.communicate(timeout=40) for process in ranks]
    for out, err in said:
        check(json.loads(out)[0], "no answer between")
        print(err)
    return [err for _, err in said]


def test_warning__ranks_that_disagree_about_the_vlan(lab):
    for ours, theirs in ((100, 0), (100, 7)):
        first, second = warned(lab, {"vlan": ours}, {"vlan": theirs})
        seen = f"with the tag of VLAN {theirs}" if theirs else f"without the tag of VLAN {ours}"
        assert f"frames to us come to net_af_packet_eth0 {seen}" in first
        rank_1 = f"VLAN {theirs}" if theirs else "no VLAN"
        assert f"with the tag of VLAN {ours}, and are dropped: this rank has {rank_1}: set TAILBOUND_VLAN" in second


def test_warning__a_gateway_that_does_not_answer(lab):
    for ip, way in (("10.77.{}.1/24", "10.77.{}.254"), ("fd77:{}::1/64", "fd77:{}::fe")):
        each = [{"ip": ip.format(rank), "gateway": way.format(rank)} for rank in (1, 2)]
        for rank, err in enumerate(warned(lab, *each), 1):
            assert f"answers for {way.format(rank)}, our gateway (TAILBOUND_GATEWAY)" in err


def test_refused__ipv4_and_ipv6_in_one_job(lab):
    for answer in both(lab, {}, {"ip": "fd77::2/64"}):
        check(answer, "one has an IPv4 address and one an IPv6 address", "TAILBOUND_IP")
        assert answer["error"] == "ConfigError"


def test_refused__mtu_that_carries_no_control_frame(lab):
    lab.mtu(0, 300)
    try:
        for answer in both(lab, {}, {}):
            check(answer, "a frame of 272 bytes, as rank 0 has them", "raise the MTU of its interface")
    finally:
        lab.mtu(0, 1500)
