"""Jobs over soft-RoCE devices; runs in the guest, where rdma-net.sh made rxe0 to rxe3 (rank i has rxe<i>).

    rdma_job.py NAME...     one after another, all of JOBS without a name; status 1 if any failed

Loss is netem's, on the bridge's port towards each device, and asserted by its own counter. What a rank receives it
checks value by value (ranks.py).
"""
import contextlib
import functools
import mmap
import os
import re
import signal
import subprocess
import sys
import time
import traceback

import ranks
import tailbound as tb
import tailbound.rdma
import worker

JUMBO, COMMON = 4200, 1500  # of the cables; what an RDMA datagram carries over them:
DATAGRAM = {JUMBO: 4096, COMMON: 1024}
COUNT, OPERATIONS, DEADLINE = 40_000, 5, 3.0
LATE = 1.5  # of the worst: on a loaded host an emulated processor stands still for a while. The median may not be late.
SILENT_COUNT, SILENT_DEADLINE, VICTIM = 5_000, 0.5, 2


def spec(rank, **options):
    env = {"TAILBOUND_LINK": "verbs", "TAILBOUND_DEVICE": f"rxe{rank}", "MASTER_ADDR": "127.0.0.1",
           "TAILBOUND_BUFFER": "1M"}  # an emulated machine takes long to lock more
    return {"env": {**env, **options}}


@contextlib.contextmanager
def netem(n, percent):
    """Loses packets on their way to each of n devices; asserts that it did."""
    def tc(*lines):  # in one process: to start one takes long there
        return subprocess.run(["tc", "-s", "-b", "-"], input="\n".join(lines) + "\n", check=True, capture_output=True,
                              text=True).stdout

    ports = [f"p{rank}" for rank in range(n)] if percent else []
    if ports:
        tc(*(f"qdisc add dev {port} root netem loss {percent}%" for port in ports))
    try:
        yield
        shown = tc(*(f"qdisc show dev {port}" for port in ports)) if ports else ""
        counts = re.findall(r"qdisc netem.*?(\d+) pkt \(dropped (\d+)", shown, re.DOTALL)
        for port, (sent, dropped) in zip(ports, [(int(a), int(b)) for a, b in counts], strict=True):
            assert dropped > (sent + dropped) * percent / 300, f"netem on {port} dropped {dropped} of {sent}:\n{shown}"
            print(f"  {port}: {dropped} of {sent + dropped} packets lost", flush=True)
    finally:
        if ports:
            tc(*(f"qdisc del dev {port} root" for port in ports))


@functools.cache
def ports_here():
    """By name; asked for once, because that takes seconds there and no device changes."""
    return {port.spec: port for port in tailbound.rdma.ports()}


def carry(mtu):
    """From now on the cables carry frames of mtu bytes; the devices follow."""
    cables = [cable for cable in os.listdir("/sys/class/net") if re.fullmatch(r"[vp]\d", cable)]
    lines = "".join(f"link set {cable} mtu {mtu}\n" for cable in [*cables, "tbsw"])
    subprocess.run(["ip", "-batch", "-"], input=lines, check=True, text=True)


def job(n, percent, mtu=JUMBO, operations=OPERATIONS, copied=1.0, **options):
    """copied: the share of what is sent that the link copies, about; the rest is read from where it lies."""
    carry(mtu)
    with netem(n, percent):
        results = ranks.run([spec(rank, **options) for rank in range(n)], COUNT, operations, DEADLINE)
    ranks.check(results, operations, least=0.999 if percent else 1.0)
    for rank, result in enumerate(results):
        stats = result["stats"]
        assert stats["link"] == "verbs", stats
        chosen = ports_here()[f"rxe{rank}:1"].choice(4)  # as `tailbound links` says
        assert f"path MTU {DATAGRAM[mtu]}," in stats["description"], (mtu, stats)
        assert f"GID {chosen.index} {chosen.address}," in stats["description"], (chosen, stats)
        assert min(stats["tx_bytes"], stats["rx_bytes"]) > COUNT * 4 / n * operations, stats
        assert copied * 0.7 < stats["tx_copied"] / stats["tx_bytes"] < copied * 1.3, stats
        for name in ("rx_truncated", "rx_foreign", "tx_errors", "tx_refused", "bad_check", "bad_length"):
            assert not stats.get(name), (name, stats)
        assert stats["rx_overflow"] is None, stats  # nobody counts it: none, and not 0
        elapsed = sorted(o["wall"] for o in result["ops"])
        assert max(o["overshoot"] for o in result["ops"]) < LATE, elapsed
        assert elapsed[operations // 2] < DEADLINE, elapsed
        batches = stats["tx_frames"] / stats["tx_calls"], stats["rx_frames"] / stats["rx_calls"]
        print(f"  rank {rank}: all_reduce {elapsed[0]:.3f} to {elapsed[-1]:.3f} s, deadline {DEADLINE} s; "
              f"{batches[0]:.1f} frames a doorbell, {batches[1]:.1f} a poll; "
              f"{stats['description'].partition('; ')[2]}", flush=True)


def silent():
    """Of three ranks one is stopped, goes on, and is killed; the others are on time throughout."""
    board = mmap.mmap(-1, 4096)  # of each rank: how many operations it has done; at 100: all may end
    marks = {}

    def work():
        ops, phase = [], {"name": "", "count": SILENT_COUNT, "deadline": SILENT_DEADLINE, "key": "w", "tagged": False}
        worker.say = lambda **line: ops.append(line)
        with tb.init(min_received=0.2, evict_after=0, max_skips=50) as comm:
            oracle = worker.Oracle(comm.rank, comm.size)
            while not board[100]:
                worker.operate(comm, oracle, phase, len(ops), 0)
                board[comm.rank] = min(len(ops), 255)
                time.sleep(0.02)
        return {"ops": ops}

    def steps(count, of=(0, 1, 2)):
        before, limit = [board[rank] for rank in range(3)], time.monotonic() + 60
        while any(board[rank] < before[rank] + count for rank in of):
            assert time.monotonic() < limit, f"operations: {before}, then {[board[rank] for rank in range(3)]}"
            time.sleep(0.01)

    def meanwhile(pids):
        steps(4)
        os.kill(pids[VICTIM], signal.SIGSTOP)
        marks["stopped"] = time.monotonic()
        steps(6, of=(0, 1))
        marks["continued"] = time.monotonic()
        os.kill(pids[VICTIM], signal.SIGCONT)
        steps(5)
        marks["well"] = time.monotonic()
        steps(5)
        marks["killed"] = time.monotonic()
        os.kill(pids[VICTIM], signal.SIGKILL)
        steps(6, of=(0, 1))
        marks["ended"] = time.monotonic()  # from now on one may go, and the other begin one more, alone
        board[100] = 1

    children = [ranks.start(rank, 3, spec(rank), work) for rank in range(3)]
    results = ranks.gather(children, 120, meanwhile, killed=(VICTIM,))
    for rank in (0, 1):
        ops = results[rank]["ops"]
        assert all(o["bad"] == 0 for o in ops), ops
        assert max(o["overshoot"] for o in ops) < LATE, sorted(o["overshoot"] for o in ops)
        stopped = [o for o in ops if marks["stopped"] < o["t0"] and o["t1"] < marks["continued"]]
        well = [o for o in ops if marks["well"] < o["t0"] and o["t1"] < marks["killed"]]
        dead = [o for o in ops if marks["killed"] < o["t0"] and o["t1"] < marks["ended"]]
        assert min(len(stopped), len(well), len(dead)) >= 3, (len(stopped), len(well), len(dead))
        for without in (stopped[1:], dead[1:]):
            assert all(0 < o["received"] < 1 for o in without), without
        assert max(o["received"] for o in well) == 1, well  # it is back
        print(f"  rank {rank}: {len(stopped)} operations beside a stopped peer, {len(well)} with it again, {len(dead)} "
              f"after its death", flush=True)


JOBS = {
    "busy2": lambda: job(2, 0, TAILBOUND_POLL="busy"), "silent": silent,
    # Half of the payloads are contributions, out of the tensor; the other half are sums, which are copied.
    "registered2": lambda: job(2, 5, copied=0.5, TAILBOUND_ZERO_COPY_FROM="4096"),
    # Each call has an array of its own, mapped for it and unmapped after it, often at the same address. None is lost.
    "churn2": lambda: job(2, 0, operations=40, copied=0.5, TAILBOUND_ZERO_COPY_FROM="4096"),
    "clean2": lambda: job(2, 0, COMMON), "loss2": lambda: job(2, 1, COMMON), "clean4": lambda: job(4, 0, COMMON),
    "loss4": lambda: job(4, 5, COMMON),
}

if __name__ == "__main__":
    failed = False
    for name in sys.argv[1:] or JOBS:
        began = time.monotonic()
        print(f"=== {name}", flush=True)
        try:
            JOBS[name]()
            status = 0
        except Exception:  # the others are still worth knowing
            failed = status = 1
            traceback.print_exc(file=sys.stdout)
        print(f"{time.monotonic() - began:.1f} s\n=== {name}: {status}", flush=True)
    sys.exit(failed)
