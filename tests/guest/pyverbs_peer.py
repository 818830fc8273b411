"""Debian's pyverbs as the peer of our link (tests/verbs/peer.c): it does all without our code. Runs in the guest.

    pyverbs_peer.py PEER_PROGRAM       the link on rxe0, pyverbs on rxe1
"""
import ipaddress
import struct
import subprocess
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT, KEY, GRH, MTU, ROOM, RECEIVES = 1, 0x1234567, 40, 1472, 8192, 8
ADDRESS = struct.Struct(">cBBBIIHH16s")  # R, version, UD, Ethernet, queue pair, key, LID, MTU, GID


def entry_of(context, address):
    """Where in the port's table of GIDs."""
    return next(i for i in range(16) if ipaddress.IPv6Address(str(context.query_gid(PORT, i))) == address)


class Other:
    """A UD queue pair by pyverbs."""

    def __init__(self, device, ip):
        self.context = Context(name=device)
        self.pd, self.cq = PD(self.context), CQ(self.context, 100)
        cap = QPCap(max_send_wr=10, max_recv_wr=RECEIVES, max_send_sge=1, max_recv_sge=1)
        attr = QPAttr(port_num=PORT)
        attr.qkey = KEY
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=cap), attr)
        self.gid = ipaddress.IPv6Address(f"::ffff:{ip}")
        self.index = entry_of(self.context, self.gid)
        self.out, self.into = (MR(self.pd, ROOM, e.IBV_ACCESS_LOCAL_WRITE) for _ in range(2))
        self.post()

    def post(self):
        self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.into.buf, ROOM, self.into.lkey)], wr_id=1))

    def address(self):
        return ADDRESS.pack(b"R", 1, 0, 1, self.qp.qp_num, KEY, 0, 4096, self.gid.packed)

    def completion(self, what):
        limit = time.monotonic() + 5
        while time.monotonic() < limit:
            count, found = self.cq.poll(1)
            if count:
                assert found[0].status == e.IBV_WC_SUCCESS, (what, found[0].status)
                return found[0]
        raise AssertionError(f"no completion: {what}")

    def reach(self, gid_of_peer):
        route = GlobalRoute(dgid=gid_of_peer, sgid_index=self.index)
        self.ah = AH(self.pd, attr=AHAttr(gr=route, is_global=1, port_num=PORT))

    def send(self, data, number, key):
        if data:
            self.out.write(data, len(data))
        pieces = [SGE(self.out.buf, len(data), self.out.lkey)]  # it insists on one, be it empty
        request = SendWR(num_sge=1, sg=pieces, opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED)
        request.set_wr_ud(self.ah, number, key)
        self.qp.post_send(request)
        self.completion("send")

    def receive(self):
        done = self.completion("receive")
        data = self.into.read(done.byte_len, 0)
        self.post()
        return data[:GRH], data[GRH:]


def main():
    with subprocess.Popen([sys.argv[1], "rxe0", str(MTU)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          bufsize=1) as link:
        def ask(line):
            link.stdin.write(line + "\n")
            return link.stdout.readline().strip()

        word, _, told = link.stdout.readline().partition(" ")
        assert word == "addr", (word, told)
        mark, version, kind, ethernet, number, key, lid, mtu, gid = ADDRESS.unpack(bytes.fromhex(told))
        assert (mark, version, kind, ethernet, lid, mtu) == (b"R", 1, 0, 1, 0, MTU), told
        assert ipaddress.IPv6Address(gid).ipv4_mapped == ipaddress.IPv4Address("10.7.0.1")

        other = Other("rxe1", "10.7.0.2")
        context = Context(name="rxe0")  # for its GID as pyverbs has it
        other.reach(context.query_gid(PORT, entry_of(context, ipaddress.IPv6Address(gid))))
        assert ask("peer " + other.address().hex()) == "ok"

        for length in (1, 64, 256, 257, MTU):  # in the request, and from a buffer
            frame = bytes((i * 7 + length) % 256 for i in range(length))
            assert ask("send " + frame.hex()) == "sent"
            header, data = other.receive()
            assert data == frame, length
            assert header[20] == 0x45, header.hex()
            assert header[32:40] == bytes([10, 7, 0, 1, 10, 7, 0, 2]), header.hex()  # an IPv4 header: from, to

        def send_and_ask(data, key=key):
            other.send(data, number, key)
            return ask("receive")

        for length in (1, 64, 1000, MTU):
            frame = bytes((i * 13 + length) % 256 for i in range(length))
            assert send_and_ask(frame) == "frame " + frame.hex(), length
        assert ask("stats") == "stats 0 0"
        assert send_and_ask(b"x" * (MTU + 1)) == "none"  # longer than was agreed
        assert send_and_ask(b"") == "none"
        assert ask("stats") == "stats 1 1"
        assert send_and_ask(b"wrong key", key ^ 1) == "none"
        assert ask("stats") == "stats 1 1"  # the device dropped it
        assert send_and_ask(b"well") == "frame " + b"well".hex()
        link.stdin.close()
        assert link.wait(20) == 0
    print("pyverbs and our link understand each other")


if __name__ == "__main__":
    main()
