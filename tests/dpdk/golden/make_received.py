"""Makes received.pcap: frames that a Linux kernel sends to 10.0.0.5 at the MAC of DPDK's first pcap port.

They are caught at the other end of a veth, in a network namespace of this process's own (root). The kernel's address is
10.0.0.9; nobody answers its ARP, the entry is set by hand once the first request was seen.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

ETHTOOL_STXCSUM, SIOCETHTOOL, IP_MTU_DISCOVER = 0x17, 0x8946, 10


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def make_cable() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for scope in ("all", "default"):
        Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").write_text("1")
    run("ip", "link", "add", "name", "kern", "type", "veth", "peer", "name", "wire")
    run("ip", "link", "set", "dev", "kern", "address", "02:00:00:00:00:09")
    run("ip", "addr", "add", "10.0.0.9/24", "dev", "kern")
    run("ip", "link", "set", "dev", "kern", "up")
    run("ip", "link", "set", "dev", "wire", "up")
    value = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_STXCSUM, 0))
    with socket.socket() as s:
        fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sP", b"kern", ctypes.addressof(value)))


def send_all() -> None:
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.bind(("10.0.0.9", 7000))
    u.sendto(b"asks", ("10.0.0.5", 5000))
    time.sleep(0.1)
    run("ip", "neigh", "replace", "10.0.0.5", "lladdr", "02:70:63:61:70:00", "dev", "kern")
    time.sleep(0.1)
    u.sendto(b"x", ("10.0.0.5", 5000))
    u.sendto(bytes(range(256)) * 4, ("10.0.0.5", 5001))
    u.sendto(b"elsewhere", ("10.0.0.5", 5002))
    u.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, b"\x01\x01\x01\x00")
    u.sendto(b"with options", ("10.0.0.5", 5000))
    u.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, b"")
    t = socket.socket()
    t.setblocking(False)
    t.connect_ex(("10.0.0.5", 5000))
    u.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, 0)
    u.sendto(b"f" * 2000, ("10.0.0.5", 5000))  # two fragments


def caught(s: socket.socket) -> list[bytes]:
    frames = []
    s.settimeout(0.3)
    while True:
        try:
            frames.append(s.recv(65535))
        except TimeoutError:
            return frames


def main(path: str) -> None:
    make_cable()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as s:
        s.bind(("wire", 0))
        time.sleep(0.3)
        send_all()
        out = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
        for i, f in enumerate(caught(s)):
            out += struct.pack("<IIII", i, 0, len(f), len(f)) + f
    Path(path).write_bytes(out)


if __name__ == "__main__":
    main(sys.argv[1])
