"""A pytest plugin for run_tests.py: which tests may run beside others, and how several processes share them.

    PYTHONPATH=scripts pytest -p pytest_stream --stream beside --claims DIR tests

--stream beside   only the files of BESIDE; with --claims each of them goes to the first process that asks for it
--stream alone    only the others: this machine's clock judges them, and a busy neighbour would be in their figures
--tell FD         a line for each file that has run, to this file descriptor
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Simulated time, arithmetic, compilers, another machine's clock; limits in seconds where milliseconds are meant. The
# longest first. What is not here runs alone.
BESIDE = (
    "tests/guest/*.py",
    "tests/transport/test_huge.py",
    "tests/bench/test_sim_*.py",
    "tests/bench/test_baselines.py",
    "tests/bench/test_common_*.py",
    "tests/transport/*.py",
)
# ... and these of them alone: they time signals, threads and processes.
ALONE = (
    "tests/transport/test_job.py",
    "tests/transport/test_launch.py",
)


def rank(path: Path) -> int | None:
    """Place of a file among those that run beside others; None: it runs alone."""
    if not path.is_relative_to(ROOT):
        return None
    path = path.relative_to(ROOT)
    if any(path.match(pattern) for pattern in ALONE):
        return None
    return next((i for i, pattern in enumerate(BESIDE) if path.match(pattern)), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("streams of run_tests.py")
    group.addoption("--stream", choices=("beside", "alone"))
    group.addoption("--claims", type=Path, help="folder in which processes mark the files that they take")
    group.addoption("--tell", type=int, help="file descriptor for a line per file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("stream"):
        config.pluginmanager.register(Stream(config), "run_tests stream")


class Stream:
    def __init__(self, config: pytest.Config) -> None:
        self.beside = config.getoption("stream") == "beside"
        self.claims, self.tell = config.getoption("claims"), config.getoption("tell")
        self.mine: dict[Path, bool] = {}
        self.count = {"passed": 0, "failed": 0, "skipped": 0}
        self.began = 0.0

    def wanted(self, path: Path) -> bool:
        return (rank(path) is not None) == self.beside

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Spares the import; it is not asked for files that the command line names."""
        return True if collection_path.suffix == ".py" and not self.wanted(collection_path) else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        rest = [item for item in items if not self.wanted(item.path)]
        items[:] = [item for item in items if self.wanted(item.path)]
        if self.beside:
            items.sort(key=lambda item: rank(item.path))  # which keeps files and parameters together
        if rest:
            config.hook.pytest_deselected(items=rest)

    def claim(self, path: Path) -> bool:
        if self.claims is None:
            return True
        if path not in self.mine:
            try:
                (self.claims / str(path).replace(os.sep, "%")).touch(exist_ok=False)
                self.mine[path] = True
            except FileExistsError:
                self.mine[path] = False
        return self.mine[path]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """As pytest's own, by files: what another process has taken is passed over, and so is counted once. A file that
        is over is torn down to the root, since nobody knows yet which comes next."""
        if session.config.option.collectonly or (
            session.testsfailed and not session.config.option.continue_on_collection_errors
        ):
            return None  # pytest's says what there is to say
        for path, group in itertools.groupby(session.items, key=lambda item: item.path):
            if not self.claim(path):
                continue
            self.began = time.monotonic()
            items = list(group)
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
            self.say(path)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.count[report.outcome] += 1

    def say(self, path: Path) -> None:
        if self.tell is None:
            return
        verdict = "FAIL" if self.count["failed"] else "ok  "
        skipped = f"  {self.count['skipped']} skipped" if self.count["skipped"] else ""
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        took = time.monotonic() - self.began
        line = f"{verdict} {name!s:44} {self.count['passed']:4} passed {took:7.1f} s{skipped}\n"
        os.write(self.tell, line.encode())  # one write: lines of several processes do not mix
        self.count, self.began = dict.fromkeys(self.count, 0), 0.0

