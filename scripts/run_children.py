"""What run_tests.py starts: programs under a limit, all of which end with it; and what came of them."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 30  # seconds in which an interrupted pytest takes down what its fixtures have set up


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    names: list[str] = field(default_factory=list)  # of what failed

    def add(self, other: "Count") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.names += other.names


class Children:
    """Those under way, each the leader of its own process group, so that Ctrl-C reaches them through end() alone."""

    def __init__(self) -> None:
        self._lock, self._running, self.ended = threading.Lock(), set(), False

    def run(self, command: list[str], limit: float | None = None, **how: object) -> int | None:
        """Exit status; None: it ran past the limit. Nothing of its group is left either way."""
        with self._lock:
            if self.ended:
                return None
            child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True, **how)
            self._running.add(child)
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        except KeyboardInterrupt:
            self.end()
            raise
        finally:
            self._kill(child)
            child.wait()
            with self._lock:
                self._running.discard(child)

    def end(self) -> None:
        """Interrupts all, kills what is still there after a while, and lets nothing start any more."""
        with self._lock:
            self.ended, running = True, list(self._running)
        limit = time.monotonic() + PATIENCE
        for child in running:
            self._kill(child, signal.SIGINT)
        for child in running:
            try:
                child.wait(max(limit - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                pass
            self._kill(child)

    @staticmethod
    def _kill(child: subprocess.Popen, number: int = signal.SIGKILL) -> None:
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass


CHILDREN = Children()


def run_bounded(command: list[str], limit: float | None, env: dict[str, str], **how: object) -> tuple[int | None, str]:
    """Exit status (None: it ran past the limit and was killed with its children) and everything it printed."""
    with tempfile.TemporaryFile() as out:
        status = CHILDREN.run(command, limit, env=env, stdout=out, stderr=out, **how)
        out.seek(0)
        return status, out.read().decode(errors="replace")
