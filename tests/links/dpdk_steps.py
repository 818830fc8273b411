"""steps.py and what tests of the dpdk link's life need beside: cycles, forks, interrupts, what the kernel's ring
dropped.
"""
import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import struct
import time

import numpy as np
import steps
import tailbound as tb
import worker

_SOL_PACKET, _PACKET_STATISTICS = 263, 6


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sockets():
    """Descriptors of this process's sockets."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own is gone by now
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                found.append(int(number))
    return found


def init_in_child(options, to):
    """In a forked child: what its init says."""
    try:
        tb.init(**options)
        to.send("it started")
    except tb.Error as error:
        to.send(f"{type(error).__name__}: {error}")


class Rank(steps.Rank):
    def init(self, options):
        try:
            return {**super().init(options), "resident": resident()}
        except KeyboardInterrupt:
            return {"interrupted": time.monotonic()}

    def cycles(self, n, options):
        """n times init, one exact call, close; open files and resident bytes after each tenth of them."""
        told = []
        for i in range(n):
            with tb.init(**options) as comm:
                x = np.ones(5000, np.float32)
                comm.all_reduce(x, op="sum", deadline=steps.EXACT)
                assert (x == comm.size).all(), i
            if (i + 1) % (n // 10) == 0:
                del comm, x
                gc.collect()
                told.append([len(os.listdir("/proc/self/fd")), resident()])
        return {"after": told}

    def init_forked(self, how, options):
        """A child of fork tries to start the link for itself; how: "os" or multiprocessing's."""
        here, there = multiprocessing.Pipe()
        if how == "os":
            pid = os.fork()
            if not pid:
                init_in_child(options, there)
                os._exit(0)
            said = here.recv() if here.poll(10) else "nothing in 10 s"
            os.waitpid(pid, 0)
        else:
            child = multiprocessing.get_context(how).Process(target=init_in_child, args=(options, there))
            child.start()
            said = here.recv() if here.poll(10) else "nothing in 10 s"
            child.join(10)
        return {"said": said}

    def second(self, options):
        """Another communicator in the same process."""
        try:
            tb.init(**options)
            return {"text": "it started"}
        except tb.Error as error:
            return {"error": "", "kind": type(error).__name__, "text": str(error)}

    def exact_interrupted(self, key):
        x = np.arange(50_000, dtype=np.float32)
        worker.say(what="waits", key=key)
        try:
            self.comm.all_reduce(x, key=key, deadline=steps.EXACT)
            return {"interrupted": None}
        except KeyboardInterrupt:
            return {"interrupted": time.monotonic(), "kept": bool((x == np.arange(50_000)).all())}

    def ring(self):
        """Frames that reached this process's packet sockets since this was last asked, and how many of them their rings
        had no room for."""
        seen = dropped = 0
        for number in sockets():
            one = socket.socket(fileno=number)
            if one.family == socket.AF_PACKET:
                packets, drops = struct.unpack("II", one.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
                seen, dropped = seen + packets, dropped + drops
            one.detach()
        return {"seen": seen, "dropped": dropped}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    steps.main(Rank)
