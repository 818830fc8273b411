"""Jobs over soft-RoCE devices; runs in the guest, where rdma-net.sh made rxe0 to rxe3 (rank i has rxe<i>).

    rdma_job.py NAME...     clean2 loss2 clean4 loss4 busy2 silent registered2 churn2: see JOBS

Loss is netem's, on the bridge's port towards each device, and asserted by its own counter. What a rank receives it
checks value by value (ranks.py).
"""
import contextlib
import mmap
import os
import re
import signal
import subprocess
import sys
import time

import ranks
import tailbound as tb
import tailbound.rdma
import worker

COUNT, OPERATIONS, DEADLINE = 40_000, 5, 3.0
LATE = 1.5  # of the worst: on a loaded host an emulated processor stands still for a while. The median may not be late.
SILENT_COUNT, SILENT_DEADLINE, VICTIM, REST = 5_000, 0.5, 2, 4.0


def spec(rank, **options):
    env = {"TAILBOUND_LINK": "verbs", "TAILBOUND_DEVICE": f"rxe{rank}", "MASTER_ADDR": "127.0.0.1",
           "TAILBOUND_BUFFER": "1M"}  # an emulated machine takes long to lock more
    return {"env": {**env, **options}}


@contextlib.contextmanager
def netem(n, percent):
    """Loses packets on their way to each of n devices; asserts that it did."""
    def tc(*words):
        return subprocess.run(["tc", *words], check=True, capture_output=True, text=True).stdout

    ports = [f"p{rank}" for rank in range(n)] if percent else []
    for port in ports:
        tc("qdisc", "add", "dev", port, "root", "netem", "loss", f"{percent}%")
    try:
        yield
        for port in ports:
            shown = tc("-s", "qdisc", "show", "dev", port)
            sent, dropped = map(int, re.search(r"(\d+) pkt \(dropped (\d+)", shown).groups())
            assert dropped > (sent + dropped) * percent / 300, f"netem on {port} dropped {dropped} of {sent}:\n{shown}"
            print(f"  {port}: {dropped} of {sent + dropped} packets lost", flush=True)
    finally:
        for port in ports:
            tc("qdisc", "del", "dev", port, "root")


def job(n, percent, operations=OPERATIONS, copied=1.0, **options):
    """copied: the share of what is sent that the link copies, about; the rest is read from where it lies."""
    with netem(n, percent):
        results = ranks.run([spec(rank, **options) for rank in range(n)], COUNT, operations, DEADLINE)
    ranks.check(results, operations, least=0.999 if percent else 1.0)
    ports = {port.spec: port for port in tailbound.rdma.ports()}
    for rank, result in enumerate(results):
        stats = result["stats"]
        assert stats["link"] == "verbs", stats
        chosen = ports[f"rxe{rank}:1"].choice(4)  # as `tailbound links` says
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

    def steps(count):
        before, limit = [board[rank] for rank in range(3)], time.monotonic() + 60
        while any(board[rank] < before[rank] + count for rank in range(3)):
            assert time.monotonic() < limit, f"operations: {before}, then {[board[rank] for rank in range(3)]}"
            time.sleep(0.01)

    def meanwhile(pids):
        steps(4)
        os.kill(pids[VICTIM], signal.SIGSTOP)
        marks["stopped"] = time.monotonic()
        time.sleep(REST)
        marks["continued"] = time.monotonic()
        os.kill(pids[VICTIM], signal.SIGCONT)
        steps(5)
        marks["well"] = time.monotonic()
        steps(5)
        marks["killed"] = time.monotonic()
        os.kill(pids[VICTIM], signal.SIGKILL)
        time.sleep(REST)
        board[100] = 1

    children = [ranks.start(rank, 3, spec(rank), work) for rank in range(3)]
    results = ranks.gather(children, 120, meanwhile, killed=(VICTIM,))
    for rank in (0, 1):
        ops = results[rank]["ops"]
        assert all(o["bad"] == 0 for o in ops), ops
        assert max(o["overshoot"] for o in ops) < LATE, sorted(o["overshoot"] for o in ops)
        stopped = [o for o in ops if marks["stopped"] < o["t0"] and o["t1"] < marks["continued"]]
        well = [o for o in ops if marks["well"] < o["t0"] and o["t1"] < marks["killed"]]
        dead = [o for o in ops if marks["killed"] < o["t0"]]
        assert min(len(stopped), len(well), len(dead)) >= 3, (len(stopped), len(well), len(dead))
        for without in (stopped[1:], dead[1:]):
            assert all(0 < o["received"] < 1 for o in without), without
        assert max(o["received"] for o in well) == 1, well  # it is back
        print(f"  rank {rank}: {len(stopped)} operations beside a stopped peer, {len(well)} with it again, {len(dead)} "
              f"after its death", flush=True)


JOBS = {
    "clean2": lambda: job(2, 0), "loss2": lambda: [job(2, 1), job(2, 5)], "clean4": lambda: job(4, 0),
    "loss4": lambda: job(4, 5), "busy2": lambda: job(2, 0, TAILBOUND_POLL="busy"), "silent": silent,
    # Half of the payloads are contributions, out of the tensor; the other half are sums, which are copied.
    "registered2": lambda: [job(2, percent, copied=0.5, TAILBOUND_ZERO_COPY_FROM="4096") for percent in (0, 5)],
    # Each call has an array of its own, mapped for it and unmapped after it, often at the same address.
    "churn2": lambda: job(2, 0, operations=40, copied=0.5, TAILBOUND_ZERO_COPY_FROM="4096"),
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        began = time.monotonic()
        print(name, flush=True)
        JOBS[name]()
        print(f"{name} ok, {time.monotonic() - began:.1f} s", flush=True)
