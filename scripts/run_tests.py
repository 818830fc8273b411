"""Runs what `make test` has built, each program under a time limit, and closes with one line: N passed, N failed, N
skipped.

A cmocka program that passes says little; one that fails, hangs or dies shows all that it printed. A program that ran no
test counts as failed: it would otherwise be a test that cannot fail.
"""

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = {
    "ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=0:second_deadlock_stack=1:exitcode=66",
}


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: "Count") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def run_bounded(command: list[str], limit: float, env: dict[str, str]) -> tuple[int | None, str]:
    """Exit status (None: it ran past the limit and was killed with its children) and everything it printed."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        out.seek(0)
        return status, out.read().decode(errors="replace")


def cmocka_count(text: str) -> Count:
    def total(mark: str) -> int:
        return sum(int(n) for n in re.findall(rf"\[ +{mark} +\] (\d+) test\(s\)", text))

    return Count(total("PASSED"), total("FAILED"), total("SKIPPED"))


def run_native(program: str, limit: float) -> Count:
    command = [program]
    if "/tsan/" in program and shutil.which("setarch"):
        # TSan wants its own address ranges; a kernel that randomises more than it expects makes it die at start.
        command = ["setarch", platform.machine(), "-R", program]
    began = time.monotonic()
    status, text = run_bounded(command, limit, {**os.environ, **SANITIZERS})
    count = cmocka_count(text)
    wrong = ""
    if status is None:
        wrong = f"ran past {limit:.0f} s and was killed"
    elif status != 0:
        wrong = f"exit status {status}"
    elif count.passed + count.skipped == 0:
        wrong = "ran no test"
    if wrong and count.failed == 0:
        count.failed = 1
    took = time.monotonic() - began
    verdict, note = ("FAIL", f"  {wrong}") if wrong else ("ok  ", "")
    print(f"{verdict} {program:44} {count.passed:4} passed {took:7.1f} s{note}")
    if wrong:
        print(text)
    for reason in re.findall(r"^skip: .*$", text, re.MULTILINE):
        print(f"     {reason}")
    sys.stdout.flush()
    return count


def run_pytest(arguments: str) -> Count:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "pytest.xml"
        command = [sys.executable, "-m", "pytest", "-rs", f"--junitxml={report}", *arguments.split()]
        status = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
        if not report.exists():
            print(f"FAIL pytest wrote no report, exit status {status}")
            return Count(failed=1)
        count = Count()
        for suite in ET.parse(report).getroot().iter("testsuite"):
            number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
            bad = number["failures"] + number["errors"]
            count.add(Count(number["tests"] - bad - number["skipped"], bad, number["skipped"]))
    if status != 0 and count.failed == 0:
        print(f"FAIL pytest: exit status {status}")
        count.failed = 1
    return count


def lint() -> Count:
    ruff = str(Path(sys.executable).parent / "ruff")
    for command in ([ruff, "check", "--quiet", "."], [ruff, "format", "--quiet", "--check", "."]):
        if subprocess.run([*command, "--no-cache"], cwd=ROOT).returncode != 0:
            print(f"FAIL lint: {' '.join(command[1:])}  (try: .venv/bin/ruff format . && .venv/bin/ruff check --fix .)")
            return Count(failed=1)
    print("ok   lint")
    return Count(passed=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=300, help="seconds for each C program")
    parser.add_argument("--pytest", default="tests", help="arguments for pytest")
    parser.add_argument("--lint-only", action="store_true")
    parser.add_argument("programs", nargs="*", help="cmocka programs")
    options = parser.parse_args()

    total = lint()
    if not options.lint_only:
        for program in options.programs:
            total.add(run_native(program, options.limit))
        total.add(run_pytest(options.pytest))
        print(f"\n{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
