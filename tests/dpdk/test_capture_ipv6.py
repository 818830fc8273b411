"""Our frames over IPv6 as scapy sees them, and scapy's as we see them."""
import frames
import pytest
from captured import OTHERS, OURS, PAYLOADS, ether, padded, udp
from scapy.layers.inet import TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    ICMPv6PacketTooBig,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    fragment6,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

OUR_IP, OTHER_IP, GROUP, ALL = "fd00::5", "fd00::a1b2:c309", "ff02::1:ff00:5", "ff02::1"
OUR_GROUP_MAC, ALL_MAC, THEIR_GROUP_MAC = "33:33:ff:00:00:05", "33:33:00:00:00:01", "33:33:ff:b2:c3:09"


@pytest.fixture
def run6(run):
    return lambda *heard: run(*heard, ours=f"{OUR_IP}/64", other=OTHER_IP)


def ip(**fields):
    return IPv6(**{"src": OTHER_IP, "dst": OUR_IP, **fields})


def asks(**fields):
    return (Ether(src=OTHERS, dst=OUR_GROUP_MAC) / IPv6(src=OTHER_IP, dst=GROUP, hlim=255)
            / ICMPv6ND_NS(**{"tgt": OUR_IP, **fields}) / ICMPv6NDOptSrcLLAddr(lladdr=OTHERS))


def test_sent__neighbour_discovery_is_well_formed(run6):
    announces, requests, answers = run6(asks()).sent[:3]
    frames.check_nd(announces, ICMPv6ND_NA, tgt=OUR_IP, R=0, S=0, O=1)
    assert (announces.src, announces[IPv6].src, announces[IPv6].dst) == (OURS, OUR_IP, ALL)
    frames.check_nd(requests, ICMPv6ND_NS, tgt=OTHER_IP)
    assert (requests.src, requests.dst) == (OURS, THEIR_GROUP_MAC)
    assert (requests[IPv6].src, requests[IPv6].dst) == (OUR_IP, "ff02::1:ffb2:c309")
    frames.check_nd(answers, ICMPv6ND_NA, tgt=OUR_IP, R=0, S=1, O=1)
    assert (answers.src, answers.dst) == (OURS, OTHERS)
    assert (answers[IPv6].src, answers[IPv6].dst) == (OUR_IP, OTHER_IP)


def test_sent__datagrams_are_right_to_the_last_sum(run6):
    done = run6(asks())
    datagrams = done.sent[3:]
    assert len(datagrams) == 2 * len(PAYLOADS)
    for i, frame in enumerate(datagrams):
        payload = frames.check_datagram6(frame)
        assert (frame.src, frame.dst) == (OURS, OTHERS)
        assert (frame[IPv6].src, frame[IPv6].dst) == (OUR_IP, OTHER_IP)
        assert frame[UDP].sport in (5000, 5001)
        assert frame[UDP].dport == 7000
        assert frames.check_protocol(payload) == (1, 5, 9)
        length = PAYLOADS[i % len(PAYLOADS)]
        assert payload[frames.HEAD :] == bytes(j * 7 & 255 for j in range(length))
    assert done.copied == 2 * sum(PAYLOADS)  # what we sum we copy


def test_sent__nothing_to_one_who_never_answered(run6):
    assert [frame[IPv6].nh for frame in run6().sent] == [58, 58]


def answer(about=OTHER_IP, src=OTHER_IP, dst=OUR_IP, mac=OURS, hlim=255, lladdr=OTHERS, **fields):
    return (Ether(src=OTHERS, dst=mac) / IPv6(src=src, dst=dst, hlim=hlim)
            / ICMPv6ND_NA(**{"tgt": about, "R": 0, "S": 1, "O": 1, **fields}) / ICMPv6NDOptDstLLAddr(lladdr=lladdr))


@pytest.mark.parametrize("told", [
    answer(), answer(R=1), answer(O=0), answer(src="fe80::9"), answer(dst=ALL, mac=ALL_MAC, S=0),
    asks(tgt="fd00::7:5"),  # of another one of our group, but it says who it is
])
def test_heard__a_neighbours_word_brings_its_mac(run6, told):
    datagrams = [frame for frame in run6(told).sent if UDP in frame]
    assert len(datagrams) == 2 * len(PAYLOADS)
    assert {frame.dst for frame in datagrams} == {OTHERS}


def spoilt(frame, at, value):
    """A byte of what follows IPv6's header changed, and the sum made right again."""
    ip = frame[IPv6]
    nd = bytearray(bytes(ip)[40:])
    nd[at] = value
    nd[2:4] = b"\0\0"
    pseudo = IPv6(src=ip.src, dst=ip.dst, hlim=ip.hlim, nh=58, plen=len(nd)) / Raw(bytes(nd))
    sum = in6_sum(bytes(nd), ip)
    nd[2:4] = sum.to_bytes(2, "big")
    return Ether(src=frame.src, dst=frame.dst, type=0x86DD) / Raw(bytes(pseudo)[:40] + bytes(nd))


def in6_sum(message, ip):
    words = bytes(ip)[8:40] + len(message).to_bytes(4, "big") + b"\0\0\0\x3a" + message + b"\0" * (len(message) % 2)
    total = sum(int.from_bytes(words[i : i + 2], "big") for i in range(0, len(words), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


WRONG = {
    "passed on by a router": answer(hlim=254),
    "to a group, yet solicited": answer(dst=ALL, mac=ALL_MAC, S=1),
    "about a group": answer(about="ff02::1:ff00:9"),
    "about nobody": answer(about="::"),
    "about another": answer(about="fd00::10"),
    "an IPv4 address": answer(about="::ffff:10.0.0.9"),
    "with a group's mac": answer(lladdr="33:33:00:00:00:01"),
    "with no mac": answer(lladdr="00:00:00:00:00:00"),
    "with our mac": answer(lladdr=OURS),
    "to another mac": answer(mac="02:70:63:61:70:01"),
    "to another ip": answer(dst="fd00::6"),
    "code 1": spoilt(answer(), 1, 1),
    "an option of length 0": spoilt(answer(), 25, 0),
    "an option longer than the message": spoilt(answer(), 25, 2),
    "another option": spoilt(answer(), 24, 1),
    "a router's": Ether(src=OTHERS, dst=ALL_MAC) / IPv6(src="fe80::9", dst=ALL, hlim=255) / ICMPv6ND_RA()
                  / ICMPv6NDOptSrcLLAddr(lladdr=OTHERS),
    "from nobody, with a mac": Ether(src=OTHERS, dst=OUR_GROUP_MAC) / IPv6(src="::", dst=GROUP, hlim=255)
                               / ICMPv6ND_NS(tgt=OUR_IP) / ICMPv6NDOptSrcLLAddr(lladdr=OTHERS),
    "cut before its target": Ether(src=OTHERS, dst=OURS) / IPv6(src=OTHER_IP, dst=OUR_IP, hlim=255, nh=58)
                             / Raw(bytes(ICMPv6ND_NA(tgt=OTHER_IP))[:23]),
}


@pytest.mark.parametrize("name", WRONG)
def test_heard__a_neighbours_word_that_is_not_right_is_not_believed(run6, name):
    done = run6(WRONG[name])
    assert [type(frame.lastlayer(Raw)) for frame in done.sent if UDP in frame] == []
    assert len(done.sent) == 2, [frame.summary() for frame in done.sent]  # our announcement, our question


def test_heard__who_asks_whether_our_address_is_free_is_told(run6):
    dad = Ether(src=OTHERS, dst=OUR_GROUP_MAC) / IPv6(src="::", dst=GROUP, hlim=255) / ICMPv6ND_NS(tgt=OUR_IP)
    _, _, told = run6(dad).sent
    frames.check_nd(told, ICMPv6ND_NA, tgt=OUR_IP, S=0, O=1)
    assert (told.dst, told[IPv6].dst) == (ALL_MAC, ALL)


def test_heard__who_claims_our_address_is_told_of_and_told(run6):
    done = run6(answer(about=OUR_IP, dst=ALL, mac=ALL_MAC, S=0), answer(about=OUR_IP, dst=ALL, mac=ALL_MAC, S=0))
    assert len([frame for frame in done.sent if ICMPv6ND_NA in frame]) == 2  # the announcement, and again
    (event,) = [text for text in done.events if "also that of" in text]
    assert OUR_IP in event
    assert OTHERS in event


TAKEN = {
    "summed": ether() / ip() / udp() / b"summed",
    "the second port": ether() / ip() / udp(dport=5001) / b"the second port",
    "another way in": ether() / ip(src="fd01::9") / udp(sport=1) / b"another way in",
    "link-local": ether() / ip(src="fe80::9") / udp() / b"link-local",
    "x": padded(ether() / ip() / udp() / b"x"),
    "low hop limit": ether() / ip(hlim=1) / udp() / b"low hop limit",
    "marked": ether() / ip(tc=0xB8, fl=0x12345) / udp() / b"marked",
}

FOREIGN = {
    "another mac": ether(dst="02:70:63:61:70:01") / ip() / udp() / b"another mac",
    "our group": ether(dst=OUR_GROUP_MAC) / ip(dst=GROUP) / udp() / b"our group",
    "our group's mac": ether(dst=OUR_GROUP_MAC) / ip() / udp() / b"our group's mac",
    "another ip": ether() / ip(dst="fd00::6") / udp() / b"another ip",
    "another port": ether() / ip() / udp(dport=5002) / b"another port",
    "from a group": ether() / ip(src="ff02::9") / udp() / b"from a group",
    "from nobody": ether() / ip(src="::") / udp() / b"from nobody",
    "from loopback": ether() / ip(src="::1") / udp() / b"from loopback",
    "from ipv4": ether() / ip(src="::ffff:10.0.0.9") / udp() / b"from ipv4",
    "empty": padded(ether() / ip() / udp()),
    "tcp": ether() / ip() / TCP(dport=5000) / b"tcp",
    "version 4 inside": ether(type=0x86DD) / ip(version=4) / udp() / b"version 4 inside",
    "hop by hop": ether() / ip() / IPv6ExtHdrHopByHop() / udp() / b"hop by hop",
    "destination options": ether() / ip() / IPv6ExtHdrDestOpt() / udp() / b"destination options",
    "a fragment of one": ether() / ip() / IPv6ExtHdrFragment(offset=0, m=0, id=7) / udp() / b"a fragment of one",
    "arp": Ether(src=OTHERS, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=OTHERS, psrc="10.0.0.9", pdst="10.0.0.5"),
}

WHOLE = bytes(ether() / ip() / udp() / bytes(100))

TRUNCATED = {
    "cut in the payload": Raw(WHOLE[:120]),
    "cut in the udp header": Raw(WHOLE[:58]),
    "cut in the ip header": Raw(WHOLE[:40]),
    "udp longer than ip": ether() / ip(plen=8 + 10) / udp(len=8 + 11, chksum=1) / bytes(20),
    "udp shorter than its header": ether() / ip() / udp(len=7) / bytes(20),
    "ip longer than the frame": ether() / ip(plen=8 + 21) / udp(len=8 + 20, chksum=1) / bytes(20),
    "icmp of no length": ether() / ip(plen=0, nh=58) / bytes(20),
    "no udp sum": ether() / ip() / udp(chksum=0) / b"no udp sum",
    "wrong udp sum": ether() / ip() / udp(chksum=0x1234) / b"wrong udp sum",
    "a neighbour's wrong sum": Ether(src=OTHERS, dst=OUR_GROUP_MAC) / IPv6(src=OTHER_IP, dst=GROUP, hlim=255)
                               / ICMPv6ND_NS(tgt=OUR_IP, cksum=0x1234) / ICMPv6NDOptSrcLLAddr(lladdr=OTHERS),
}


@pytest.mark.parametrize("name", TAKEN)
def test_heard__is_taken(run6, name):
    done = run6(TAKEN[name])
    assert done.took == [name.encode()]
    assert (done.frames, done.foreign, done.truncated) == (1, 0, 0)


def test_heard__what_a_kernel_left_unfinished_is_taken(run6):
    """On a veth the sum's place holds the pseudo-header's only; our own check is over all of it."""
    whole = ether() / ip() / udp(chksum=0) / b"unfinished"
    datagram = bytes(whole[UDP])
    pseudo = bytes(whole[IPv6])[8:40] + len(datagram).to_bytes(4, "big") + b"\0\0\0\x11"
    total = sum(int.from_bytes(pseudo[i : i + 2], "big") for i in range(0, len(pseudo), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    done = run6(ether() / ip() / udp(chksum=total) / b"unfinished")
    assert (done.took, done.truncated) == ([b"unfinished"], 0)


@pytest.mark.parametrize("name", FOREIGN)
def test_heard__of_others_is_counted(run6, name):
    done = run6(FOREIGN[name])
    assert (done.took, done.foreign, done.truncated) == ([], 1, 0)


@pytest.mark.parametrize("name", TRUNCATED)
def test_heard__damaged_is_counted(run6, name):
    done = run6(TRUNCATED[name])
    assert (done.took, done.foreign, done.truncated) == ([], 0, 1)


def test_heard__fragments_are_counted_all(run6):
    pieces = fragment6(ip() / IPv6ExtHdrFragment(id=5) / udp() / bytes(4000), 1400)
    assert len(pieces) == 3
    done = run6(*[ether() / piece for piece in pieces])
    assert (done.took, done.foreign, done.truncated) == ([], 3, 0)


@pytest.mark.parametrize("size", [0, 1, 56, 1452])
def test_heard__ping_is_answered(run6, size):
    asked = ether() / ip(hlim=3) / ICMPv6EchoRequest(id=0x1234, seq=7, data=(bytes(range(256)) * 6)[:size])
    done = run6(asked)
    (reply,) = [frame for frame in done.sent if ICMPv6EchoReply in frame]
    assert (reply.src, reply.dst) == (OURS, OTHERS)
    assert (reply[IPv6].src, reply[IPv6].dst, reply[IPv6].hlim, reply[IPv6].plen) == (OUR_IP, OTHER_IP, 64, 8 + size)
    answer = reply[ICMPv6EchoReply]
    assert (answer.code, answer.id, answer.seq) == (0, 0x1234, 7)
    assert answer.data == asked[ICMPv6EchoRequest].data
    assert answer.cksum == frames.made_anew_within(IPv6(bytes(reply[IPv6])), ICMPv6EchoReply).cksum
    assert done.foreign == 1


def test_heard__ping_with_a_wrong_sum_is_not_answered(run6):
    done = run6(ether() / ip() / ICMPv6EchoRequest(cksum=0x1234, data=b"hello"))
    assert not [frame for frame in done.sent if ICMPv6EchoReply in frame]
    assert done.foreign == 1


def test_heard__a_router_that_cannot_pass_our_frames_is_told(run6):
    ours = IPv6(src=OUR_IP, dst="fd09::9") / UDP(sport=5001, dport=7000, len=1440)
    done = run6(ether() / ip(src="fd00::254") / ICMPv6PacketTooBig(mtu=1400) / ours)
    (told,) = [text for text in done.events if "the way to" in text]
    assert "fd00::254" in told
    assert "fd09::9" in told
    assert "TAILBOUND_MTU to 1352" in told


OF_OURS = {"src": OUR_IP, "dst": "fd09::9"}
NOT_OURS = {
    "from another": IPv6(**{**OF_OURS, "src": "fd00::6"}) / UDP(sport=5001, dport=7000, len=1440),
    "from another port": IPv6(**OF_OURS) / UDP(sport=5002, dport=7000, len=1440),
    "tcp": IPv6(**OF_OURS) / TCP(sport=5001),
    "an ipv4 packet": IPv6(version=4, **OF_OURS) / UDP(sport=5001, dport=7000, len=1440),
    "cut": Raw(bytes(IPv6(**OF_OURS) / UDP(sport=5001, dport=7000, len=1440))[:47]),
}


@pytest.mark.parametrize("name", NOT_OURS)
def test_heard__a_routers_word_about_what_is_not_ours_is_not_believed(run6, name):
    done = run6(ether() / ip(src="fd00::254") / ICMPv6PacketTooBig(mtu=1400) / NOT_OURS[name])
    assert (done.events, done.foreign, done.truncated) == ([], 1, 0)
