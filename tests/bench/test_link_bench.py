"""link_bench over udp loopback: everything arrives, and what a frame costs is told or said not to be known."""

import json
import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent.parent / "build/bench/link_bench"
pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="`make build` makes it")


def bench(*arguments):
    return subprocess.run([str(BENCH), *arguments], capture_output=True, text=True, timeout=100)


def test_row__all_frames_arrive_and_bigger_bursts_take_fewer_instructions():
    done = bench("-s", "0.1", "-b", "1,64", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    single, burst = map(json.loads, done.stdout.splitlines())
    for row in (single, burst):
        assert row["received"] == row["sent"] > 0
        assert row["copied"] == 0  # the kernel gathers what is referred to
        assert all(row[way][name] > 0 for way in ("tx", "rx") for name in ("ns", "ticks", "cpu_ns", "instructions"))
    assert single["tx"]["instructions"] > 2 * burst["tx"]["instructions"]
    assert 0.9 < single["tx"]["frames_per_call"] <= 1 < burst["tx"]["frames_per_call"]


def test_instructions__the_same_each_time():
    runs = [json.loads(bench("-s", "0.05", "-b", "32", "-n", "--json").stdout) for _ in range(2)]
    first, second = (run["tx"]["instructions"] for run in runs)
    assert abs(first - second) < 0.05 * first


def test_table__says_where_a_counter_is_missing():
    done = bench("-s", "0.05", "-b", "8", "--no-steps", "2000")
    head, row = done.stdout.splitlines()[0:4], done.stdout.splitlines()[-1]
    missing = any("this machine does not count them" in line for line in head)
    assert row.split().count("none") == (4 if missing else 2)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--link", "carrier-pigeon"), "carrier-pigeon"),
        (("-b", "1000"), "-b"),
        (("--hugepages", "maybe"), "--hugepages is auto, on or off"),
        (("64",), "a frame size"),
    ],
)
def test_refused__with_a_sentence(arguments, sentence):
    done = bench(*arguments)
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
