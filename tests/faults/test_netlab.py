"""The network laboratory itself, with plain UDP sockets: what it claims to drop it drops, counts, and nothing else."""
import contextlib
import errno
import socket
import struct
import subprocess
import sys
import threading
import time

import netlab_host
import netlab_kernel
import pytest

PORT = 5000


@pytest.fixture
def pair(lab):
    """A laboratory of three, and open(a, b, ip) -> (sending socket of a, receiving socket of b, b's address)."""
    net = lab(3)
    opened = []

    def open_pair(a=0, b=1, ip=4, port=PORT):
        family = socket.AF_INET if ip == 4 else socket.AF_INET6
        tx, rx = net.socket(a, family), net.socket(b, family)
        opened.extend((tx, rx))
        rx.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE if hasattr(socket, "SO_RCVBUFFORCE") else 33, 8 << 20)
        address = (net.ip4(b) if ip == 4 else net.ip6(b), port)
        rx.bind(address)
        rx.settimeout(0.5)
        return tx, rx, address

    yield net, open_pair
    for one in opened:
        one.close()


def drain(rx):
    """Payloads that are in the socket now: veth and bridge deliver before sendto returns, or within this time-out."""
    got = []
    rx.settimeout(0.2)
    while True:
        try:
            got.append(rx.recv(65536))
        except TimeoutError:
            return got


def send_numbered(tx, address, n, size=64):
    for i in range(n):
        tx.sendto(i.to_bytes(4, "big").ljust(size, b"."), address)


@pytest.mark.parametrize("ip", [4, 6])
def test_lab__every_pair_reaches_every_other(lab, ip):
    net = lab(4)
    for a in range(4):
        for b in range(4):
            if a == b:
                continue
            family = socket.AF_INET if ip == 4 else socket.AF_INET6
            with net.socket(a, family) as tx, net.socket(b, family) as rx:
                rx.bind((net.ip4(b) if ip == 4 else net.ip6(b), PORT))
                rx.settimeout(2)
                tx.sendto(bytes([a]), (net.ip4(b) if ip == 4 else net.ip6(b), PORT))
                payload, source = rx.recvfrom(10)
                assert payload == bytes([a])
                assert source[0] == (net.ip4(a) if ip == 4 else net.ip6(a))


@pytest.mark.parametrize("ip", [4, 6])
@pytest.mark.parametrize("probability", [0.01, 0.05, 0.5])
def test_loss__is_within_five_sigma_and_counted_exactly(pair, ip, probability):
    net, open_pair = pair
    tx, rx, address = open_pair(ip=ip)
    n = 8000
    net.loss(0, probability)
    send_numbered(tx, address, n)
    got = drain(rx)
    seen, dropped, too_long = net.counters(0)
    assert (seen, too_long) == (n, 0)
    assert len(got) == n - dropped
    assert len(set(got)) == len(got)
    sigma = (n * probability * (1 - probability)) ** 0.5
    assert abs(dropped - n * probability) < 5 * sigma
    assert net.drops(0) == net.drops(0, 1) == dropped
    assert net.drops(0, 2) == net.drops(1) == 0


def test_loss__can_be_lifted_while_traffic_flows(pair):
    net, open_pair = pair
    tx, rx, address = open_pair()
    net.loss(0, 1.0)
    send_numbered(tx, address, 100)
    assert net.drops(0) == 100
    assert drain(rx) == []
    net.loss(0, 0.0)
    send_numbered(tx, address, 100)
    assert net.drops(0) == 100
    assert len(drain(rx)) == 100


def test_loss__leaves_tcp_and_arp_alone(pair):
    net, _ = pair
    for rank in range(3):
        net.loss(rank, 1.0)
    with net.socket(1, kind=socket.SOCK_STREAM) as listener, net.socket(0, kind=socket.SOCK_STREAM) as client:
        listener.bind((net.ip4(1), PORT))
        listener.listen()
        client.settimeout(2)
        client.connect((net.ip4(1), PORT))  # needs ARP, then three packets
        server, _ = listener.accept()
        with server:
            client.sendall(b"x" * 100000)
            client.shutdown(socket.SHUT_WR)
            server.settimeout(2)
            got = 0
            while part := server.recv(65536):
                got += len(part)
    assert got == 100000
    assert net.drops(0) == 0


@pytest.mark.parametrize("ip", [4, 6])
def test_loss__selects_ports(pair, ip):
    net, open_pair = pair
    tx, rx, address = open_pair(ip=ip)
    _, other_rx, other = open_pair(ip=ip, port=PORT + 1)
    net.loss(0, 1.0, ports=(PORT + 1, PORT + 7))
    send_numbered(tx, address, 50)
    send_numbered(tx, other, 50)
    assert len(drain(rx)) == 50
    assert drain(other_rx) == []
    assert net.counters(0)[:2] == (50, 50)


@pytest.mark.parametrize("ip", [4, 6])
def test_loss__takes_single_datagrams_out_of_a_segmented_batch(pair, ip):
    net, open_pair = pair
    tx, rx, address = open_pair(ip=ip)
    net.loss(0, 0.2)
    tx.setsockopt(socket.IPPROTO_UDP, 103, 1000)  # UDP_SEGMENT
    batch = b"".join(i.to_bytes(4, "big").ljust(1000, b".") for i in range(40))
    for _ in range(50):
        tx.sendto(batch, address)
    got = drain(rx)
    seen, dropped, _ = net.counters(0)
    assert seen == 2000
    assert len(got) == 2000 - dropped
    assert {len(g) for g in got} == {1000}
    assert abs(dropped - 400) < 5 * (2000 * 0.2 * 0.8) ** 0.5


@pytest.mark.parametrize("ip", [4, 6])
def test_block__is_one_direction_of_one_pair(pair, ip):
    net, open_pair = pair
    net.block(0, 1)
    reached = {}
    for a, b in [(0, 1), (1, 0), (0, 2), (2, 1)]:
        tx, rx, address = open_pair(a, b, ip=ip, port=PORT + 10 * a + b)
        send_numbered(tx, address, 10)
        reached[a, b] = len(drain(rx))
    assert reached == {(0, 1): 0, (1, 0): 10, (0, 2): 10, (2, 1): 10}
    assert net.drops(0, 1) == 10
    assert net.drops(0) == 10


def test_blackhole__is_both_directions_and_ends(pair):
    net, open_pair = pair
    pairs = {(a, b): open_pair(a, b, port=PORT + 10 * a + b) for a, b in [(0, 1), (1, 0), (0, 2), (2, 0)]}
    net.blackhole(1)
    for tx, _, address in pairs.values():
        send_numbered(tx, address, 10)
    assert {k: len(drain(rx)) for k, (_, rx, _) in pairs.items()} == {(0, 1): 0, (1, 0): 0, (0, 2): 10, (2, 0): 10}
    assert (net.drops(0), net.drops(1), net.drops(2)) == (10, 10, 0)
    net.blackhole(1, on=False)
    for tx, _, address in pairs.values():
        send_numbered(tx, address, 10)
    assert {len(drain(rx)) for _, rx, _ in pairs.values()} == {10}


@pytest.mark.parametrize("ip", [4, 6])
def test_mtu__of_the_lab_is_the_longest_whole_datagram(lab, ip):
    net = lab(2, mtu=9000)
    family, headers = (socket.AF_INET, 28) if ip == 4 else (socket.AF_INET6, 48)
    address = (net.ip4(1) if ip == 4 else net.ip6(1), PORT)
    with net.socket(0, family) as tx, net.socket(1, family) as rx:
        rx.bind(address)
        rx.settimeout(2)
        if ip == 4:
            tx.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: refuse to fragment
        else:
            tx.setsockopt(socket.IPPROTO_IPV6, 23, 2)
        tx.sendto(b"x" * (9000 - headers), address)
        assert len(rx.recv(65536)) == 9000 - headers
        with pytest.raises(OSError, match="Message too long") as refused:
            tx.sendto(b"x" * (9000 - headers + 1), address)
        assert refused.value.errno == errno.EMSGSIZE


def test_mtu__of_one_link_stops_longer_datagrams_towards_it(pair):
    net, open_pair = pair
    tx, rx, address = open_pair(0, 1)
    net.mtu(1, 1300)
    tx.sendto(b"x" * 1400, address)
    tx.sendto(b"x" * 1272, address)
    assert [len(g) for g in drain(rx)] == [1272]


@pytest.mark.parametrize(("ip", "headers"), [(4, 28), (6, 48)])
def test_path_mtu__drops_what_is_longer_and_counts_it(pair, ip, headers):
    net, open_pair = pair
    tx, rx, address = open_pair(ip=ip)
    net.path_mtu(0, 1300)
    for size in (1300 - headers, 1300 - headers + 1, 1472 if ip == 4 else 1452, 100):
        tx.sendto(b"x" * size, address)
    assert [len(g) for g in drain(rx)] == [1300 - headers, 100]
    assert net.counters(0) == (4, 0, 2)
    net.path_mtu(0, 0)
    tx.sendto(b"x" * 1400, address)
    assert len(drain(rx)) == 1


@pytest.mark.parametrize("ip", [4, 6])
def test_loss__counts_fragments_as_packets(pair, ip):
    net, open_pair = pair
    tx, rx, address = open_pair(ip=ip)
    net.loss(0, 1.0)
    tx.sendto(b"x" * 4000, address)  # three fragments
    assert net.counters(0)[:2] == (3, 3)
    assert drain(rx) == []


@pytest.mark.parametrize("direction", ["in", "out"])
def test_rate__is_kept_and_the_queue_overflows_in_the_switch(pair, direction):
    net, open_pair = pair
    tx, rx, address = open_pair()
    bits, size, n = 80e6, 1000, 3000
    net.rate(1 if direction == "in" else 0, bits, 200_000, direction=direction)
    tx.setsockopt(socket.SOL_SOCKET, 32, 8 << 20)  # SO_SNDBUFFORCE
    got = []
    reader = threading.Thread(target=lambda: got.extend((time.monotonic(), p) for p in drain_until(rx, 2.0)))
    reader.start()
    began = time.monotonic()
    sent, refused = 0, set()
    while time.monotonic() - began < 1.0:
        try:
            tx.sendto(b"x" * size, address)
            sent += 1
        except OSError as error:  # the rank's own queue is full
            refused.add((direction, error.errno))
    reader.join()
    assert refused <= {("out", errno.ENOBUFS)}
    received_bits = len(got) * (size + 42) * 8
    assert 0.5 * bits < received_bits < 1.3 * bits + 200_000 * 8
    if direction == "in":
        assert net.queue_drops(1) > 0
        assert sent > len(got)
    net.rate(1 if direction == "in" else 0, 0, direction=direction)
    send_numbered(tx, address, n)
    assert len(drain(rx)) == n


def drain_until(rx, seconds):
    end = time.monotonic() + seconds
    rx.settimeout(0.3)
    while time.monotonic() < end:
        try:
            yield rx.recv(65536)
        except TimeoutError:
            return


def test_run__is_in_the_namespace_with_its_own_pid_and_environment(lab):
    net = lab(2)
    script = "import os, socket; print(os.getpid(), os.environ['LAB_WORD'], [n for _, n in socket.if_nameindex()])"
    process = net.run(1, [sys.executable, "-c", script], env={"LAB_WORD": "here"}, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert out.strip() == f"{process.pid} here ['lo', 'eth0']"


def test_run__as_another_user_holds_no_network_capability(lab):
    net = lab(1)
    script = ("import os, socket\nprint(os.getuid())\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
              "try:\n  s.setsockopt(socket.SOL_SOCKET, 33, 1 << 30)\nexcept PermissionError:\n  print('refused')\n"
              "try:\n  open('/proc/sys/kernel/hostname', 'w')\nexcept PermissionError:\n  print('refused')\n")
    process = net.run(0, [sys.executable, "-c", script], user="nobody", stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=10)
    import pwd
    assert out.split() == [str(pwd.getpwnam("nobody").pw_uid), "refused", "refused"]


def test_lab__says_what_is_wrong_with_its_arguments(lab):
    with pytest.raises(ValueError, match="1 to 1024 ranks, not 0"):
        lab(0)
    net = lab(2)
    with pytest.raises(ValueError, match=r"rank 2 is outside 0\.\.1"):
        net.loss(2, 0.1)
    with pytest.raises(ValueError, match=r"lies in 0\.\.1, not 2"):
        net.loss(0, 2)
    with pytest.raises(ValueError, match="no feature warp"):
        net.feature(0, "warp", True)


def test_management__reaches_ranks_whose_data_interface_has_no_address(lab):
    net = lab(3, management=True, bare=(1, 2))
    for a, b in ((0, 1), (1, 2), (2, 0)):
        with net.socket(a) as tx, net.socket(b) as rx:
            rx.bind((net.management(b), PORT))
            rx.settimeout(2)
            tx.sendto(b"x", (net.management(b), PORT))
            assert rx.recvfrom(10)[1][0] == net.management(a)
    assert address_count(net, "eth0") == [3, 0, 0]  # IPv4, IPv6, link-local
    assert address_count(net, "mgmt0") == [2, 2, 2]


def address_count(net, device):
    shown = [netlab_host.ip("-n", net.namespace(rank), "-o", "address", "show", "dev", device) for rank in range(net.n)]
    return [len(text.splitlines()) for text in shown]


@pytest.fixture
def driver(lab):
    """A laboratory of two, and a packet socket on the bare eth0 of rank 1: it stands for a driver in user space."""
    net = lab(2, bare=(1,))

    def build():
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        one.bind(("eth0", 0))
        one.settimeout(0.3)
        return one

    with netlab_kernel.in_namespace(f"{netlab_host.NETNS}/{net.namespace(1)}", build) as one:
        yield net, one


def udp_frame(net, payload=b"x"):
    """From rank 1 to rank 0, to whatever station."""
    udp = struct.pack("!HHHH", PORT, PORT, 8 + len(payload), 0) + payload
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0)
    return b"\xff" * 6 + b"\2\0\0\0\0\1\x08\0" + ip + socket.inet_aton(net.ip4(1)) + socket.inet_aton(net.ip4(0)) + udp


def test_bare__frames_of_its_driver_pass_the_filter(driver):
    net, one = driver
    net.loss(1, 1.0)
    one.send(udp_frame(net))
    assert net.counters(1, 0) == (1, 1, 0)
    net.calm()
    one.send(udp_frame(net))
    assert net.counters(1, 0) == (2, 1, 0)


def test_bare__kernel_says_nothing_there(driver):
    net, one = driver
    with net.socket(0) as tx:  # asks for rank 1's station: nobody answers
        tx.sendto(b"x", (net.ip4(1), PORT))
        heard = []
        with contextlib.suppress(TimeoutError):
            while True:
                heard.append(one.recvfrom(2000)[1][2])
    assert heard, "the question did not come"
    assert socket.PACKET_OUTGOING not in heard


@pytest.mark.parametrize("finished", [True, False])
def test_checksums__switched_off_frames_are_whole_at_a_bare_rank(driver, finished):
    net, one = driver
    net.checksums(0, not finished)
    station = "02:00:00:00:00:01"
    netlab_host.ip("-n", net.namespace(0), "neighbour", "add", net.ip4(1), "lladdr", station, "dev", "eth0")
    with net.socket(0) as tx:
        tx.setsockopt(socket.IPPROTO_UDP, 103, 1000)  # UDP_SEGMENT
        tx.sendto(b"y" * 3000, (net.ip4(1), PORT))
        frames = []
        with contextlib.suppress(TimeoutError):
            while True:
                frame = one.recv(65536)
                if frame[12:14] == b"\x08\0":
                    frames.append(frame)
    assert len(frames) == (3 if finished else 1)
    assert all(checksum_is_right(frame) == finished for frame in frames)


def checksum_is_right(frame):
    udp = frame[34:]
    text = frame[26:34] + struct.pack("!HH", 17, len(udp)) + udp + b"\0" * (len(udp) % 2)
    total = sum(struct.unpack(f"!{len(text) // 2}H", text))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


def test_calm__lifts_every_fault_and_keeps_the_counts(pair):
    net, open_pair = pair
    tx, rx, address = open_pair()
    net.loss(0, 1.0)
    net.block(0, 2)
    net.path_mtu(0, 100)
    send_numbered(tx, address, 10)
    net.calm()
    send_numbered(tx, address, 10, size=1000)
    assert len(drain(rx)) == 10
    assert net.drops(0) == 10
