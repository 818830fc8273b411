"""Our frames in a VLAN as scapy sees them, and scapy's as we see them."""
import frames
import pytest
from captured import OTHERS, OURS, PAYLOADS, ether, udp
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Raw

VLAN = 100
OUR_IP, OTHER_IP, OUR_IP6, OTHER_IP6 = "10.0.0.5", "10.0.0.9", "fd00::5", "fd00::9"


@pytest.fixture
def run4(run):
    return lambda *heard: run(*heard, vlan=VLAN)


@pytest.fixture
def run6(run):
    return lambda *heard: run(*heard, ours=f"{OUR_IP6}/64", other=OTHER_IP6, vlan=VLAN)


def tag(vlan=VLAN, **fields):
    return Dot1Q(vlan=vlan, **fields)


def ip(**fields):
    return IP(**{"src": OTHER_IP, "dst": OUR_IP, **fields})


def ip6():
    return IPv6(src=OTHER_IP6, dst=OUR_IP6)


def asks(vlan=VLAN):
    return Ether(src=OTHERS, dst="ff:ff:ff:ff:ff:ff") / tag(vlan) / ARP(op=1, hwsrc=OTHERS, psrc=OTHER_IP, pdst=OUR_IP)


def asks6():
    return (Ether(src=OTHERS, dst="33:33:ff:00:00:05") / tag() / IPv6(src=OTHER_IP6, dst="ff02::1:ff00:5", hlim=255)
            / ICMPv6ND_NS(tgt=OUR_IP6) / ICMPv6NDOptSrcLLAddr(lladdr=OTHERS))


def test_sent__arp_has_the_tag(run4):
    sent = [frames.untagged(frame, VLAN) for frame in run4(asks()).sent[:3]]
    assert [frame[ARP].op for frame in sent] == [1, 1, 2]
    for frame in sent:
        frames.check_arp(frame, frame[ARP].op, psrc=OUR_IP, hwsrc=OURS)


def test_sent__neighbour_discovery_has_the_tag(run6):
    sent = [frames.untagged(frame, VLAN) for frame in run6(asks6()).sent[:3]]
    for frame, kind in zip(sent, [ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6ND_NA], strict=True):
        frames.check_nd(frame, kind)


def test_sent__datagrams_have_the_tag_and_nothing_else_changed(run4):
    datagrams = [frames.untagged(frame, VLAN) for frame in run4(asks()).sent[3:]]
    assert len(datagrams) == 2 * len(PAYLOADS)
    for i, frame in enumerate(datagrams):
        payload = frames.check_datagram(frame)
        assert (frame.src, frame.dst, frame[IP].dst) == (OURS, OTHERS, OTHER_IP)
        assert frames.check_protocol(payload) == (1, 5, 9)
        assert len(payload) == frames.HEAD + PAYLOADS[i % len(PAYLOADS)]


def test_sent__datagrams_over_ipv6_too(run6):
    datagrams = [frames.untagged(frame, VLAN) for frame in run6(asks6()).sent[3:]]
    assert len(datagrams) == 2 * len(PAYLOADS)
    for frame in datagrams:
        assert frames.check_protocol(frames.check_datagram6(frame)) == (1, 5, 9)


def test_heard__with_the_tag_is_taken(run4):
    heard = [ether() / tag() / ip() / udp() / b"a", ether() / tag(prio=7) / ip() / udp() / b"b",
             ether() / tag(dei=1) / ip() / udp() / b"c"]
    done = run4(*heard)
    assert (done.took, done.foreign, done.truncated) == ([b"a", b"b", b"c"], 0, 0)


def test_heard__with_the_tag_is_taken_over_ipv6(run6):
    done = run6(ether() / tag() / ip6() / udp() / b"a")
    assert (done.took, done.foreign, done.truncated) == ([b"a"], 0, 0)


FOREIGN = {
    "another": ether() / tag(101) / ip() / udp() / b"another",
    "none": ether() / ip() / udp() / b"none",
    "priority alone": ether() / tag(0, prio=5) / ip() / udp() / b"priority alone",
    "a service's": ether() / Dot1AD(vlan=VLAN) / ip() / udp() / b"a service's",
    "two": ether() / tag() / tag() / ip() / udp() / b"two",
    "arp of another": asks(101),
    "ping of another": ether() / tag(101) / ip() / ICMP(type=8) / bytes(40),
    "nothing behind it": Raw(bytes(ether() / tag(type=0x0800))[:18].ljust(60, b"\0")),
}

TRUNCATED = {
    "cut in the tag": Raw(bytes(ether() / tag() / ip())[:16]),
    "cut behind the tag": Raw(bytes(ether() / tag() / ip())[:18]),
    "cut in the ip header": Raw(bytes(ether() / tag() / ip() / udp() / bytes(100))[:34]),
    "cut in the udp header": Raw(bytes(ether() / tag() / ip() / udp() / bytes(100))[:42]),
    "cut in the payload": Raw(bytes(ether() / tag() / ip() / udp() / bytes(100))[:140]),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_heard__of_another_vlan_is_counted(run4, name):
    done = run4(FOREIGN[name])
    assert (done.took, done.foreign, done.truncated) == ([], 1, 0)
    assert len(done.sent) == 2  # our announcement, our question
    assert len([text for text in done.events if "without the tag" in text]) == (name == "none")


@pytest.mark.parametrize("name", TRUNCATED)
def test_heard__cut_is_counted(run4, name):
    done = run4(TRUNCATED[name])
    assert (done.took, done.foreign, done.truncated) == ([], 0, 1)


def test_heard__ping_is_answered_with_the_tag(run4, run6):
    done = run4(ether() / tag(prio=3) / ip() / ICMP(type=8, id=7) / b"are you there?")
    (reply,) = [frames.untagged(frame, VLAN) for frame in done.sent if ICMP in frame]
    assert (reply[ICMP].type, reply[ICMP].id, bytes(reply[ICMP].payload)[:14]) == (0, 7, b"are you there?")
    done = run6(ether() / tag() / ip6() / ICMPv6EchoRequest(id=7, data=b"are you there?"))
    (reply,) = [frames.untagged(frame, VLAN) for frame in done.sent if ICMPv6EchoReply in frame]
    assert reply[ICMPv6EchoReply].data == b"are you there?"
    assert UDP not in reply
