"""One rank of a shared job: does the steps that it reads as JSON lines on stdin, and says what came of each as one.

    {"step": 3, "do": "exact", "what": "all_reduce", "dtype": "float32", "counts": [1, 1000], "key": "a"}

A step is a function below; its arguments are the line's. Phases of lossy rounds are those of faults/worker.py, with its
oracle. Values of exact calls are small whole numbers, so that sums have one right result, to the last bit.
"""
import hashlib
import json
import os
import pathlib
import sys
import time

import numpy as np
import tailbound as tb

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
import worker

EXACT = float("inf")


def pattern(rank, count, dtype, seed):
    return ((np.arange(count, dtype=np.int64) * 7 + rank * 13 + seed) % 61 - 30).astype(dtype)


def wrong(found, wanted):
    return int(np.count_nonzero(found != wanted))


class Rank:
    """This process: its communicator, and what steps leave for later ones."""

    def __init__(self):
        self.comm = self.oracle = None
        self.rounds, self.sums, self.issued = {}, {}, {}

    def init(self, options):
        began = time.monotonic()
        try:
            self.comm = tb.init(**options)
        except tb.Error as error:
            return {"error": type(error).__name__, "text": str(error), "took": time.monotonic() - began}
        self.oracle, self.rounds = worker.Oracle(self.comm.rank, self.comm.size), {}
        return {"link": self.comm.link, "describe": self.comm.stats()["description"],
                "took": time.monotonic() - began, "descriptors": len(os.listdir("/proc/self/fd"))}

    def close(self):
        began = time.monotonic()
        self.comm.close()
        return {"took": time.monotonic() - began}

    def barrier(self, key, deadline=EXACT):
        self.comm.barrier(key=key, deadline=deadline)
        return {}

    def stats(self):
        return {"stats": self.comm.stats()}

    # Exact calls against the oracle: how many elements were wrong, by count

    def exact(self, what, dtype, counts, key):
        call = getattr(self, f"_{what}")
        return {"wrong": {count: call(count, np.dtype(dtype), f"{key} {count}", i) for i, count in enumerate(counts)}}

    def _all_reduce(self, count, dtype, key, seed):
        comm = self.comm
        x = pattern(comm.rank, count, dtype, seed)
        result = comm.all_reduce(x, key=key, deadline=EXACT)
        assert result.received == 1
        return wrong(x, sum(pattern(r, count, dtype, seed) for r in range(comm.size)))

    def _broadcast(self, count, dtype, key, seed):
        root = seed % self.comm.size
        x = pattern(self.comm.rank, count, dtype, seed)
        self.comm.broadcast(x, root=root, key=key)
        return wrong(x, pattern(root, count, dtype, seed))

    def _all_gather(self, count, dtype, key, seed):
        comm = self.comm
        out = comm.all_gather(pattern(comm.rank, count, dtype, seed), key=key).out
        return wrong(out, np.stack([pattern(r, count, dtype, seed) for r in range(comm.size)]))

    def _messages(self, count, dtype, key, seed):
        """Every rank to every other one, at the same time."""
        comm, under_way, bad = self.comm, [], 0
        peers = [rank for rank in range(comm.size) if rank != comm.rank]
        x, got = pattern(comm.rank, count, dtype, seed), {peer: np.zeros(count, dtype) for peer in peers}
        for peer in peers:
            under_way.append(comm.recv_async(got[peer], peer, tag=seed, deadline=EXACT))
            under_way.append(comm.send_async(x, peer, tag=seed, deadline=EXACT))
        for work in under_way:
            work.wait()
        for peer in peers:
            bad += wrong(got[peer], pattern(peer, count, dtype, seed))
        return bad

    # Lossy rounds

    def phase(self, phase):
        worker.run_phase(self.comm, self.oracle, phase, self.rounds)
        return {}

    def carry(self, key, n, count, deadline):
        """Rounds whose outputs are added up; flushed() tells whether that is all that was contributed."""
        total, told = self.sums.setdefault(key, np.zeros(count)), []
        for _ in range(n):
            x = self.oracle.contribution(count, 0)
            began, without_core = time.monotonic(), worker.starved()
            r = self.comm.all_reduce(x, key=key, deadline=deadline, missing="carry")
            overshoot, without_core = time.monotonic() - began - deadline, worker.starved() - without_core
            total += x
            self.issued[key] = self.issued.get(key, 0) + 1
            told.append({"received": r.received, "carried": r.carried, "late": r.late,
                         "overshoot": overshoot, "starved": without_core})
        return {"rounds": told}

    def flushed(self, key):
        """Elements in which outputs and correction are not the sum of all ranks' contributions to as many rounds."""
        total = self.sums.pop(key)
        total += self.comm.flush(key, timeout=5.0)
        everybody = sum(3.0**r for r in range(self.comm.size))
        wanted = self.issued.pop(key) * everybody * self.oracle.weights(len(total), 0)
        return {"wrong": wrong(total, wanted), "dropped": self.comm.stats()["dropped_values"]}

    def agree(self, key, n, count, deadline):
        told = []
        for i in range(n):
            x = self.oracle.contribution(count, i)
            r = self.comm.all_reduce(x, key=key, deadline=deadline, consistency="agree")
            told.append([r.round, r.verdict, hashlib.sha256(x.tobytes()).hexdigest()])
        return {"rounds": told}

    # Errors

    def mismatch(self, key, count, dtype, deadline):
        """A call on which the ranks disagree, and one on which they do not."""
        x = pattern(self.comm.rank, count, dtype, 0)
        before, said = x.copy(), {}
        self.comm.barrier()  # together: who comes when the others have given up may only hear that they did
        try:
            self.comm.all_reduce(x, key=key, deadline=float(deadline))
        except tb.Error as error:
            said = {"raised": type(error).__name__, "why": str(error), "kept": bool((x == before).all())}
        return {**said, "wrong": self._all_reduce(5000, np.dtype("float32"), f"{key} after", 1)}


def main(kind=Rank):
    rank = kind()
    for text in sys.stdin:
        told = json.loads(text)
        number, do = told.pop("step"), told.pop("do")
        try:
            line = getattr(rank, do)(**told)
        except tb.Error as error:
            line = {"error": type(error).__name__, "text": str(error)}
        worker.say(what="done", step=number, t=time.monotonic(), **line)


if __name__ == "__main__":
    main()
