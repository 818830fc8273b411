"""The Python tests for run_tests.py: a process per core beside the C programs, then one alone (pytest_stream.py)."""

import os
import re
import shlex
import sys
import threading
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

from run_children import CHILDREN, ROOT, Count, run_bounded

NOTHING = 5  # pytest's exit status where it found no test


def cases(report: Path) -> dict[tuple[str, str], str]:
    """Outcome of each test; a file that could not be imported, or skips itself as a whole, is one with no class."""
    found = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        key = case.get("classname", ""), case.get("name", "")
        bad = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
        found[key] = "failed" if found.get(key) == "failed" else outcome
    return found


def name_of(classname: str, name: str) -> str:
    return f"{classname.replace('.', '/')}.py::{name}" if classname else f"{name.replace('.', '/')}.py"


class Pytest:
    """The streams of one run; folder is theirs."""

    def __init__(self, arguments: str, folder: Path) -> None:
        self.arguments, self.folder = shlex.split(arguments), folder
        self.shown = any(word.startswith("-") for word in self.arguments)  # options want to be seen
        self.lock, self.seen = threading.Lock(), set()
        (folder / "claims").mkdir()

    def command(self, stream: str, report: Path, *more: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-p", "pytest_stream", "--stream", stream, "-rs",
                f"--junitxml={report}", *more, *self.arguments]

    @staticmethod
    def environment() -> dict[str, str]:
        """Threads of the linear algebra would spin on cores that other tests have."""
        path = [str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(path)}

    def beside(self, i: int) -> Count:
        """One of the processes that share the files which may run beside others: says a line for each."""
        report, tell = self.folder / f"beside{i}.xml", os.dup(1)
        try:
            more = ("--claims", str(self.folder / "claims"), "--tell", str(tell))
            command = self.command("beside", report, *more)
            status, text = run_bounded(command, None, self.environment(), pass_fds=[tell])
        finally:
            os.close(tell)
        count = self.count(report, status)
        reasons = re.findall(r"^SKIPPED .*$", text, re.MULTILINE)
        if count.failed or (self.shown and status != NOTHING):
            print(text, flush=True)
        elif reasons:
            print("\n".join(f"     {reason}" for reason in reasons), flush=True)
        return count

    def alone(self) -> Count:
        """The rest, as pytest shows it."""
        report = self.folder / "alone.xml"
        return self.count(report, CHILDREN.run(self.command("alone", report), env=self.environment()))

    def count(self, report: Path, status: int | None) -> Count:
        """Each test once, and so each file that several processes failed to import."""
        if CHILDREN.ended:
            return Count()
        if not report.exists():
            return Count(failed=1, names=[f"pytest ({report.stem}): no report, exit status {status}"])
        found = cases(report)
        with self.lock:
            new = {key: outcome for key, outcome in found.items() if key not in self.seen}
            self.seen.update(new)
        number = Counter(new.values())
        names = [name_of(*key) for key, outcome in new.items() if outcome == "failed"]
        if status not in (0, NOTHING) and "failed" not in found.values():
            number["failed"] += 1
            names.append(f"pytest ({report.stem}): exit status {status}")
        return Count(number["passed"], number["failed"], number["skipped"], names)

    def verdict(self) -> Count:
        """A failure where all streams together found no test."""
        return Count() if self.seen else Count(failed=1, names=[f"pytest {' '.join(self.arguments)}: ran no test"])
