"""Runs tests/faults/worker.py on every rank of a laboratory and gathers what the ranks say, while they say it."""
import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time

_WORKER = pathlib.Path(__file__).resolve().parent / "worker.py"
_TRANSPORT = _WORKER.parent.parent.parent / "transport"

PORT = 29555
# How late a bounded operation may return here. The product's own aim is far tighter and is measured by a benchmark; a
# test on a loaded machine with two cores and four ranks only has to tell "by the deadline" from "not by the deadline".
LATE = 0.25


class Job:
    """The ranks of one job. spec goes to every worker; init options, phases and environment are shared; each(rank) is
    environment of one rank."""

    def __init__(self, lab, spec, env=None, user=None, ip=4, ranks=None, stdin=False, worker=_WORKER, each=None):
        self.lab, self.lines, self.errors = lab, {}, {}
        self._changed = threading.Condition()
        self._threads, self.processes = {}, {}
        self._stdin = subprocess.PIPE if stdin else subprocess.DEVNULL
        self._argv, self._user, self._each = [sys.executable, str(worker), json.dumps(spec)], user, each
        self._env = {"MASTER_ADDR": lab.ip4(0) if ip == 4 else lab.ip6(0), **(env or {})}
        for rank in range(lab.n) if ranks is None else ranks:
            self.start(rank)

    def start(self, rank):
        """Start a rank's process: at first, and again after it has ended."""
        if rank in self.processes:
            self._bury(rank)
        self.lines[rank], self.errors[rank] = [], []
        process = self.processes[rank] = self.lab.run(
            rank, self._argv, user=self._user, text=True, cwd="/", stdin=self._stdin, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"RANK": str(rank), "WORLD_SIZE": str(self.lab.n), "LOCAL_RANK": "0", "MASTER_PORT": str(PORT),
                 "PYTHONPATH": str(_TRANSPORT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
                 "OPENBLAS_NUM_THREADS": "1", **self._env, **(self._each(rank) if self._each else {})})
        self._threads[rank] = [
            threading.Thread(target=self._read, args=(rank, stream, sink), daemon=True)
            for stream, sink in ((process.stdout, self._line), (process.stderr, self._error))]
        for thread in self._threads[rank]:
            thread.start()

    def _read(self, rank, stream, sink):
        with stream:
            for text in stream:
                sink(rank, text)
        with self._changed:
            self._changed.notify_all()

    def _line(self, rank, text):
        with self._changed:
            self.lines[rank].append(json.loads(text))
            self._changed.notify_all()

    def _error(self, rank, text):
        self.errors[rank].append(text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
        for rank in self.processes:
            self._bury(rank)

    def _bury(self, rank):
        """Take leave of a process that has been told to end, or has."""
        process = self.processes[rank]
        process.wait()
        if process.stdin:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for thread in self._threads[rank]:
            thread.join(5)

    def wait_for(self, rank, timeout=20, **wanted):
        """The first line of a rank with these values; waits for it."""
        limit = time.monotonic() + timeout
        with self._changed:
            while True:
                for line in self.lines[rank]:
                    if all(line.get(k) == v for k, v in wanted.items()):
                        return line
                left = limit - time.monotonic()
                if left <= 0 or (self.processes[rank].poll() is not None and not self._reading(rank)):
                    raise AssertionError(f"rank {rank} did not say {wanted} in {timeout} s\n{self.report()}")
                self._changed.wait(min(left, 0.1))

    def _reading(self, rank):
        return self._threads[rank][0].is_alive()

    def join(self, timeout=30, ranks=None, status=0):
        """Wait until ranks end, and require this exit status of each."""
        limit = time.monotonic() + timeout
        for rank in self.processes if ranks is None else ranks:
            try:
                self.processes[rank].wait(max(limit - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank} did not end in {timeout} s\n{self.report()}") from None
        for threads in self._threads.values() if ranks is None else ():
            for thread in threads:
                thread.join(5)
        found = {rank: self.processes[rank].returncode for rank in (self.processes if ranks is None else ranks)}
        assert set(found.values()) == {status}, f"exit statuses {found}, wanted {status}\n{self.report()}"

    def send_line(self, ranks=None):
        for rank in self.processes if ranks is None else ranks:
            self.processes[rank].stdin.write("\n")
            self.processes[rank].stdin.flush()

    def signal(self, rank, number):
        """Returns when, on the clock of the workers' times."""
        now = time.monotonic()
        self.processes[rank].send_signal(number)
        return now

    def stop(self, rank):
        return self.signal(rank, signal.SIGSTOP)

    def go_on(self, rank):
        return self.signal(rank, signal.SIGCONT)

    def said(self, rank, **wanted):
        with self._changed:
            return [line for line in self.lines[rank] if all(line.get(k) == v for k, v in wanted.items())]

    def ops(self, rank, phase=None):
        return self.said(rank, what="op", **({} if phase is None else {"phase": phase}))

    def report(self):
        text = []
        for rank in self.processes:
            text.append(f"--- rank {rank}, status {self.processes[rank].poll()}, last lines:")
            text += [json.dumps(line) for line in self.lines[rank][-4:]] + ["".join(self.errors[rank][-30:])]
        return "\n".join(text)


def run(lab, spec, timeout=30, **job):
    """Run a job to its end; every rank must succeed."""
    with Job(lab, spec, **job) as started:
        started.join(timeout)
    return started


def check_values(job, ranks=None):
    """Correctness, strictly: no wrong element, `received` is what the values say, on every rank.

    Where a rank jumped ahead its contribution carries the tag of the round it expected, so that round is not judged.
    """
    ranks = list(job.processes) if ranks is None else ranks
    jumped = {(o["phase"], o["round"]) for r in job.processes for o in job.ops(r) if o["behind"]}
    for rank in ranks:
        assert not job.said(rank, what="error"), job.said(rank, what="error")[:3]
        assert job.ops(rank), job.report()
        for o in job.ops(rank):
            if (o["phase"], o["round"]) in jumped:
                continue
            assert o["bad"] == 0, (rank, o)
            assert abs(o["received"] - o["derived"]) < 1e-6, (rank, o)
            # "ok" says more than that all of the others' came: the own part is in as well
            assert o["verdict"] != "ok" or o["received"] == 1, (rank, o)


def check_on_time(ops, late=LATE):
    """Returned by the deadline, but for the time in which the machine gave the rank no core."""
    worst = max(ops, key=lambda o: o["overshoot"] - o["starved"])
    assert worst["overshoot"] - worst["starved"] < late, worst


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
