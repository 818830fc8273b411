"""A job that many tests share: its ranks wait for steps (steps.py), and what a test did to it is undone after it."""
import itertools
import json
import pathlib
import time

import netlab
from harness import Job, check_values
from kinds import Kind

_WORKER = pathlib.Path(__file__).resolve().parent / "steps.py"

PEER_TIMEOUT = 2.0  # longer than any rank is stopped here, or held up by a loaded machine
_START = 20.0  # interpreters of all ranks at once on few cores, and what a link does once per process
_OPTIONS = {"min_received": 0.0, "peer_timeout": PEER_TIMEOUT, "evict_after": 0, "linger": 1.0, "init_timeout": 15.0}


class SharedJob(Job):
    """A test may run steps, and reads harness.Job's lines, of its own time only."""

    def __init__(self, kind: Kind, n: int, folder: pathlib.Path, worker: pathlib.Path = _WORKER,
                 spare: int = 0) -> None:
        """spare: so many places of the laboratory more, for what is no rank and has no address."""
        self.kind, self.n, self.ranks = kind, n, range(n)
        self._folder, self._numbers, self._well, self._losing = str(folder), itertools.count(), False, False
        lab = netlab.Lab(n + spare, management=True, bare=[*kind.bare(n), *range(n, n + spare)])
        try:
            super().__init__(lab, {}, env={"MASTER_ADDR": lab.management(0), "WORLD_SIZE": str(n)}, stdin=True,
                             worker=worker, ranks=self.ranks)
        except BaseException:
            lab.close()
            raise

    def __exit__(self, *exc):
        super().__exit__(*exc)
        self.lab.close()

    # A test's beginning and end

    def begin_test(self):
        if not self._well:
            for rank in self.ranks:
                self.processes[rank].kill()
                self.start(rank)
            self._losing = False
            self.init(head_start=0.3)
        for rank in self.ranks:
            self.lines[rank].clear()
        self._well = False

    def end_test(self, failed):
        """Whatever a test has done to the network, once it is over all ranks find each other again. After one that
        failed nothing is asked of them: the next has new processes."""
        if failed:
            self.lab.calm()
            return
        for rank in self.ranks:
            self.go_on(rank)
        self.calm()
        self.step("barrier", timeout=PEER_TIMEOUT + 3, key=self.key("end of test"))
        self._well = True

    # Losses

    def lose(self, probability):
        """Begin to lose every rank's frames; the answer is called once they were sent, and asserts that about as many
        were dropped."""
        return self._lose_in_switch(probability) if self.kind.switched else self._lose_on_arrival(probability)

    def calm(self):
        """What was lost comes through from now on. Where ranks lose on arrival that takes a new communicator."""
        self.lab.calm()
        if self._losing:
            self._losing = False
            self._again()

    def _lose_in_switch(self, probability):
        net, before = self.lab, {rank: self.lab.counters(rank) for rank in self.ranks}
        for rank in self.ranks:
            net.loss(rank, probability)

        def check():
            for rank in self.ranks:
                seen, dropped = (now - old for now, old in zip(net.counters(rank)[:2], before[rank][:2], strict=True))
                check_dropped(rank, seen, dropped, probability)

        return check

    def _lose_on_arrival(self, probability):
        """The core's own fault injection, between link and protocol; with short frames, so that there are many."""
        self._again(mtu=1472, fault=f"drop={probability}")
        self._losing = True
        before = {rank: line["stats"] for rank, line in self.step("stats", timeout=3).items()}

        def check():
            for rank, line in self.step("stats", timeout=3).items():
                seen, dropped = (line["stats"][name] - before[rank][name] for name in ("rx_frames", "faults"))
                check_dropped(rank, seen, dropped, probability)

        return check

    def _again(self, **options):
        self.step("close", timeout=4)
        self.init(timeout=8, **options)

    # Steps

    def key(self, name):
        """Of this test alone, however often it runs."""
        return f"{name} {next(self._numbers)}"

    def begin(self, do, ranks=None, each=None, number=None, **arguments):
        """Tell ranks to do a step; each(rank) adds arguments of one rank. Returns its number, for end(), and for ranks
        that are told later."""
        number = next(self._numbers) if number is None else number
        for rank in self.ranks if ranks is None else ranks:
            told = {"step": number, "do": do, **arguments, **(each(rank) if each else {})}
            self.processes[rank].stdin.write(json.dumps(told) + "\n")
            self.processes[rank].stdin.flush()
        return number

    def end(self, number, timeout, ranks=None, errors=False):
        """rank -> what it says of the step; an error there is one here, unless errors are what is asked for."""
        said = {rank: self.wait_for(rank, timeout, what="done", step=number)
                for rank in (self.ranks if ranks is None else ranks)}
        failed = {rank: line for rank, line in said.items() if "error" in line}
        assert errors or not failed, f"{failed}\n{self.report()}"
        return said

    def step(self, do, timeout, ranks=None, errors=False, **arguments):
        return self.end(self.begin(do, ranks, **arguments), timeout, ranks, errors)

    def options_of(self, rank):
        """What init() is given on a rank."""
        return {**_OPTIONS, **self.kind.options(self.lab, rank, self._folder)}

    def init(self, errors=False, timeout=_START, head_start=0.0, **options):
        """head_start: rank 0 comes so much later, whom the others have to wait for, rendezvous and link alike."""
        def each(rank):
            return {"options": {**self.options_of(rank), **options}}

        number = self.begin("init", ranks=self.ranks[1:], each=each)
        time.sleep(head_start)
        self.begin("init", ranks=[0], each=each, number=number)
        said = self.end(number, timeout, errors=errors)
        if not errors:
            assert {rank: line["link"] for rank, line in said.items()} == {r: self.kind.link(r) for r in self.ranks}
        return said

    def rounds(self, timeout, name, **phase):
        """A phase of faults/worker.py, every value checked there. Anonymous: nothing of one round comes in a later one,
        where the oracle would have to take it on trust."""
        self.step("phase", timeout, phase={"name": self.key(name), "key": None, **phase})


def check_dropped(rank, seen, dropped, probability):
    assert dropped > max(seen * probability * 0.5, 1), f"of {seen} frames at rank {rank} {dropped} were dropped"


def check_repaired(job):
    """A twentieth of all frames is lost, and no round lacks anything: there was time to send it again."""
    were_dropped = job.lose(0.05)
    job.rounds(12, "repaired", n=15, count=40_000, deadline=2.0)
    were_dropped()
    check_values(job)
    for rank in job.ranks:
        for o in job.ops(rank):
            assert (o["received"], o["verdict"], o["full"], o["hit"]) == (1, "ok", o["count"], False), (rank, o)
