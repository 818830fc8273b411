"""`tailbound launch`: what ranks see, what happens to their output, and that nobody is left over."""

import os
import signal
import subprocess
import sys
import time

import pytest

LAUNCH = [sys.executable, "-m", "tailbound", "launch"]


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids, seconds=5.0):
    end = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)] == []


def test_environment__torchruns_names(run_python):
    code = """
import os
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TAILBOUND_MASTER_PORT TAILBOUND_JOB EXTRA"
print(*(os.environ[name] for name in names.split()))
"""
    done = run_python(code, command=[*LAUNCH, "-n", "3", "--env", "EXTRA=a=b"])
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert len(lines) == 3
    rows = [line.split() for line in lines]
    for rank, row in enumerate(rows):
        assert row[:5] == [f"[{rank}]", str(rank), "3", str(rank), "3"]
        assert row[5] == "127.0.0.1"
        assert row[6] != row[7]
        assert row[9] == "a=b"
    assert len({tuple(row[5:]) for row in rows}) == 1


def test_output__prefix_and_streams(run_python):
    code = "import sys\nprint('to out')\nprint('to err', file=sys.stderr)\nsys.stdout.write('no end')"
    done = run_python(code, command=[*LAUNCH, "-n", "2"])
    assert sorted(done.stdout.splitlines()) == ["[0] no end", "[0] to out", "[1] no end", "[1] to out"]
    assert sorted(done.stderr.splitlines()) == ["[0] to err", "[1] to err"]


def test_output__that_cannot_be_written_does_not_end_the_job(tmp_path):
    code = "import pathlib, sys\nfor i in range(2000): print('x' * 50)\npathlib.Path(sys.argv[1]).touch()"
    (tmp_path / "rank.py").write_text(code)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*LAUNCH, "-n", "2", str(tmp_path / "rank.py"), str(tmp_path / "came to its end")],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert (tmp_path / "came to its end").exists()
    assert done.returncode == 1, "what was printed is not there"
    said = "stdout cannot be written, lines of the ranks are lost: No space left on device"
    assert done.stderr.count(said) == 1
    assert "Traceback" not in done.stderr


def test_output__without_prefix(run_python):
    done = run_python("print('x')", command=[*LAUNCH, "-n", "2", "--no-prefix"])
    assert done.stdout == "x\nx\n"


def test_output__is_complete(run_python):
    code = "import sys\nfor i in range(20000): print(i, 'x' * 50)\nsys.stdout.write('y' * 200000)"
    done = run_python(code, command=[*LAUNCH, "-n", "2", "--no-prefix"])
    assert len(done.stdout.splitlines()) >= 40002
    assert done.stdout.count("y") == 400000


def test_arguments__reach_the_script(run_python):
    done = run_python("import sys; print(sys.argv[1:])", "-n", "--env", "x", command=[*LAUNCH, "-n", "1"])
    assert done.stdout == "[0] ['-n', '--env', 'x']\n"


def test_module_and_plain_program():
    done = subprocess.run([*LAUNCH, "-n", "1", "-m", "tailbound", "perf"], capture_output=True, text=True, timeout=60)
    assert "all_reduce_perf" in done.stdout
    done = subprocess.run([*LAUNCH, "-n", "2", "sh", "-c", "echo $RANK"], capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.split()) == ["0", "1", "[0]", "[1]"]


# For ranks: leave a mark, and wait until all of these ranks have left theirs.
MARKS = """
import os, pathlib, signal, sys, time
def mark(rank):
    return pathlib.Path(__file__).parent / f"mark{rank}"
def leave_mark():
    mark(os.environ["RANK"]).touch()
def wait_for(*ranks):
    while not all(mark(rank).exists() for rank in ranks):
        time.sleep(0.01)
"""


def test_failure__ends_the_others(run_python):
    code = MARKS + """
if os.environ["RANK"] == "1":
    wait_for(0, 2)
    sys.exit(7)
print(f"pid {os.getpid()}\\n", end="", flush=True)
leave_mark()
time.sleep(60)
"""
    began = time.monotonic()
    done = run_python(code, command=[*LAUNCH, "-n", "3"])
    assert done.returncode == 7
    assert time.monotonic() - began < 20
    assert "rank 1 exited with status 7" in done.stderr
    assert gone([int(line.split()[-1]) for line in done.stdout.splitlines()])


def test_failure__the_others_go_on_where_told_so(run_python):
    code = """
import os, sys, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), 9)
time.sleep(1)  # rank 1 is dead by then
print("went on")
sys.exit(3 * (os.environ["RANK"] == "2"))
"""
    done = run_python(code, command=[*LAUNCH, "-n", "3", "--keep-going"])
    assert sorted(done.stdout.splitlines()) == ["[0] went on", "[2] went on"]
    assert done.returncode == 128 + 9  # of the first that failed
    assert done.stderr.count("rank 1 was killed by SIGKILL; the others go on") == 1
    assert done.stderr.count("rank 2 exited with status 3; ") == 1


def test_failure__of_the_last_one_counts(run_python):
    done = run_python("import os, sys; sys.exit(3 * (os.environ['RANK'] == '1'))", command=[*LAUNCH, "-n", "2"])
    assert done.returncode == 3


def test_failure__by_signal(run_python):
    done = run_python("import os; os.kill(os.getpid(), 9)", command=[*LAUNCH, "-n", "1"])
    assert done.returncode == 128 + 9
    assert "SIGKILL" in done.stderr


def test_failure__a_rank_that_ignores_sigterm_is_killed(run_python):
    code = MARKS + """
if os.environ["RANK"] == "0":
    wait_for(1)
    sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
leave_mark()
time.sleep(60)
"""
    done = run_python(code, command=[*LAUNCH, "-n", "2"])
    assert done.returncode == 1
    assert gone([int(line.split()[-1]) for line in done.stdout.splitlines()])


def started(code, tmp_path, ranks, lines):
    """A launcher in the background, once it has printed so many lines; and the lines."""
    script = tmp_path / "script.py"
    script.write_text(code)
    child = subprocess.Popen(
        [*LAUNCH, "-n", str(ranks), str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return child, [child.stdout.readline() for _ in range(lines)]


SLEEPER = "import os, time\nprint('pid', os.getpid())\ntime.sleep(60)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals__are_passed_on(tmp_path, number):
    child, lines = started(SLEEPER, tmp_path, 2, 2)
    began = time.monotonic()
    child.send_signal(number)
    with child.stdout:
        rest = child.stdout.read()
    assert child.wait(20) == 128 + number
    assert time.monotonic() - began < 4
    if number == signal.SIGINT:
        assert rest.count("KeyboardInterrupt") == 2
    assert gone([int(line.split()[-1]) for line in lines])


def test_signals__a_stopped_rank_ends_too(tmp_path):
    child, lines = started(SLEEPER, tmp_path, 2, 2)
    pids = [int(line.split()[-1]) for line in lines]
    os.kill(pids[0], signal.SIGSTOP)
    child.send_signal(signal.SIGTERM)
    with child.stdout:
        child.stdout.read()
    assert child.wait(20) == 128 + signal.SIGTERM
    assert gone(pids)


def test_launcher_killed__ranks_die_too(tmp_path):
    child, lines = started(SLEEPER, tmp_path, 2, 2)
    child.kill()
    with child.stdout:
        child.stdout.read()
    child.wait(20)
    assert gone([int(line.split()[-1]) for line in lines])


def test_grandchildren__are_ended(tmp_path):
    code = """
import os, subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("pid", grandchild.pid)
"""
    child, lines = started(code, tmp_path, 1, 1)
    with child.stdout:
        child.stdout.read()
    assert child.wait(20) == 0
    assert gone([int(lines[0].split()[-1])])


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["-n", "0", "true"], 2, "1 to 1024"),
        (["-n", "2", "--env", "novalue", "true"], 2, "NAME=VALUE"),
        (["-n", "1", "/no/such/program"], 127, "/no/such/program"),
        (["-n", "1"], 2, "program"),
    ],
)
def test_bad_command_line(arguments, status, word):
    done = subprocess.run([*LAUNCH, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert word in done.stderr
