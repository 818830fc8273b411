"""One rank of `tailbound demo`, started by the launcher: python -m tailbound.demo_rank SPECIFICATION.json.

Tells its progress to the parent as JSON lines on stdout and leaves its records in a file beside the specification.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from .comm import Communicator
from .demo_train import Pauses, Record, Trainer
from .errors import Error
from .start import init

TELL = 0.2  # seconds between two lines of progress within a phase
PROBES = 40  # exact steps that the deadline is measured with; the first ones, of cold processes, do not count
LEAST, MOST = 0.010, 0.5  # seconds: a measured deadline is neither below a scheduler's quantum or two, nor endless
CLEAN_DEADLINE = 0.1  # seconds, of phase (d): on a healthy network a deadline is an upper bound, not a pace


@dataclasses.dataclass
class Spec:
    """What the parent decided, the same for every rank. Times are seconds."""

    folder: str
    steps: int
    block: int  # steps between two exact averages of the weights
    clean_steps: int
    seed: int
    deadline: float | str  # seconds, "auto" or "measured"
    fault: str
    slow_rank: int
    slow_share: float
    slow_pause: float
    stopped_rank: int
    stop_phase: float
    budget: float  # of phase b


def tell(**what: Any) -> None:
    """One event for the parent."""
    print(json.dumps(what), flush=True)


class _Tell(logging.Handler):
    """The product's log, as events."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(event="log", level=record.levelname, text=record.getMessage(), at=time.monotonic())


class Demo:
    """The phases of one rank."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        with np.load(Path(spec.folder) / "digits.npz") as archive:
            self.data = {name: archive[name] for name in archive.files}
        self.result: dict[str, Any] = {}

    def open(self, fault: str) -> Communicator:
        """min_received: with one of four ranks stopped a round has at most half of the others' contributions."""
        return init(link="udp", fault=fault, min_received=0.3)

    def run(self) -> None:
        spec = self.spec
        with self.open(spec.fault) as comm:
            tell(event="about", text=comm.stats()["description"])
            trainer = self.train(comm)
            self.stop(comm, trainer)
        with self.open("") as comm:
            self.clean(comm)
        (Path(spec.folder) / f"rank-{comm.rank}.json").write_text(json.dumps(self.result))

    def choose(self, comm: Communicator) -> float | str:
        """The deadline of a step's all_reduce, the same on every rank: three times the median exact one."""
        if self.spec.deadline != "measured":
            return self.spec.deadline
        trainer = Trainer(comm, self.data, "probe", math.inf, self.spec.seed)
        waits = [trainer.one_step().elapsed for _ in range(PROBES)]
        chosen = np.array([min(max(3 * np.median(waits[PROBES // 4 :]), LEAST), MOST)])
        comm.broadcast(chosen)
        return float(chosen[0])

    def train(self, comm: Communicator) -> Trainer:
        """(b) Both runs in turn, block by block, so that what else happens on this host hits both alike."""
        spec = self.spec
        pauses = Pauses(spec.seed, spec.slow_share, spec.slow_pause) if comm.rank == spec.slow_rank else None
        deadline = self.choose(comm)
        bounded = Trainer(comm, self.data, "gradient", deadline, spec.seed)
        exact = Trainer(comm, self.data, "gradient.exact", math.inf, spec.seed)
        self._tell_phase(comm, "b", deadline)
        start, go_on, until = time.monotonic(), np.ones(1, np.uint8), 0
        while until < spec.steps and go_on[0]:
            until = min(
                until + spec.block, spec.steps
            )  # not from step: a rank that jumps may land beyond a block's end
            for trainer in (bounded, exact):
                comm.barrier()
                trainer.run(until, pauses, average=not trainer.exact)
                if comm.rank == 0:
                    self._tell_training("b", trainer, until, spec.steps)
            go_on[0] = time.monotonic() - start < spec.budget
            comm.broadcast(go_on)  # rank 0 decides: on a busy host the demo ends in time with fewer steps
        self.result["b"] = {
            "bounded": vars(bounded.record),
            "exact": vars(exact.record),
            "steps": until,
            "deadline": deadline,
        }
        return bounded

    def _tell_phase(self, comm: Communicator, phase: str, deadline: float | str) -> None:
        if comm.rank == 0:
            tell(event="phase", phase=phase, deadline=deadline)

    def _tell_training(self, phase: str, trainer: Trainer, step: int, of: int) -> None:
        tell(
            event="progress",
            phase=phase,
            run="exact" if trainer.exact else "bounded",
            step=step,
            of=of,
            clock=trainer.record.clock,
            accuracy=trainer.evaluate(),
        )

    def stop(self, comm: Communicator, trainer: Trainer) -> None:
        """(c) So many more steps of the bounded run that the parent can stop a rank meanwhile and continue it."""
        spec = self.spec
        pace = float(np.percentile(trainer.record.took, 25))  # a step in which nobody pauses
        rounds = np.array([max(50, min(int(spec.stop_phase / pace), 100_000))], np.int64)
        trainer.record = Record()
        comm.broadcast(rounds)
        self._tell_phase(comm, "c", trainer.deadline)
        first, of = self.result["b"]["steps"], int(rounds[0])
        comm.barrier()
        told = time.monotonic()
        while trainer.step < first + of:
            trainer.one_step()
            if comm.rank == 0 and time.monotonic() - told >= TELL:
                told = time.monotonic()
                tell(event="progress", phase="c", step=trainer.step - first, of=of, pace=trainer.record.took[-1])
        before = trainer.model.flat.copy()
        comm.broadcast(trainer.model.flat, key="weights of rank 0")
        norm = float(np.linalg.norm(trainer.model.flat))
        away = float(np.linalg.norm(before - trainer.model.flat)) / norm
        accuracy = {"before": trainer.model.accuracy(*trainer.test, before), "after": trainer.evaluate()}
        self.result["c"] = {**vars(trainer.record), "first": first, "of": of, "away": away, "accuracy": accuracy}

    def clean(self, comm: Communicator) -> None:
        """(d) No faults: both ways again, with fresh models."""
        spec = self.spec
        bounded = Trainer(comm, self.data, "clean", CLEAN_DEADLINE, spec.seed)
        exact = Trainer(comm, self.data, "clean.exact", math.inf, spec.seed)
        self._tell_phase(comm, "d", CLEAN_DEADLINE)
        for start in range(0, spec.clean_steps, spec.block):
            until = min(start + spec.block, spec.clean_steps)
            for trainer in (bounded, exact):
                comm.barrier()
                trainer.run(until)
                if comm.rank == 0:
                    self._tell_training("d", trainer, until, spec.clean_steps)
        self.result["d"] = {
            "bounded": vars(bounded.record),
            "exact": vars(exact.record),
            "steps": spec.clean_steps,
            "deadline": CLEAN_DEADLINE,
        }


def main(argv: list[str]) -> int:
    spec = Spec(**json.loads(Path(argv[0]).read_text()))
    logger = logging.getLogger("tailbound")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_Tell())
    try:
        Demo(spec).run()
    except KeyboardInterrupt:
        return 130
    except Error as error:
        print(f"rank {os.environ.get('RANK')}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
