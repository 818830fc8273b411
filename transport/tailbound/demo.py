"""`tailbound demo`: trains a real model over a lossy network with a straggler, on time, beside an exact run.

This process only starts the ranks, shows what they tell, stops one for a while, and prints the report at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import signal
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

from .demo_rank import Spec
from .launch import Launcher, Rank, command_of

WIDTH = 110
LOSS, SLOW_SHARE, SLOW_PAUSE = 0.02, 0.10, 0.150
QUIET = 5.0  # seconds between two lines of progress where there is no terminal
# One thread a rank: four ranks that each start a thread per core would measure the scheduler.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tailbound demo", description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=0, help="training steps of each run (default 600)")
    parser.add_argument("--ranks", type=int, default=4, help="local ranks, 3 to 8 (default 4)")
    parser.add_argument("--seed", type=int, default=1, help="of data, model, losses and slow steps (default 1)")
    parser.add_argument("--out", default="tailbound-demo.png", help="the picture (default tailbound-demo.png)")
    parser.add_argument(
        "--deadline",
        default="measured",
        help="of a step's all_reduce: measured at the start (default), auto, or seconds",
    )
    parser.add_argument("--quick", action="store_true", help="everything, but short: figures are rough")
    chosen = parser.parse_args(argv)
    if not 3 <= chosen.ranks <= 8:
        parser.error(f"--ranks {chosen.ranks}: 3 to 8, so that somebody is left while one is stopped")
    if chosen.steps < 0 or chosen.seed < 0:
        parser.error("--steps and --seed are at least 0")
    if chosen.deadline not in ("auto", "measured"):
        try:
            chosen.deadline = float(chosen.deadline)
        except ValueError:
            parser.error(f"--deadline {chosen.deadline}: measured, auto, or seconds such as 0.02")
        if not 0 < chosen.deadline < 10:
            parser.error(f"--deadline {chosen.deadline}: above 0 and below 10 seconds")
    chosen.steps = chosen.steps or (100 if chosen.quick else 600)
    return chosen


def specification(chosen: argparse.Namespace, folder: str) -> Spec:
    return Spec(
        folder=folder,
        steps=chosen.steps,
        block=min(50, chosen.steps),
        clean_steps=min(chosen.steps, 300),
        seed=chosen.seed,
        deadline=chosen.deadline,
        fault=f"drop={LOSS},seed={chosen.seed + 1}",
        slow_rank=chosen.ranks - 2,
        slow_share=SLOW_SHARE,
        slow_pause=SLOW_PAUSE,
        stopped_rank=chosen.ranks - 1,
        stop_phase=3.0 if chosen.quick else 8.0,
        budget=10.0 if chosen.quick else 30.0,
    )


class Screen:
    """A live line that is written over in a terminal, and a line now and then elsewhere."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._shown = False
        self._last = 0.0

    def line(self, text: str = "") -> None:
        if self._shown:
            sys.stdout.write("\r\x1b[K")
            self._shown = False
        print(text, flush=True)

    def paragraph(self, text: str) -> None:
        self.line(textwrap.fill(text, WIDTH, subsequent_indent="    ", break_on_hyphens=False))

    def progress(self, text: str) -> None:
        if self.live:
            sys.stdout.write("\r\x1b[K  " + text[: WIDTH - 2])
            sys.stdout.flush()
            self._shown = True
        elif time.monotonic() - self._last >= QUIET:
            self._last = time.monotonic()
            print("  " + text, flush=True)


class Ranks(Launcher):
    """The launcher, with the ranks' output read as events, and with one rank stopped in phase (c)."""

    def __init__(self, spec: Spec, size: int, screen: Screen) -> None:
        path = Path(spec.folder) / "spec.json"
        path.write_text(json.dumps(dataclasses.asdict(spec)))
        command = command_of("tailbound.demo_rank", [str(path)], True)
        super().__init__(command, size, 0, ONE_THREAD, True)
        self.spec, self.screen = spec, screen
        self.latest: dict[str, dict[str, Any]] = {}
        self._held: list[tuple[int, dict[str, Any]]] | None = []  # log lines that came before the link was told
        self.stopped_at = self.continued_at = 0.0
        self.absent_log: list[tuple[float, int, str]] = []
        self._timer: threading.Timer | None = None
        self._continuing = threading.Lock()

    def run(self) -> int:
        try:
            return super().run()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    # ---- what a rank says

    def _print(self, rank: Rank, name: str, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        try:
            event = json.loads(text) if name == "out" else None
        except ValueError:
            event = None
        if isinstance(event, dict) and "event" in event:
            getattr(self, "_on_" + event["event"])(rank.number, event)
        elif text.strip() and not self.signals:  # else: how an interrupted rank's Python says goodbye
            self.screen.line(f"[rank {rank.number}] {text}")

    def _say(self, line: str) -> None:
        if not self.received:
            self.screen.line(line.replace("tailbound launch:", "tailbound demo:"))

    def _on_about(self, rank: int, event: dict[str, Any]) -> None:
        if rank != 0:
            return
        self.screen.paragraph(f"  {event['text']}")
        held, self._held = self._held or [], None
        for number, line in held:
            self._on_log(number, line)

    def _on_log(self, rank: int, event: dict[str, Any]) -> None:
        if self._held is not None:
            self._held.append((rank, event))
            return
        text = event["text"]
        if f"rank {self.spec.stopped_rank} is " in text:
            self.absent_log.append((event["at"], rank, text))
        if (rank == 0 and (event["level"] != "INFO" or "deadline=auto" in text)) and not text.startswith("rank 0 of "):
            self.screen.paragraph(f"  log of rank 0: {text}")

    def _on_phase(self, _rank: int, event: dict[str, Any]) -> None:
        self.latest.clear()
        self.screen.paragraph(heading(event["phase"], self.spec, event["deadline"]))

    def _on_progress(self, _rank: int, event: dict[str, Any]) -> None:
        if event["phase"] == "c":
            self._stopping(event)
            state = "stopped" if self.stopped_at and not self.continued_at else "running"
            self.screen.progress(
                f"(c) step {event['step']} of {event['of']}, rank {self.spec.stopped_rank} is {state}; rank 0's last "
                f"step took {event['pace'] * 1e3:.1f} ms"
            )
            return
        self.latest[event["run"]] = event
        parts = [
            f"{title} {100 * seen['accuracy']:5.1f} % right after {seen['clock']:5.2f} s"
            for run, title in (("bounded", "by deadline"), ("exact", "exact"))
            if (seen := self.latest.get(run))
        ]
        self.screen.progress(f"({event['phase']}) step {event['step']} of {event['of']}: " + "; ".join(parts))

    # ---- phase (c)

    def _stopping(self, event: dict[str, Any]) -> None:
        share = event["step"] / event["of"]
        if not self.stopped_at and share >= 0.15:
            self.stopped_at = time.monotonic()
            os.kill(self.ranks[self.spec.stopped_rank].process.pid, signal.SIGSTOP)
            self.screen.line(f"  SIGSTOP to rank {self.spec.stopped_rank} at step {event['step']}")
            self._timer = threading.Timer(self.spec.stop_phase * 3 / 8, self._continue)
            self._timer.start()
        elif self.stopped_at and not self.continued_at and share >= 0.8:
            self._continue()  # the others are faster than thought: it must come back while there are steps left

    def _continue(self) -> None:
        with self._continuing:
            if self.continued_at:
                return
            self.continued_at = time.monotonic()
            process = self.ranks[self.spec.stopped_rank].process
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
        self.screen.line(
            f"  SIGCONT to rank {self.spec.stopped_rank} after {self.continued_at - self.stopped_at:.1f} s"
        )


def heading(phase: str, spec: Spec, deadline: float | str) -> str:
    """What a phase does."""
    limit = deadline if isinstance(deadline, str) else f"{deadline * 1e3:.1f} ms"
    if phase == "b":
        how = (
            ", three times the median exact all_reduce just before, 10 ms at least"
            if spec.deadline == "measured"
            else ""
        )
        return (
            f"(b) {spec.steps} steps by deadline ({limit}{how}) and {spec.steps} exact ones, in turn, under the same "
            f"faults: TAILBOUND_FAULT={spec.fault} on every rank, and rank {spec.slow_rank} pauses "
            f"{spec.slow_pause * 1e3:.0f} ms in {spec.slow_share:.0%} of its steps"
        )
    if phase == "c":
        return (
            f"(c) the run by deadline goes on with the losses, without pauses; rank {spec.stopped_rank} will be stopped"
        )
    return f"(d) the faults are removed: {spec.clean_steps} steps by deadline ({limit}) and exact, fresh models"


def main(argv: list[str]) -> int:
    """Exit status: 0 well, 1 something is missing or failed, 2 a wrong command line, 130 Ctrl-C."""
    chosen = options(argv)
    missing = [n for n, m in (("scikit-learn", "sklearn"), ("matplotlib", "matplotlib")) if not _there(m)]
    if missing:
        print(
            f"tailbound demo needs {' and '.join(missing)}: {sys.executable} -m pip install {' '.join(missing)}   "
            "(in a source tree also: pip install '.[demo]')",
            file=sys.stderr,
        )
        return 1
    out = Path(chosen.out)
    if not out.parent.is_dir():
        print(f"tailbound demo: --out {out}: there is no folder {out.parent}", file=sys.stderr)
        return 1
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="tailbound-demo-") as folder:
            return _run(chosen, specification(chosen, folder), out, began)
    except KeyboardInterrupt:
        print("\ntailbound demo: interrupted; no process is left", file=sys.stderr)
        return 130


def _there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _run(chosen: argparse.Namespace, spec: Spec, out: Path, began: float) -> int:
    import numpy as np

    from .demo_model import LAYERS, load_digits
    from .demo_report import report
    from .demo_stop import stop_report

    data = load_digits(spec.seed)
    np.savez(Path(spec.folder) / "digits.npz", **data)
    screen = Screen()
    screen.paragraph(
        f"{chosen.ranks} ranks on this host train a model of handwritten digits ({'-'.join(map(str, LAYERS))} MLP, "
        f"NumPy) on scikit-learn's load_digits: {len(data['y'])} images, each rank on its own "
        f"{len(data['y']) // chosen.ranks}, {len(data['test_y'])} kept for the test. Seed {spec.seed}."
    )
    screen.paragraph(
        "(a) the link: udp, asked for by name, because losses of datagrams are what this is about (auto takes the "
        "best one there is, see `tailbound links`):"
    )
    ranks = Ranks(spec, chosen.ranks, screen)
    status = ranks.run()
    if status:
        screen.line("tailbound demo: " + ("interrupted; no process is left" if ranks.signals else "failed, see above"))
        return 130 if ranks.signals else 1
    results = [json.loads((Path(spec.folder) / f"rank-{n}.json").read_text()) for n in range(chosen.ranks)]
    screen.line()
    for text in stop_report(results, spec, ranks.stopped_at, ranks.continued_at, ranks.absent_log):
        screen.paragraph(text)
    screen.line()
    screen.line(report(results, spec, chosen.ranks))
    from .demo_picture import draw

    draw(results, spec, chosen.ranks, out, (ranks.stopped_at, ranks.continued_at))
    screen.line(f"\npicture: {out.resolve()}    total time {time.monotonic() - began:.0f} s")
    return 0
