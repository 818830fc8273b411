"""Garbage at full rate from a third port of the switch during all-reduces: results stay right, and what was refused is
counted as what it was.

What is asserted: of a flood that fits the kernel's ring every frame is counted, under the name it must have, and none
under another. Of one at full rate no name is counted more often than it was sent, and all names together are counted as
often as they were sent, but for what the ring dropped, by the kernel's count. Only rx_foreign may be a few more:
kernels in the laboratory say things of their own (multicast of IPv6) that reach everybody.
"""
import json
import pathlib
import random
import re
import socket
import struct
import subprocess
import sys

import pytest
from harness import check_values
from kinds import KINDS

HERE = pathlib.Path(__file__).resolve().parent
SHARED = [(kind, 2, {"worker": HERE / "dpdk_steps.py", "spare": 1}) for kind in KINDS if kind.name == "dpdk-af_packet"]
OUTSIDER = 2
FEW, SECONDS = 100, 1.5
STRANGERS = 20


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def ip_sum(head):
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


class Garbage:
    """Frames for rank 0, as somebody makes them who knows its addresses and the format, but not the job."""

    def __init__(self, to_mac, to_ip, from_ip, port, seed=1):
        self.to_mac, self.to_ip, self.from_ip, self.port = to_mac, to_ip, from_ip, port
        self.random = random.Random(seed)

    def noise(self, low, high):
        return self.random.randbytes(self.random.randint(low, high))

    def ethernet(self, kind, body):
        return self.to_mac + b"\x02flood" + struct.pack("!H", kind) + body

    def ip(self, payload, to=None, protocol=17, length=None, wrong=0, version=0x45):
        head = struct.pack("!BBHHHBBH4s4s", version, 0, 20 + len(payload) if length is None else length, 7, 0x4000, 64,
                           protocol, 0, socket.inet_aton(self.from_ip), socket.inet_aton(to or self.to_ip))
        return self.ethernet(0x0800, head[:10] + struct.pack("!H", ip_sum(head) ^ wrong) + head[12:] + payload)

    def udp(self, payload, port=None, length=None, **ip):
        head = struct.pack("!HHHH", 50000, port or self.port, 8 + len(payload) if length is None else length, 0)
        return self.ip(head + payload, **ip)

    def frame(self, version=1, kind=1, check=0, magic=b"TB"):
        head = magic + bytes([version, kind]) + self.noise(56, 56)
        payload = self.noise(1, 1300)
        return self.udp(head + struct.pack("!I", crc32c(head + payload) ^ check) + payload)

    def all(self):
        """Counter of stats() -> frames that must be counted there."""
        other = ".".join(self.to_ip.split(".")[:3] + ["250"])
        makers = {
            "rx_foreign": [
                lambda: self.ethernet(self.random.choice([0x88B5, 0x86DD, 0x8100, 0, 0xFFFF]), self.noise(0, 1400)),
                lambda: self.udp(self.noise(1, 1300), to=other),
                lambda: self.udp(self.noise(1, 1300), port=(self.port + 4096) % 65536 or 1),
                lambda: self.ip(self.noise(8, 1300), protocol=6),
                lambda: self.ip(self.noise(8, 1300), version=0x65),
                lambda: self.udp(b""),
            ],
            "rx_truncated": [
                lambda: self.ethernet(0x0800, self.noise(0, 19)),
                lambda: self.udp(self.noise(60, 1200), length=1400),
                lambda: self.ip(struct.pack("!HHHH", 50000, self.port, 1300, 0) + self.noise(100, 1000), length=1320),
                lambda: self.udp(self.noise(60, 1300), wrong=0x1234),
                lambda: self.udp(self.noise(60, 1300), length=7),
                lambda: self.ip(self.noise(0, 7)),
                lambda: self.ip(self.noise(8, 20), version=0x4F),
            ],
            "bad_short": [lambda: self.udp(self.noise(1, 63))],
            "bad_magic": [lambda: self.udp(b"\xff" + self.noise(63, 1399)), lambda: self.frame(magic=b"TC")],
            "bad_version": [lambda: self.frame(version=2)],
            "bad_type": [lambda: self.frame(kind=0), lambda: self.frame(kind=9), lambda: self.frame(kind=255)],
            "bad_check": [lambda: self.frame(check=1), lambda: self.frame(check=0x80000000, kind=6)],
            "bad_job": [lambda kind=kind: self.frame(kind=kind) for kind in range(1, 9)],
        }
        return {name: [make().hex() for make in each for _ in range(24 // len(each) + 1)]
                for name, each in makers.items()}


@pytest.fixture
def garbage(job):
    described = job.step("stats", timeout=3)[0]["stats"]["description"]
    mac = re.search(r"\(net_af_packet\) ([0-9a-f:]{17})", described)[1]
    port = int(re.search(r"ports (\d+)-", described)[1])
    return Garbage(bytes.fromhex(mac.replace(":", "")), job.lab.ip4(0), job.lab.ip4(1), port)


def flood(job, frames, **how):
    sender = job.lab.run(OUTSIDER, [sys.executable, str(HERE / "flood.py")], text=True, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sender.stdin.write(json.dumps({"frames": frames, **how}))
    sender.stdin.close()
    sender.stdin = None
    return sender


def end(sender):
    out, said = sender.communicate(timeout=30)
    assert sender.returncode == 0, said
    return json.loads(out)


def counted(job, names):
    stats = job.step("stats", timeout=5, ranks=[0])[0]["stats"]
    return {name: stats[name] for name in names}


def arp_noise(garbage):
    return [garbage.ethernet(0x0806, garbage.noise(0, 60)).hex() for _ in range(24)]


def test_flood__that_fits_is_counted_frame_by_frame(job, garbage):
    frames = garbage.all()
    before = counted(job, frames)
    job.step("ring", timeout=3, ranks=[0])
    sent = end(flood(job, frames, count=FEW))
    assert set(sent.values()) == {FEW}, sent
    job.step("exact", timeout=6, what="all_reduce", dtype="float32", counts=[1000], key=job.key("after"))
    ring, now = job.step("ring", timeout=3, ranks=[0])[0], counted(job, frames)
    assert ring["dropped"] == 0, ring
    refused = {name: now[name] - before[name] for name in frames}
    assert 0 <= refused.pop("rx_foreign") - sent.pop("rx_foreign") <= STRANGERS
    assert refused == sent


def test_flood__at_full_rate_costs_no_value_and_adds_up(job, garbage):
    frames = garbage.all()
    before = counted(job, frames)
    job.step("ring", timeout=3, ranks=[0])
    sender = flood(job, {**frames, "arp": arp_noise(garbage)}, seconds=SECONDS)
    step = job.begin("phase", phase={"name": "flooded", "key": None, "n": 15, "count": 40_000, "deadline": 0.2})
    job.end(step, timeout=15)
    said = job.step("exact", timeout=15, what="all_reduce", dtype="float32", counts=[1, 367, 100_003],
                    key=job.key("flooded"))
    assert sender.poll() is None, "the flood was over before the calls were"
    sent = end(sender)
    check_values(job)
    for rank, line in said.items():
        assert set(line["wrong"].values()) == {0}, (rank, line)
    job.step("exact", timeout=6, what="all_reduce", dtype="float32", counts=[1000], key=job.key("after"))
    ring, now = job.step("ring", timeout=3, ranks=[0])[0], counted(job, frames)
    refused, arp = {name: now[name] - before[name] for name in frames}, sent.pop("arp")
    print(f"sent {sum(sent.values())} and {arp} ARP in {SECONDS} s, ring {ring}, refused {refused}")
    assert sum(sent.values()) > 20_000 * SECONDS, "that was no flood"
    assert all(refused[name] <= sent[name] + STRANGERS * (name == "rx_foreign") for name in frames), (refused, sent)
    assert sum(sent.values()) - ring["dropped"] <= sum(refused.values()), (refused, sent, ring)
    assert all(refused[name] > 0 for name in frames), refused
