"""Judges frames as an independent reader sees them: scapy takes them apart and makes every sum and length anew."""
import socket
import struct

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.utils import PcapReader

LEAST = 60  # of a frame on Ethernet, without the sum that devices add
HEAD = 64  # of the protocol, docs/protocol.md and native/protocol/wire.h


def frames_in(path) -> list[Ether]:
    with PcapReader(str(path)) as reader:
        return list(reader)


def made_anew(packet, *fields):
    """The same packet with these fields left to scapy."""
    copy = packet.copy()
    for field in fields:
        delattr(copy, field)
    return type(packet)(bytes(copy))


def check_datagram(frame: Ether) -> bytes:
    """A frame with UDP over IPv4, right in every field of its headers; its payload."""
    ip, udp = frame[IP], frame[UDP]
    raw = bytes(frame)
    assert (frame.type, ip.version, ip.ihl, ip.proto) == (0x0800, 4, 5, 17)
    assert ip.chksum == made_anew(ip, "chksum").chksum
    assert (ip.frag, str(ip.flags)) == (0, "DF")
    assert ip.ttl > 1
    assert ip.len == 20 + udp.len
    whole = 14 + ip.len
    assert len(raw) == max(whole, LEAST)
    assert not any(raw[whole:])  # padding
    if udp.chksum:
        summed = ip.copy()
        del summed[UDP].chksum
        assert udp.chksum == IP(bytes(summed))[UDP].chksum
    return raw[42:whole]


def check_datagram6(frame: Ether) -> bytes:
    """A frame with UDP over IPv6, right in every field of its headers, the sum that IPv6 demands too; its payload."""
    ip, udp = frame[IPv6], frame[UDP]
    raw = bytes(frame)
    assert (frame.type, ip.version, ip.tc, ip.fl, ip.nh) == (0x86DD, 6, 0, 0, 17)
    assert ip.hlim > 1
    assert ip.plen == udp.len
    whole = 54 + ip.plen
    assert len(raw) == max(whole, LEAST)
    assert not any(raw[whole:])
    summed = IPv6(bytes(ip)[: 40 + ip.plen])
    assert udp.chksum
    assert udp.chksum == made_anew_within(summed, UDP).chksum
    return raw[62:whole]


def made_anew_within(ip, layer):
    """That layer of the packet, its sum left to scapy."""
    copy = ip.copy()
    field = "cksum" if "cksum" in copy[layer].fields else "chksum"
    delattr(copy[layer], field)
    return type(ip)(bytes(copy))[layer]


def check_nd(frame: Ether, kind, **wanted):
    """A neighbour's question (ICMPv6ND_NS) or answer (ICMPv6ND_NA), with the sender's MAC in it."""
    ip, nd = frame[IPv6], frame[kind]
    option = frame[ICMPv6NDOptSrcLLAddr if kind is ICMPv6ND_NS else ICMPv6NDOptDstLLAddr]
    assert (ip.version, ip.nh, ip.plen, ip.hlim, nd.code) == (6, 58, 32, 255, 0)
    assert len(bytes(frame)) == 86
    assert nd.cksum == made_anew_within(ip, kind).cksum
    assert (option.len, option.lladdr) == (1, frame.src)
    if ip.dst.startswith("ff"):  # RFC 2464, 7
        assert frame.dst == "33:33:" + socket.inet_pton(socket.AF_INET6, ip.dst)[12:].hex(":")
    assert {name: getattr(nd, name) for name in wanted} == wanted
    return nd


def untagged(frame: Ether, vlan: int) -> Ether:
    """The same frame without its one tag, which is this VLAN's and has no priority."""
    tag = frame[Dot1Q]
    assert (frame.type, tag.vlan, tag.prio, tag.dei) == (0x8100, vlan, 0, 0)
    assert Dot1Q not in tag.payload
    raw = bytes(frame)
    return Ether((raw[:12] + raw[16:]).ljust(LEAST, b"\0"))


def check_arp(frame: Ether, op: int, **wanted) -> ARP:
    arp = frame[ARP]
    assert (frame.type, arp.hwtype, arp.ptype, arp.hwlen, arp.plen, arp.op) == (0x0806, 1, 0x0800, 6, 4, op)
    assert arp.hwsrc == frame.src
    raw = bytes(frame)
    assert len(raw) == LEAST
    assert not any(raw[42:])
    assert {name: getattr(arp, name) for name in wanted} == wanted
    return arp


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32C = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def check_protocol(payload: bytes) -> tuple[int, int, int]:
    """Our header as it is documented, its seal over payload too; type, source and destination."""
    assert len(payload) >= HEAD
    magic, version, kind = struct.unpack_from(">2sBB", payload)
    assert (magic, version) == (b"TB", 1)
    assert 1 <= kind <= 8
    source, destination = struct.unpack_from(">HH", payload, 24)
    check, = struct.unpack_from(">I", payload, 60)
    assert check == crc32c(payload[:60] + payload[HEAD:])
    return kind, source, destination
