"""What the network laboratory needs from the kernel and no small tool gives: sockets inside a namespace, a packet
filter in eBPF, one interface feature, and bridges without a firewall.

The filter is assembled here, instruction by instruction, because neither a BPF compiler nor the traffic-control
action "drop" can be taken for granted. It runs on ingress of one port of the switch, so it sees what one rank sends,
and looks at UDP only: ARP, TCP and everything else pass. Settings and counters stand per destination rank in two BPF
maps, so a test changes a probability while traffic flows, without a moment in which no filter or no counter is there.
"""

import contextlib
import ctypes
import os
import platform
import socket
import struct
import threading

_libc = ctypes.CDLL(None, use_errno=True)
_BPF_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}


def _check(result, what):
    if result < 0:
        err = ctypes.get_errno()
        raise OSError(err, f"{what}: {os.strerror(err)}")
    return result


def in_namespace(path, function):
    """Run function() on a thread that is in the network namespace at path; sockets it opens stay there."""
    outcome = {}

    def body():
        try:
            with open(path) as ns:
                _check(_libc.setns(ns.fileno(), 0x40000000), f"cannot enter network namespace {path}")
            outcome["value"] = function()
        except BaseException as error:  # handed to the caller, who is on another thread
            outcome["error"] = error

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


def _bpf(command, attr):
    buffer = ctypes.create_string_buffer(attr.ljust(128, b"\0"), 128)
    number = _BPF_CALL.get(platform.machine())
    if number is None:
        raise OSError(38, f"the number of the bpf system call on {platform.machine()} is not known here")
    return _libc.syscall(number, command, buffer, 128), buffer


class Array:
    """A BPF array map of `entries` values of `size` bytes, keyed 0..entries-1."""

    def __init__(self, entries, size):
        result, _ = _bpf(0, struct.pack("IIIII", 2, 4, size, entries, 0))
        self.fd = _check(result, "bpf(BPF_MAP_CREATE)")
        self._key = ctypes.create_string_buffer(4)
        self._value = ctypes.create_string_buffer(size)

    def _element(self, command, index, what):
        self._key.raw = struct.pack("I", index)
        attr = struct.pack("IIQQQ", self.fd, 0, ctypes.addressof(self._key), ctypes.addressof(self._value), 0)
        _check(_bpf(command, attr)[0], what)

    def read(self, index):
        self._element(1, index, "bpf(BPF_MAP_LOOKUP_ELEM)")
        return self._value.raw

    def write(self, index, value):
        self._value.raw = value
        self._element(2, index, "bpf(BPF_MAP_UPDATE_ELEM)")

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Assembler:
    """eBPF, only what the filter needs. Jumps name labels; op(code, dst, src, off, imm) is one instruction."""

    def __init__(self):
        self.code, self.labels = [], {}

    def op(self, code, dst=0, src=0, off=0, imm=0):
        self.code.append((code, dst, src, off, imm))

    def label(self, name):
        self.labels[name] = len(self.code)

    def load_map(self, register, array):
        self.op(0x18, register, 1, 0, array.fd)
        self.op(0)

    def load_packet(self, size, offset, index=None):  # r0 = packet[offset (+ register index)], host byte order
        width = {1: 0x10, 2: 0x08, 4: 0x00}[size]
        self.op((0x20 if index is None else 0x40) | width, 0, index or 0, 0, offset)

    def binary(self):
        out = b""
        for at, (code, dst, src, off, imm) in enumerate(self.code):
            if isinstance(off, str):
                off = self.labels[off] - at - 1
            registers = dst | src << 4 if struct.pack("=H", 1) == b"\1\0" else dst << 4 | src
            out += struct.pack("=BBhi", code, registers, off, imm)
        return out


# Settings of one destination: threshold of a 32-bit random number, ports, longest IP packet (0 = any), whether the
# ports are the source's.
SETTINGS = struct.Struct("=QIIII")
# Counters of one destination: packets seen, dropped by chance, dropped for their length.
COUNTERS = struct.Struct("=QQQ")


def filter_program(settings, counters):
    """Load the filter; returns its descriptor."""
    a = _Assembler()
    mov, mov_imm, jmp, je, jne, jge, jgt, jle = 0xBF, 0xB7, 0x05, 0x15, 0x55, 0x3D, 0x2D, 0xBD
    a.op(mov, 6, 1)
    a.load_packet(2, 12)
    a.op(je, 0, 0, "ipv4", 0x0800)
    a.op(jne, 0, 0, "pass", 0x86DD)

    a.load_packet(2, 52)  # IPv6: the last 16 bits of the destination are its rank + 1
    a.op(mov, 8, 0)
    a.load_packet(1, 20)
    a.op(je, 0, 0, "ipv6 fragment", 44)
    a.op(jne, 0, 0, "pass", socket.IPPROTO_UDP)
    a.load_packet(2, 56)
    a.op(mov, 9, 0)
    a.load_packet(2, 54)
    a.op(0x63, 10, 0, -8)
    a.op(jmp, 0, 0, "destination")
    a.label("ipv6 fragment")
    a.load_packet(1, 54)
    a.op(jne, 0, 0, "pass", socket.IPPROTO_UDP)
    a.op(jmp, 0, 0, "no port")

    a.label("ipv4")
    a.load_packet(2, 32)  # IPv4: likewise
    a.op(mov, 8, 0)
    a.load_packet(1, 23)
    a.op(jne, 0, 0, "pass", socket.IPPROTO_UDP)
    a.load_packet(2, 20)
    a.op(0x57, 0, 0, 0, 0x1FFF)
    a.op(jne, 0, 0, "no port", 0)
    a.load_packet(1, 14)
    a.op(0x57, 0, 0, 0, 15)
    a.op(0x67, 0, 0, 0, 2)
    a.op(mov, 7, 0)
    a.load_packet(2, 16, index=7)
    a.op(mov, 9, 0)
    a.load_packet(2, 14, index=7)
    a.op(0x63, 10, 0, -8)
    a.op(jmp, 0, 0, "destination")
    a.label("no port")  # a later fragment: it belongs to whatever the ports select
    a.op(mov_imm, 9, 0, 0, -1)

    a.label("destination")
    a.op(0x07, 8, 0, 0, -1)
    a.op(0x63, 10, 8, -4)
    for array, keep in ((settings, 7), (counters, 8)):
        a.load_map(1, array)
        a.op(mov, 2, 10)
        a.op(0x07, 2, 0, 0, -4)
        a.op(0x85, imm=1)  # bpf_map_lookup_elem
        a.op(je, 0, 0, "pass", 0)
        a.op(mov, keep, 0)

    a.op(je, 9, 0, "selected", -1)
    a.op(0x61, 1, 7, 20)
    a.op(je, 1, 0, "ports", 0)
    a.op(0x61, 9, 10, -8)
    a.label("ports")
    a.op(0x61, 1, 7, 8)
    a.op(jgt, 1, 9, "pass")
    a.op(0x61, 1, 7, 12)
    a.op(jgt, 9, 1, "pass")
    a.label("selected")
    a.op(mov_imm, 1, imm=1)
    a.op(0xDB, 8, 1, 0)

    a.op(0x61, 1, 7, 16)
    a.op(je, 1, 0, "chance", 0)
    a.op(0x61, 2, 6, 0)  # __sk_buff.len, with 14 bytes of Ethernet
    a.op(0x07, 2, 0, 0, -14)
    a.op(jle, 2, 1, "chance")
    a.op(mov_imm, 1, imm=1)
    a.op(0xDB, 8, 1, 16)
    a.op(jmp, 0, 0, "drop")

    a.label("chance")
    a.op(0x79, 9, 7, 0)
    a.op(je, 9, 0, "pass", 0)
    a.op(0x85, imm=7)  # bpf_get_prandom_u32
    a.op(jge, 0, 9, "pass")
    a.op(mov_imm, 1, imm=1)
    a.op(0xDB, 8, 1, 8)
    a.label("drop")
    a.op(mov_imm, 0, imm=2)  # TC_ACT_SHOT
    a.op(0x95)
    a.label("pass")
    a.op(mov_imm, 0, imm=0)  # TC_ACT_OK
    a.op(0x95)

    code = a.binary()
    text = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    log = ctypes.create_string_buffer(65536)
    attr = struct.pack(
        "=IIQQIIQII",
        3,
        len(code) // 8,
        ctypes.addressof(text),
        ctypes.addressof(licence),
        1,
        len(log),
        ctypes.addressof(log),
        0,
        0,
    )
    result, _ = _bpf(5, attr)
    if result < 0:
        err = ctypes.get_errno()
        raise OSError(err, f"bpf(BPF_PROG_LOAD): {os.strerror(err)}\n{log.value.decode(errors='replace')[-2000:]}")
    return result


def attach_ingress(program, interface):
    """Attach a loaded program to the clsact ingress hook of an interface of this thread's namespace."""

    def attribute(kind, value):
        return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)

    options = attribute(6, struct.pack("=I", program)) + attribute(7, b"netlab\0") + attribute(8, struct.pack("=I", 1))
    body = struct.pack("=BxxxiIII", 0, socket.if_nametoindex(interface), 1, 0xFFFFFFF2, 1 << 16 | socket.htons(3))
    body += attribute(1, b"bpf\0") + attribute(2, options)
    message = struct.pack("=IHHII", 16 + len(body), 44, 0x1 | 0x4 | 0x400, 1, 0) + body  # REQUEST | ACK | CREATE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.send(message)
        answer = netlink.recv(4096)
    error = struct.unpack_from("=i", answer, 16)[0]
    if error:
        raise OSError(-error, f"cannot attach the filter to {interface}: {os.strerror(-error)}")


def _ethtool(control, interface, request):
    import fcntl

    buffer = ctypes.create_string_buffer(bytes(request), len(request))
    fcntl.ioctl(control, 0x8946, struct.pack("16sQ16x", interface.encode(), ctypes.addressof(buffer)))
    return buffer.raw


def set_feature(interface, name, on):
    """Turn a feature, as `ethtool -k` names it, on or off, in this thread's namespace; returns what it was."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        reply = _ethtool(control, interface, struct.pack("=IIQI", 0x37, 0, 1 << 4, 0))  # ETHTOOL_GSSET_INFO
        count = struct.unpack_from("=I", reply, 16)[0]
        reply = _ethtool(control, interface, struct.pack("=III", 0x1B, 4, count) + bytes(32 * count))  # GSTRINGS
        names = [reply[12 + 32 * i : 44 + 32 * i].split(b"\0")[0].decode() for i in range(count)]
        if name not in names:
            raise ValueError(f"{interface} has no feature {name}; it has {', '.join(filter(None, names))}")
        bit, words = names.index(name), (count + 31) // 32
        # ETHTOOL_GFEATURES: per 32 features available, requested, active, never changed
        reply = _ethtool(control, interface, struct.pack("=II", 0x3A, words) + bytes(16 * words))
        active = struct.unpack_from("=I", reply, 8 + 16 * (bit // 32) + 8)[0] >> bit % 32 & 1
        wanted = [0] * (2 * words)
        wanted[2 * (bit // 32)] = 1 << bit % 32
        wanted[2 * (bit // 32) + 1] = int(on) << bit % 32
        _ethtool(control, interface, struct.pack(f"=II{2 * words}I", 0x3B, words, *wanted))
        return bool(active)


def bridges_pass_all():
    """No firewall on the bridges of this namespace: one looks into IP headers and drops those that are malformed."""
    for table in ("ip", "ip6", "arp"):
        path = f"/proc/sys/net/bridge/bridge-nf-call-{table}tables"
        with contextlib.suppress(FileNotFoundError), open(path, "w") as file:
            file.write("0")
