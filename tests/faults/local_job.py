"""Ranks of one job on this machine, over loopback, each running the same few lines of Python. Needs no privilege.

The lines find `tb`, `np`, `time`, `RANK`, `SIZE` and say(**values), which prints one JSON line. Rank r also has the
environment of `each(r)`.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

_TRANSPORT = pathlib.Path(__file__).resolve().parent.parent.parent / "transport"
_PRELUDE = """
import json, os, sys, time
import numpy as np
import tailbound as tb
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def say(**values):
    print(json.dumps(values), flush=True)
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class LocalJob:
    def __init__(self, code, n, env=None, each=None, ranks=None, namespace=None):
        port = str(free_port())
        self.processes = []
        for rank in range(n) if ranks is None else ranks:
            # what a launcher of the tests themselves may have set would be taken for this job's
            clean = {k: v for k, v in os.environ.items() if not k.startswith(("TAILBOUND_", "SLURM_", "OMPI_"))}
            self.processes.append(subprocess.Popen(
                [sys.executable, "-c", _PRELUDE + code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, cwd="/",
                env={**clean, "RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_RANK": str(rank),
                     "MASTER_ADDR": "127.0.0.1", "TAILBOUND_MASTER_PORT": port, "PYTHONPATH": str(_TRANSPORT),
                     "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                     "TAILBOUND_LINK": "udp", **(env or {}), **(each(rank) if each else {})}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()

    def line(self, i):
        """The next line that process i says; it must not be silent, or it hangs with the whole test (see timeouts)."""
        text = self.processes[i].stdout.readline()
        if not text:
            raise AssertionError(f"process {i} ended without a word: {self.processes[i].stderr.read()}")
        return json.loads(text)

    def finish(self, timeout=30, status=0):
        """What each process said, as a list of lists of lines; all must have ended with this status."""
        limit, said, bad = time.monotonic() + timeout, [], []
        for i, process in enumerate(self.processes):
            try:
                out, err = process.communicate(timeout=max(limit - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                bad.append(f"process {i} did not end in {timeout} s")
            if process.returncode != status:
                bad.append(f"process {i} ended with {process.returncode}\n{out}{err}")
            said.append([json.loads(text) for text in out.splitlines()])
        assert not bad, "\n".join(bad)
        return said


def run_local(code, n, timeout=30, **job):
    """One list of lines for each rank."""
    with LocalJob(code, n, **job) as started:
        return started.finish(timeout)
