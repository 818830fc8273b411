"""Runs what `make test` has built, each program under a time limit, and closes with the names of what failed and one
line: N passed, N failed, N skipped.

A cmocka program that passes says little; of one that fails the failing tests are shown, or all that it printed where
it hangs, dies or a sanitizer speaks. A program that ran no test counts as failed: it would otherwise be a test that
cannot fail.
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
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from run_children import CHILDREN, ROOT, Count, run_bounded
from run_pytest import Pytest

SANITIZERS = {
    "ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=0:second_deadlock_stack=1:exitcode=66",
}


# Real time, sockets or devices: these run by themselves. The others are arithmetic under virtual time, one for each
# core, and so are the Python tests that pytest_stream.py names.
ALONE = re.compile(r"/tsan/|/dpdk/|_(udp|engine|init|rendezvous|link|wait|netif|work|world|fault)")


def cmocka_count(text: str) -> Count:
    def total(mark: str) -> int:
        return sum(int(n) for n in re.findall(rf"\[ +{mark} +\] (\d+) test\(s\)", text))

    return Count(total("PASSED"), total("FAILED"), total("SKIPPED"))


def failed_tests(text: str) -> list[str]:
    """Names of a cmocka program's failed tests."""
    return list(dict.fromkeys(re.findall(r"^\[  FAILED  \] (?!\w+: \d+ test)(\w+)(?:: |$)", text, re.MULTILINE)))


def failing_part(text: str) -> str:
    """What a cmocka program printed about its failed tests: neither those that passed nor their output."""
    shown: list[str] = []
    piece: list[str] = []
    for line in text.partition(" test(s) run.")[0].splitlines():
        if line.startswith("[ RUN      ]"):
            piece = []
        piece.append(line)
        if line.startswith(("[       OK ]", "[  SKIPPED ]", "[==========]", "[  PASSED  ]")):
            piece = []
        elif line.startswith("[  FAILED  ]"):
            shown += piece
            piece = []
    return "\n".join(shown)


def run_native(program: str, limit: float) -> Count:
    command = [program]
    if "/tsan/" in program and shutil.which("setarch"):
        # TSan wants its own address ranges; a kernel that randomises more than it expects makes it die at start.
        command = ["setarch", platform.machine(), "-R", program]
    began = time.monotonic()
    status, text = run_bounded(command, limit, {**os.environ, **SANITIZERS})
    if CHILDREN.ended:
        return Count()
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
    if wrong:
        names = failed_tests(text)
        count.names = [f"{program}: {name}" for name in names] or [f"{program}: {wrong}"]
    took = time.monotonic() - began
    verdict, note = ("FAIL", f"  {wrong}") if wrong else ("ok  ", "")
    said = [f"{verdict} {program:44} {count.passed:4} passed {took:7.1f} s{note}"]
    if wrong:
        # cmocka's status is the number of failed tests; another, or a sanitizer's report, may be about anything.
        plain = status == len(names) > 0 and not re.search(r"Sanitizer|runtime error:", text)
        said.append(failing_part(text) if plain else text)
    said += [f"     {reason}" for reason in re.findall(r"^skip: .*$", text, re.MULTILINE)]
    print("\n".join(said), flush=True)  # at once: programs side by side do not mix their lines
    return count


def is_alone(program: str) -> bool:
    return bool(ALONE.search(program))


def run_all(programs: list[str], limit: float, arguments: str) -> Count:
    """First what may have neighbours, on every core; then what this machine's clock judges, one by one."""
    total, cores = Count(), len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as pool:
        tests = Pytest(arguments, Path(folder))
        tasks = [partial(run_native, program, limit) for program in programs if not is_alone(program)]
        tasks += [partial(tests.beside, i) for i in range(cores)]
        try:
            for done in [pool.submit(task) for task in tasks]:
                total.add(done.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            CHILDREN.end()
            raise
        for program in filter(is_alone, programs):
            total.add(run_native(program, limit))
        total.add(tests.alone())
        total.add(tests.verdict())
    return total


def lint() -> Count:
    """Ruff's rules. How code is laid out is `ruff format`'s matter, and not looked at here."""
    ruff = str(Path(sys.executable).parent / "ruff")
    command = [ruff, "check", "--no-cache", "--quiet", "--output-format=concise", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        print("ok   lint")
        return Count(passed=1)
    said = (done.stdout + done.stderr).strip()
    print(f"{said}\nFAIL lint: ruff check .  ({lint_hint(said)})")
    return Count(failed=1, names=["lint: ruff check ."])


def lint_hint(said: str) -> str:
    """What to do about the findings: ruff marks with [*] those that it can mend."""
    if "[*]" not in said:
        return "ruff cannot mend these: edit the lines named above"
    rest = any("[*]" not in line for line in said.splitlines() if re.match(r"\S+:\d+:\d+: ", line))
    return "those marked [*]: .venv/bin/ruff check --fix ." + ("; the others by hand" if rest else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=300, help="seconds for each C program")
    parser.add_argument("--pytest", default="tests", help="arguments for pytest")
    parser.add_argument("--lint-only", action="store_true")
    parser.add_argument("programs", nargs="*", help="cmocka programs")
    options = parser.parse_args()

    total = lint()
    if not options.lint_only:
        total.add(run_all(options.programs, options.limit, options.pytest))
        print()
        for name in total.names:
            print(f"FAIL {name}")
        print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


def stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        CHILDREN.end()
        print("\nrun_tests: interrupted", file=sys.stderr)
        sys.exit(130)
