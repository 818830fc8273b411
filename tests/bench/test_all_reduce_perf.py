"""all_reduce_perf: what it calls wrong, and which options it uses."""

import os
import subprocess
from pathlib import Path

import pytest

PERF = Path(__file__).resolve().parent.parent.parent / "build/bench/all_reduce_perf"
pytestmark = pytest.mark.skipif(not PERF.exists(), reason="`make build` makes it")


def perf(*arguments, **variables):
    return subprocess.run(
        [str(PERF), "--ranks", "2", "-b", "64K", "-e", "64K", "-n", "2", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_wrong__is_not_what_came_late_of_an_earlier_check():
    fault = "fault=delay=4ms,type=data"
    done = perf("-c", "40", "--deadline", "5ms", "--set", "min_received=0", "--set", fault)
    assert done.returncode == 0, done.stdout + done.stderr


def test_output__that_cannot_be_written_is_a_failure():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [str(PERF), "--ranks", "2", "-b", "64K", "-e", "64K", "-n", "2"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=100,
        )  # fmt: skip
    assert done.returncode == 1
    assert "all_reduce_perf: its output could not be written" in done.stderr


def test_options__those_that_calls_do_not_use_are_refused_or_told():
    done = perf("--set", "wire_dtype=int8")
    assert done.returncode == 2
    assert "wire_dtype=int8: this program's calls do not use it" in done.stderr
    done = perf(TAILBOUND_WIRE_DTYPE="int8")
    assert done.returncode == 0
    assert "wire_dtype=int8 (env TAILBOUND_WIRE_DTYPE): this program's calls do not use it" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "shown"), [(("--set", "deadline=inf"), "inf"), ((), "2e+06us"), (("--deadline", "1"), "1e+06us")]
)
def test_options__deadline(arguments, shown):
    assert f"deadline: {shown} " in perf(*arguments, TAILBOUND_DEADLINE="2s").stdout
