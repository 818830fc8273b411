"""Our frames as scapy sees them, and scapy's as we see them: over capture files, and between real ranks."""
import socket

import frames
import kinds
import netlab_host
import netlab_kernel
import pytest
from captured import OTHERS, OURS, PAYLOADS, ether, padded, udp
from job import SharedJob
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption, IPOption_NOP, fragment
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Raw

SO_RCVBUFFORCE = 33  # which Python's socket module lacks
OUR_IP, OTHER_IP = "10.0.0.5", "10.0.0.9"


def ip(**fields):
    return IP(**{"src": OTHER_IP, "dst": OUR_IP, **fields})


def asks():
    return Ether(src=OTHERS, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=OTHERS, psrc=OTHER_IP, pdst=OUR_IP)


def test_sent__arp_is_well_formed(run):
    announces, requests, answers = run(asks()).sent[:3]
    frames.check_arp(announces, 1, psrc=OUR_IP, pdst=OUR_IP, hwsrc=OURS, hwdst="00:00:00:00:00:00")
    frames.check_arp(requests, 1, psrc=OUR_IP, pdst=OTHER_IP, hwsrc=OURS, hwdst="00:00:00:00:00:00")
    frames.check_arp(answers, 2, psrc=OUR_IP, pdst=OTHER_IP, hwsrc=OURS, hwdst=OTHERS)
    assert announces.dst == requests.dst == "ff:ff:ff:ff:ff:ff"
    assert answers.dst == OTHERS


def test_sent__datagrams_are_right_to_the_last_sum(run):
    done = run(asks())
    datagrams = done.sent[3:]
    assert len(datagrams) == 2 * len(PAYLOADS)
    for i, frame in enumerate(datagrams):
        payload = frames.check_datagram(frame)
        assert (frame.src, frame.dst) == (OURS, OTHERS)
        assert (frame[IP].src, frame[IP].dst) == (OUR_IP, OTHER_IP)
        assert frame[UDP].sport in (5000, 5001)
        assert frame[UDP].dport == 7000
        assert frame[UDP].chksum == 0  # our own check is over all of it
        assert frames.check_protocol(payload) == (1, 5, 9)
        length = PAYLOADS[i % len(PAYLOADS)]
        assert payload[frames.HEAD :] == bytes(j * 7 & 255 for j in range(length))
    assert done.copied == 2 * sum(length for length in PAYLOADS if length < 512)


def test_sent__nothing_to_one_who_never_answered(run):
    assert [frame.type for frame in run().sent] == [0x0806, 0x0806]


TAKEN = {
    "summed": ether() / ip() / udp() / b"summed",
    "no sum": ether() / ip() / udp(chksum=0) / b"no sum",
    "the second port": ether() / ip() / udp(dport=5001) / b"the second port",
    "another way in": ether() / ip(src="10.9.9.9") / udp(sport=1) / b"another way in",
    "ip options": ether() / ip(options=[IPOption_NOP()] * 3 + [IPOption(b"\x00")]) / udp() / b"ip options",
    "all ip options": ether() / ip(options=[IPOption_NOP()] * 40) / udp() / b"all ip options",
    "x": padded(ether() / ip() / udp() / b"x"),
    "more behind it": ether() / ip(len=20 + 8 + 14) / udp(len=8 + 14, chksum=0) / b"more behind it, which is not of it",
    "low ttl": ether() / ip(ttl=1) / udp() / b"low ttl",
    "marked": ether() / ip(tos=0xB8, id=77, flags=0) / udp() / b"marked",
    # seen by the check of our own header, for no device here looks at it
    "wrong udp sum": ether() / ip() / udp(chksum=0x1234) / b"wrong udp sum",
}

FOREIGN = {
    "vlan": ether() / Dot1Q(vlan=7) / ip() / udp() / b"vlan",
    "vlan of 0": ether() / Dot1Q(vlan=0, prio=5) / ip() / udp() / b"vlan of 0",
    "two vlans": ether() / Dot1AD(vlan=3) / Dot1Q(vlan=7) / ip() / udp() / b"two vlans",
    "another mac": ether(dst="02:70:63:61:70:01") / ip() / udp() / b"another mac",
    "everybody": ether(dst="ff:ff:ff:ff:ff:ff") / ip() / udp() / b"everybody",
    "another ip": ether() / ip(dst="10.0.0.6") / udp() / b"another ip",
    "another port": ether() / ip() / udp(dport=5002) / b"another port",
    "from a group": ether() / ip(src="224.0.0.1") / udp() / b"from a group",
    "from nobody": ether() / ip(src="0.0.0.0") / udp() / b"from nobody",
    "empty": padded(ether() / ip() / udp()),
    "tcp": ether() / ip() / TCP(dport=5000) / b"tcp",
    "ipv6": ether() / IPv6(src="fe80::9", dst="fe80::5") / udp() / b"ipv6",
    "version 6 inside": ether(type=0x0800) / ip(version=6) / udp() / b"version 6 inside",
    "short ihl": ether() / ip(ihl=4) / udp() / b"short ihl",
    "lldp": ether(type=0x88CC) / Raw(b"\x02\x07" + bytes(58)),
    "an ieee length": ether(type=40) / Raw(bytes(46)),
}

TRUNCATED = {
    "cut in the payload": Raw(bytes(ether() / ip() / udp() / bytes(100))[:100]),
    "cut in the udp header": Raw(bytes(ether() / ip() / udp() / bytes(100))[:38]),
    "cut in the ip header": Raw(bytes(ether() / ip() / udp() / bytes(100))[:30]),
    "cut in the ethernet header": Raw(bytes(ether())[:10]),
    "udp longer than ip": ether() / ip(len=20 + 8 + 10) / udp(len=8 + 11, chksum=0) / bytes(20),
    "udp shorter than its header": ether() / ip() / udp(len=7) / bytes(20),
    "ip shorter than its header": ether() / ip(len=19) / udp() / bytes(20),
    "options cut": Raw(bytes(ether() / ip(options=[IPOption_NOP()] * 40) / udp())[:40]),
    "wrong ip sum": ether() / ip(chksum=0x1234) / udp() / b"wrong ip sum",
}


@pytest.mark.parametrize("name", TAKEN)
def test_heard__is_taken(run, name):
    done = run(TAKEN[name])
    assert done.took == [name.encode()]
    assert (done.frames, done.foreign, done.truncated) == (1, 0, 0)


@pytest.mark.parametrize("name", FOREIGN)
def test_heard__of_others_is_counted(run, name):
    done = run(FOREIGN[name])
    assert (done.took, done.foreign, done.truncated) == ([], 1, 0)


@pytest.mark.parametrize("name", TRUNCATED)
def test_heard__damaged_is_counted(run, name):
    done = run(TRUNCATED[name])
    assert (done.took, done.foreign, done.truncated) == ([], 0, 1)


def test_heard__fragments_are_counted_all(run):
    pieces = fragment(ip(id=5) / udp() / bytes(4000), fragsize=1400)
    assert len(pieces) == 3
    done = run(*[ether() / piece for piece in pieces])
    assert (done.took, done.foreign, done.truncated) == ([], 3, 0)


def test_heard__arp_that_is_not_well_formed_is_not_answered(run):
    wrong = [ARP(hwtype=6), ARP(ptype=0x86DD), ARP(hwlen=8), ARP(plen=16), ARP(op=3), ARP(pdst="10.0.0.6"),
             ARP(hwsrc="ff:ff:ff:ff:ff:ff"), ARP(hwsrc="00:00:00:00:00:00"), ARP(hwsrc=OURS)]
    heard = []
    for one in wrong:
        both = {"hwsrc": OTHERS, "psrc": "10.0.0.77", "pdst": OUR_IP, **one.fields}
        heard.append(Ether(src=OTHERS, dst="ff:ff:ff:ff:ff:ff") / ARP(**{"op": 1, **both}))
    heard.append(Raw(bytes(asks())[:41]))  # a byte short
    done = run(*heard)
    assert [frame[ARP].op for frame in done.sent] == [1, 1]
    assert (done.frames, done.truncated) == (0, 0)


@pytest.mark.parametrize("size", [0, 1, 56, 1472])
def test_heard__ping_is_answered(run, size):
    asked = ether() / ip(ttl=3) / ICMP(type=8, id=0x1234, seq=7) / (bytes(range(256)) * 6)[:size]
    done = run(asked)
    (reply,) = [frame for frame in done.sent if ICMP in frame]
    assert (reply.src, reply.dst) == (OURS, OTHERS)
    assert (reply[IP].src, reply[IP].dst, reply[IP].ttl, reply[IP].ihl) == (OUR_IP, OTHER_IP, 64, 5)
    assert reply[IP].chksum == frames.made_anew(reply[IP], "chksum").chksum
    assert reply[IP].len == 28 + size
    answer = ICMP(bytes(reply[ICMP])[: 8 + size])
    assert (answer.type, answer.code, answer.id, answer.seq) == (0, 0, 0x1234, 7)
    assert answer.chksum == frames.made_anew(answer, "chksum").chksum
    assert bytes(answer)[8:] == bytes(asked[ICMP])[8:]
    assert len(bytes(reply)) == max(42 + size, frames.LEAST)
    assert done.foreign == 1


def test_heard__a_router_that_cannot_pass_our_frames_is_told(run):
    ours = IP(src=OUR_IP, dst="10.9.9.9", flags="DF") / UDP(sport=5001, dport=7000, len=1480)
    done = run(ether() / ip(src="10.0.0.254") / ICMP(type=3, code=4, nexthopmtu=1400) / ours)
    (told,) = [text for text in done.events if "the way to" in text]
    assert "10.0.0.254" in told
    assert "10.9.9.9" in told
    assert "TAILBOUND_MTU to 1372" in told


# Between ranks: one on the kernel's UDP, one that owns its device


class Listener:
    """All frames at the switch's port of rank 1."""

    def __init__(self, lab):
        def build():
            s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
            s.bind(("p1", 0))
            s.setblocking(False)
            return s

        self.socket = netlab_kernel.in_namespace(f"{netlab_host.NETNS}/{lab.namespace()}", build)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def heard(self):
        found = []
        while True:
            try:
                found.append(Ether(self.socket.recv(65535)))
            except BlockingIOError:
                return found


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    (kind,) = [kind for kind in kinds.KINDS if kind.name == "mixed"]
    reason = kind.why_not()
    if reason:
        pytest.skip(f"link {kind.name}: {reason}")
    with SharedJob(kind, 2, tmp_path_factory.mktemp("capture")) as job, Listener(job.lab) as listener:
        job.begin_test()
        job.step("exact", timeout=10, what="all_reduce", dtype="float32", counts=[1, 20_003], key=job.key("captured"))
        yield job, listener.heard()
        job.end_test(failed=False)


def test_ranks__frames_of_both_links_are_right(mixed):
    job, heard = mixed
    mac = {frame[IP].src: frame.src for frame in heard if UDP in frame}
    seen = {0: 0, 1: 0}
    for frame in heard:
        if UDP not in frame or frame[IP].src not in (job.lab.ip4(0), job.lab.ip4(1)):
            continue
        payload = frames.check_datagram(frame) if frame[IP].src == job.lab.ip4(1) else bytes(frame[UDP].payload)
        source = 0 if frame[IP].src == job.lab.ip4(0) else 1
        assert frame.dst == mac[frame[IP].dst]
        assert frames.check_protocol(payload[: frame[UDP].len - 8])[1:] == (source, 1 - source)
        seen[source] += 1
    assert min(seen.values()) > 2 * 20_003 * 4 // 2 // 1400, seen  # scattered, and handed out


def test_ranks__find_each_other_by_arp(mixed):
    job, heard = mixed
    said = [frame for frame in heard if ARP in frame and frame[ARP].psrc == job.lab.ip4(1)]
    assert {1} <= {frame[ARP].op for frame in said}
    for frame in said:
        frames.check_arp(frame, frame[ARP].op)
    assert said[0][ARP].pdst == job.lab.ip4(1)  # the announcement, before anything else


def test_ranks__answer_ping(mixed):
    job, _ = mixed
    asked = ICMP(type=8, id=0x4242, seq=3) / Raw(b"are you there?")
    with netlab_kernel.in_namespace(f"{netlab_host.NETNS}/{job.lab.namespace(0)}",
                                    lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)) as s:
        s.settimeout(5)
        s.sendto(bytes(asked), (job.lab.ip4(1), 0))
        reply = IP(s.recv(2000))
    assert reply.src == job.lab.ip4(1)
    assert (reply[ICMP].type, reply[ICMP].id, reply[ICMP].seq) == (0, 0x4242, 3)
    assert bytes(reply[ICMP].payload) == b"are you there?"
