"""Ranks of one job, forked from an interpreter that has imported everything: imports are what is slow in the guest.

    results = ranks.run([{"env": {...}, "namespace": "/run/netns/a"}, ...], count=40_000, operations=8, deadline=1.0)

Each rank checks every value by the oracle of the fault tests (worker.py) and gives {"ops": [...], "stats": {...}};
a rank that fails ends the job with an AssertionError that holds its traceback.
"""
import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tests/faults"))

import tailbound as tb  # noqa: E402 (the line above makes worker importable)
import worker  # noqa: E402

CLONE_NEWNET = 0x40000000
PORT = "29555"


def enter(namespace):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as f:
        if libc.setns(f.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)


def one_rank(count, operations, deadline):
    """What run() gives of one rank; in the rank's own process."""
    ops = []
    worker.say = lambda **line: ops.append(line)
    with tb.init() as comm:
        oracle, last = worker.Oracle(comm.rank, comm.size), -1
        # exact, and not judged for time: an emulator translates all that runs for the first time
        worker.operate(comm, oracle, {"name": "", "count": count, "deadline": "inf", "key": "exact"}, 0, last)
        assert ops[0]["bad"] == 0, ops
        assert ops.pop()["received"] == 1, "an exact operation lacks values"
        phase = {"name": "", "count": count, "deadline": deadline, "key": "w"}
        for index in range(operations):
            last = worker.operate(comm, oracle, phase, index, last)
        stats = comm.stats()
    return {"ops": ops, "stats": {k: v for k, v in stats.items() if isinstance(v, (str, int, float, bool, type(None)))}}


def start(rank, size, spec, work):
    """(pid, readable file descriptor) of a child that writes work() as JSON."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    status = 1
    try:
        os.close(reader)
        os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "MASTER_PORT": PORT})
        os.environ.update(spec["env"])
        if spec.get("namespace"):
            enter(spec["namespace"])
        with os.fdopen(writer, "w") as out:
            try:
                json.dump(work(), out)
                status = 0
            except BaseException:
                out.write(traceback.format_exc())
    finally:
        sys.stderr.flush()
        os._exit(status)


def run(specs, count, operations, deadline, limit=120):
    """One result per rank; each must succeed within limit seconds."""
    return gather([start(rank, len(specs), spec, lambda: one_rank(count, operations, deadline))
                   for rank, spec in enumerate(specs)], limit)


def gather(children, limit, meanwhile=None, killed=()):
    """What the children (of start) say, None of those that meanwhile(pids) kills; the others must succeed."""
    if meanwhile:
        try:
            meanwhile([pid for pid, _ in children])
        except BaseException:
            limit = 0  # end them all, and show what they said
            traceback.print_exc()
    texts = {reader: b"" for _, reader in children}
    statuses, until = [], time.monotonic() + limit
    open_ones = set(texts)
    try:
        while open_ones and time.monotonic() < until:
            for reader in select.select(list(open_ones), [], [], 1.0)[0]:
                part = os.read(reader, 65536)
                texts[reader] += part
                if not part:
                    open_ones.discard(reader)
    finally:
        for pid, reader in children:
            if reader in open_ones:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os.close(reader)
    said = [texts[reader].decode(errors="replace") for _, reader in children]
    wanted = [-signal.SIGKILL if rank in killed else 0 for rank in range(len(children))]
    assert statuses == wanted, f"statuses {statuses} in {limit} s\n" + "\n".join(said)
    return [None if rank in killed else json.loads(text) for rank, text in enumerate(said)]


def check(results, operations, least):
    """No wrong value anywhere; `received` is what the values say, and on average at least this much."""
    for rank, result in enumerate(results):
        ops = result["ops"]
        assert len(ops) == operations, (rank, ops)
        for o in ops:
            assert o["bad"] == 0, (rank, o)
            assert abs(o["received"] - o["derived"]) < 1e-6, (rank, o)
        received = sum(o["received"] for o in ops) / len(ops)
        assert received >= least, (rank, received, ops)
