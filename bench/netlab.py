"""A network laboratory: one namespace per rank, every veth a port of one bridge in a switch namespace.

    with Lab(4, mtu=1500) as lab:
        p = lab.run(0, [sys.executable, "worker.py"], stdout=subprocess.PIPE)
        lab.loss(2, 0.01)              # 1 % of what rank 2 sends, UDP only, one datagram at a time
        lab.block(1, 3)                # nothing from rank 1 to rank 3
        lab.rate(0, 1e9, 512 * 1024)   # rank 0's link: 1 Gb/s each way, that many bytes of queue
        assert lab.drops(2) > 0

Faults sit on the switch's ports, never on the rank's own end: what owns that end (a packet socket, a kernel-bypass
driver) would see the packets before the filter, or bypass it. Needs root. Leaves nothing behind: namespaces go when
the block ends, when the process exits or is told to, and those of a process that was killed go when the next Lab
starts.

With management=True each rank has a second interface, mgmt0, on a bridge without faults: rendezvous for ranks whose
eth0 is `bare`, without an address, since a driver in user space holds it.
"""

import atexit
import os
import re
import signal
import socket
import subprocess
import time

import netlab_host as host
import netlab_kernel as kernel

_labs = set()
_count = 0
_handlers = {}


def _close_all():
    for lab in list(_labs):
        lab.close()


def _on_signal(number, frame):
    _close_all()
    signal.signal(number, _handlers.get(number, signal.SIG_DFL))
    os.kill(os.getpid(), number)


def _watch():
    """Close laboratories at exit and on the signals that would end the process without running its finally blocks."""
    atexit.register(_close_all)
    for number in (signal.SIGTERM, signal.SIGHUP):
        try:
            if signal.getsignal(number) == signal.SIG_DFL:
                _handlers[number] = signal.signal(number, _on_signal)
        except ValueError:  # not the main thread: exit and the next laboratory's start still clean up
            return


class Lab:
    """n ranks, each in a namespace of its own with interface eth0, addresses ip4(rank) and ip6(rank).

    management  also mgmt0 with address management(rank)
    bare        ranks whose eth0 has no address: the kernel neither answers nor says anything there by itself
    """

    def __init__(self, n, mtu=1500, rate=None, queue=512 * 1024, families=(4, 6), management=False, bare=()):
        global _count
        if not 1 <= n <= 1024:
            raise ValueError(f"a laboratory has 1 to 1024 ranks, not {n}")
        self.n, self.processes, self._owner = n, [], os.getpid()
        self._maps = {}
        self._name = f"{host.PREFIX}-{host.identity(os.getpid())}-{_count}"
        if not _count:
            _watch()
        _count += 1
        host.remove_stale()
        _labs.add(self)
        try:
            self._build(mtu, families, management, [self._rank(rank) for rank in bare])
            if rate:
                for rank in range(n):
                    self.rate(rank, rate, queue)
        except BaseException:
            self.close()
            raise

    def _build(self, mtu, families, management, bare):
        switch = self.namespace()
        for name in [switch] + [self.namespace(rank) for rank in range(self.n)]:
            host.ip("netns", "add", name)
        self._bridge("br0", "p", "eth0", mtu)
        if management:
            self._bridge("br1", "m", "mgmt0", 1500)
        for rank in range(self.n):
            lines = ["link set lo up"]
            if rank in bare:
                lines += ["link set eth0 addrgenmode none"]
            else:
                lines += [f"addr add {self.ip4(rank)}/16 dev eth0"] if 4 in families else []
                lines += [f"addr add {self.ip6(rank)}/64 dev eth0 nodad"] if 6 in families else []
            if management:
                lines += [f"addr add {self.management(rank)}/16 dev mgmt0", "link set mgmt0 up"]
            lines += ["link set eth0 up"]
            host.tool("ip", "-n", self.namespace(rank), "-batch", "-", stdin="\n".join(lines) + "\n")
        for device in ("eth0", "mgmt0") if management else ("eth0",):
            self._wait_for_carrier(device)

    def _bridge(self, bridge, port, device, mtu):
        """A bridge in the switch; its ports, port0, port1, ..., are the other ends of the ranks' `device`."""
        lines = [f"link add {bridge} type bridge stp_state 0 mcast_snooping 0", f"link set {bridge} mtu {mtu} up"]
        for rank in range(self.n):
            peer = f"peer name {device} mtu {mtu} netns {self.namespace(rank)}"
            lines += [f"link add {port}{rank} mtu {mtu} type veth {peer}", f"link set {port}{rank} master {bridge} up"]
        host.tool("ip", "-n", self.namespace(), "-batch", "-", stdin="\n".join(lines) + "\n")
        kernel.in_namespace(f"{host.NETNS}/{self.namespace()}", kernel.bridges_pass_all)

    def _wait_for_carrier(self, device):
        limit = time.monotonic() + 5
        for rank in range(self.n):
            while "state UP" not in host.ip("-n", self.namespace(rank), "link", "show", "dev", device):
                if time.monotonic() > limit:
                    raise host.LabError(f"{device} of rank {rank} did not come up in 5 s")
                time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End every process that run() started and remove the namespaces. May be called twice."""
        if self not in _labs or os.getpid() != self._owner:  # a forked child owns nothing
            return
        _labs.discard(self)
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
        for name in host.namespaces():
            if name.startswith(self._name + "-"):
                host.remove(name)
        for settings, counters in self._maps.values():
            settings.close()
            counters.close()
        self._maps.clear()

    # Names and addresses

    def namespace(self, rank=None):
        return f"{self._name}-switch" if rank is None else f"{self._name}-{self._rank(rank)}"

    def ip4(self, rank):
        return f"10.77.{(self._rank(rank) + 1) >> 8}.{(rank + 1) & 255}"

    def ip6(self, rank):
        return f"fd77::{self._rank(rank) + 1:x}"

    def management(self, rank):
        return f"10.78.{(self._rank(rank) + 1) >> 8}.{(rank + 1) & 255}"

    def _rank(self, rank):
        if not 0 <= rank < self.n:
            raise ValueError(f"rank {rank} is outside 0..{self.n - 1}")
        return rank

    # Processes and sockets

    def run(self, rank, argv, env=None, user=None, **popen):
        """Start argv in a rank's namespace and return its Popen, whose pid is the program's own.

        env is added to this process's environment. user: run as that user with no capability; where the user may
        not even read the interpreter (a home directory closed to others) it keeps CAP_DAC_READ_SEARCH, which opens
        files and nothing else.
        """
        prefix = ["ip", "netns", "exec", self.namespace(rank)]
        if user is not None:
            keep = "" if host.readable_by_others(argv[0]) else "+dac_read_search"
            prefix += [
                "setpriv",
                "--reuid",
                user,
                "--regid",
                host.group_of(user),
                "--clear-groups",
                "--no-new-privs",
                f"--bounding-set=-all,{keep}".rstrip(","),
                f"--inh-caps=-all,{keep}".rstrip(","),
                f"--ambient-caps=-all,{keep}".rstrip(","),
            ]
        popen["env"] = {**os.environ, **(env or {})}
        process = subprocess.Popen(prefix + list(argv), **popen)
        self.processes.append(process)
        return process

    def socket(self, rank, family=socket.AF_INET, kind=socket.SOCK_DGRAM):
        """A socket of this process that lives in a rank's namespace."""
        return kernel.in_namespace(f"{host.NETNS}/{self.namespace(rank)}", lambda: socket.socket(family, kind))

    # Faults

    def loss(self, rank, probability, dst=None, ports=(0, 65535), per_datagram=True, of_source=False):
        """Drop UDP packets that a rank sends, each with this probability; dst and ports (of the destination, or
        of the source) select.

        per_datagram=False keeps segmentation offload on the rank's link: then one drop takes a whole batch of up to
        64 datagrams, as a lost burst would.
        """
        if not 0 <= probability <= 1:
            raise ValueError(f"a probability lies in 0..1, not {probability}")
        self.offload(rank, not per_datagram)
        self._set(rank, dst, threshold=round(probability * 2**32), ports=ports, of_source=of_source)

    def block(self, src, dst, on=True):
        """Drop every UDP packet from src to dst; the other direction stays open."""
        self._set(src, dst, threshold=2**32 if on else 0, ports=(0, 65535))

    def blackhole(self, rank, on=True):
        """Drop every UDP packet that a rank sends and every one sent to it."""
        for other in range(self.n):
            if other != rank:
                self.block(rank, other, on)
                self.block(other, rank, on)

    def calm(self):
        """Lift every loss, block and path MTU; what the filters have counted stays."""
        for rank in self._maps:
            self._set(rank, None, threshold=0, length=0)

    def path_mtu(self, rank, length, dst=None):
        """Silently drop UDP packets of a rank whose IP length exceeds this; the interface's MTU stays. 0 = none."""
        self.offload(rank, not length)
        self._set(rank, dst, length=length)

    def mtu(self, rank, length):
        """Change the MTU of one rank's link, at both of its ends."""
        host.ip("-n", self.namespace(), "link", "set", f"p{rank}", "mtu", str(length))
        host.ip("-n", self.namespace(rank), "link", "set", "eth0", "mtu", str(length))

    def rate(self, rank, bits, queue=512 * 1024, direction="both"):
        """Limit a rank's link to bits per second with that many bytes of queue; 0 lifts the limit.

        "in" is the switch's port towards the rank, where incast overflows; "out" is the rank's own interface.
        """
        ends = {"in": [(self.namespace(), f"p{self._rank(rank)}")], "out": [(self.namespace(rank), "eth0")]}
        for namespace, device in ends["in"] + ends["out"] if direction == "both" else ends[direction]:
            if bits:
                # two milliseconds of tokens: the kernel's timer need not fire once per packet
                burst = max(10 * 1600, int(bits / 8 * 0.002))
                host.tool(
                    "tc",
                    "-n",
                    namespace,
                    "qdisc",
                    "replace",
                    "dev",
                    device,
                    "root",
                    "tbf",
                    "rate",
                    f"{int(bits)}bit",
                    "burst",
                    str(burst),
                    "limit",
                    str(int(queue)),
                )
            elif "tbf" in host.tool("tc", "-n", namespace, "qdisc", "show", "dev", device):
                host.tool("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")

    def offload(self, rank, on):
        """UDP segmentation offload of a rank's link: off, the kernel cuts batches into datagrams before the switch."""
        self.feature(rank, "tx-udp-segmentation", on)

    def checksums(self, rank, on):
        """Leave UDP checksums (and the cutting of batches) to the link: off, frames are whole when they leave a rank.

        Over veth the kernel else finishes a checksum only where it hands a packet to a socket of its own: a rank
        without one, bare, would get it unfinished.
        """
        self.feature(rank, "tx-checksum-ip-generic", on)
        self.offload(rank, on)

    def feature(self, rank, name, on):
        """Turn a feature of a rank's eth0, as `ethtool -k` names it, on or off; returns how it was."""
        return kernel.in_namespace(f"{host.NETNS}/{self.namespace(rank)}", lambda: kernel.set_feature("eth0", name, on))

    # What the filters saw

    def counters(self, rank, dst=None):
        """(seen, dropped by chance or block, dropped for length) of the UDP packets a rank sent, to dst or to all."""
        if self._rank(rank) not in self._maps:
            return (0, 0, 0)
        wanted = range(self.n) if dst is None else [self._rank(dst)]
        rows = [kernel.COUNTERS.unpack(self._maps[rank][1].read(d)) for d in wanted]
        return tuple(map(sum, zip(*rows, strict=False)))

    def drops(self, rank, dst=None):
        """How many UDP packets of a rank the filter has dropped since the laboratory started."""
        return sum(self.counters(rank, dst)[1:])

    def queue_drops(self, rank):
        """Packets that the queue of the switch's port towards a rank (see rate) has dropped."""
        shown = host.tool("tc", "-s", "-n", self.namespace(), "qdisc", "show", "dev", f"p{self._rank(rank)}")
        return sum(map(int, re.findall(r"dropped (\d+)", shown.partition("clsact")[0])))

    def _set(self, rank, dst, threshold=None, ports=None, length=None, of_source=False):
        if self._rank(rank) not in self._maps:
            self._install(rank)
        settings = self._maps[rank][0]
        for d in range(self.n) if dst is None else [self._rank(dst)]:
            old = kernel.SETTINGS.unpack(settings.read(d))
            low, high = ports or (old[1], old[2])
            chance, longest = old[0] if threshold is None else threshold, old[3] if length is None else length
            settings.write(d, kernel.SETTINGS.pack(chance, low, high, longest, of_source))

    def _install(self, rank):
        """The filter is attached at its first use, so that a run without faults pays nothing for it."""
        settings = kernel.Array(self.n, kernel.SETTINGS.size)
        counters = kernel.Array(self.n, kernel.COUNTERS.size)
        self._maps[rank] = (settings, counters)
        for d in range(self.n):
            settings.write(d, kernel.SETTINGS.pack(0, 0, 65535, 0, 0))
        program = kernel.filter_program(settings, counters)
        try:
            host.tool("tc", "-n", self.namespace(), "qdisc", "add", "dev", f"p{rank}", "clsact")
            kernel.in_namespace(f"{host.NETNS}/{self.namespace()}", lambda: kernel.attach_ingress(program, f"p{rank}"))
        finally:
            os.close(program)  # the attachment holds it
