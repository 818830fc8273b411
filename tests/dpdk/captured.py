"""capture.c between two capture files, and the frames of another host that the tests give it."""
import pathlib
import subprocess

import frames
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build/san/dpdk/capture"
OURS, OTHERS = "02:70:63:61:70:00", "02:00:00:00:00:09"
PAYLOADS = [0, 1, 13, 500, 512, 1001, 1408]  # of what capture.c sends, as COPY and then as REF


class Run:
    """capture.c over these frames: what it took, counted and said, and what it sent."""

    def __init__(self, folder, heard, ours="10.0.0.5/24", other="10.0.0.9", vlan=0):
        into, out = folder / "in.pcap", folder / "out.pcap"
        wrpcap(str(into), heard, linktype=1)
        out.write_bytes(b"")
        done = subprocess.run([PROGRAM, into, out, ours, other, str(vlan)], cwd=ROOT, capture_output=True, text=True,
                              timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        said = [line.split(" ", 1) for line in done.stdout.splitlines()]
        self.took = [bytes.fromhex(text) for word, text in said if word == "took"]
        self.events = [text for word, text in said if word == "event"]
        (counted,) = [text for word, text in said if word == "counted"]
        self.frames, self.foreign, self.truncated, self.copied = map(int, counted.split())
        self.sent = frames.frames_in(out)


def ether(**fields):
    return Ether(**{"src": OTHERS, "dst": OURS, **fields})


def udp(**fields):
    return UDP(**{"sport": 7000, "dport": 5000, **fields})


def padded(frame):
    return Raw(bytes(frame).ljust(frames.LEAST, b"\0"))
