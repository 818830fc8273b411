"""scripts/run_tests.py: what is shown of a failing C program, its advice about lint, the streams of Python tests."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "run_tests.py"


@pytest.fixture
def run_tests(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("run_tests", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tests", module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


CMOCKA = """[==========] Running 3 test(s).
[ RUN      ] a__well
noise of a
[       OK ] a__well
[ RUN      ] b__badly
noise of b
[  ERROR   ] --- 0x1 != 0x2
[   LINE   ] --- b.c:8: error: Failure!
[  FAILED  ] b__badly
[ RUN      ] c__not
[  SKIPPED ] c__not
[==========] 3 test(s) run.
[  PASSED  ] 1 test(s).
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] b__badly

 1 FAILED TEST(S)
"""


def test_failing_part__is_all_of_the_failed_test_and_nothing_else(run_tests):
    assert run_tests.failed_tests(CMOCKA) == ["b__badly"]
    assert run_tests.failing_part(CMOCKA).splitlines() == CMOCKA.splitlines()[4:9]


@pytest.mark.parametrize(
    ("text", "status", "whole"),
    [(CMOCKA, 1, False), (CMOCKA, 66, True), (CMOCKA + "WARNING: ThreadSanitizer: data race\n", 1, True)],
)
def test_run_native__shows_all_where_a_sanitizer_speaks(run_tests, monkeypatch, capsys, text, status, whole):
    monkeypatch.setattr(run_tests, "run_bounded", lambda command, limit, env: (status, text))
    count = run_tests.run_native("build/san/test_b", 1)
    assert (count.passed, count.failed, count.skipped) == (1, 1, 0)
    assert count.names == ["build/san/test_b: b__badly"]
    said = capsys.readouterr().out
    assert "noise of b" in said
    assert ("noise of a" in said) == whole


def test_run_native__names_what_hung(run_tests, monkeypatch, capsys):
    monkeypatch.setattr(run_tests, "run_bounded", lambda command, limit, env: (None, "[ RUN      ] a__hangs\n"))
    assert run_tests.run_native("build/san/test_b", 7).names == ["build/san/test_b: ran past 7 s and was killed"]
    assert "a__hangs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("a.py:1:121: E501 Line too long", ["cannot mend"]),
        ("a.py:1:1: F401 [*] unused", ["check --fix"]),
        ("a.py:1:1: F401 [*] unused\nb.py:3:121: E501 Line too long", ["check --fix", "by hand"]),
    ],
)
def test_lint_hint__fits_the_findings(run_tests, said, words):
    hint = run_tests.lint_hint(said)
    assert all(word in hint for word in words)
    assert ("--fix" in hint) == ("check --fix" in words)
    assert ("by hand" in hint) == ("by hand" in words)


def closing(arguments, program="/bin/true", folder=None):
    """Lines that run_tests.py prints of these tests beside a program that fails, and its exit status."""
    command = [sys.executable, str(folder or SCRIPT.parent) + "/run_tests.py", "--pytest", arguments, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.stdout.splitlines(), done.returncode


@pytest.fixture
def tree(tmp_path):
    """tree({path: text}): these tests below a copy of scripts/, which thus has streams for them."""

    def make(files):
        shutil.copytree(SCRIPT.parent, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nexclude = ['*']\n")
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return make


def test_main__names_what_failed_right_above_the_last_line(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_well(): pass\ndef test_badly(): assert 0\n")
    (*_, program, test, last), status = closing(f"{tmp_path}/test_it.py")
    assert status == 1
    assert program == "FAIL /bin/true: ran no test"
    assert test.startswith("FAIL ")
    assert test.endswith("test_it.py::test_badly")
    assert last.endswith(" failed, 0 skipped")


def test_streams__count_each_test_once_whoever_runs_it(tree):
    """Both processes beside others meet the broken file, and both could run every good one."""
    well, badly = "def test_well(): pass\n", "def test_badly(): assert 0\n"
    root = tree(
        {f"tests/transport/test_{i}.py": well for i in range(4)}
        | {
            "tests/transport/test_4.py": badly + "import pytest\ndef test_not(): pytest.skip('absent')\n",
            "tests/faults/test_5.py": well + badly,
        }
    )
    lines, status = closing("tests", folder=root / "scripts")
    assert status == 1
    assert lines[-1] == "6 passed, 3 failed, 1 skipped"  # lint and /bin/true are two of them
    failed = [line for line in lines[-6:-1] if line.startswith("FAIL ")]
    assert sorted(failed) == [
        "FAIL /bin/true: ran no test",
        "FAIL tests/faults/test_5.py::test_badly",
        "FAIL tests/transport/test_4.py::test_badly",
    ]
    told = [line.split()[1] for line in lines if line.startswith(("ok   tests/", "FAIL tests/transport/test_4.py  "))]
    assert sorted(told) == [f"tests/transport/test_{i}.py" for i in range(5)]


def test_streams__a_file_left_to_others_is_no_neighbour(tree):
    """What was set up for a file that another process has taken would still stand when the next folder's begins."""
    well = "def test_well(): pass\n"
    files = ("tests/bench/test_sim_a.py", "tests/bench/test_sim_b.py", "tests/transport/test_c.py")
    root = tree(dict.fromkeys(files, well))
    claims = root / "claims"
    claims.mkdir()
    (claims / str(root / files[1]).replace("/", "%")).touch()
    stream = ("-p", "pytest_stream", "--stream", "beside", "--claims", str(claims))
    command = [sys.executable, "-m", "pytest", *stream, "tests"]
    done = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root / "scripts")}, text=True,
                          capture_output=True, timeout=60)  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout
    assert done.returncode == 0


def test_streams__that_find_nothing_at_all_are_a_failure(tree):
    root = tree({"tests/transport/test_0.py": "def test_well(): pass\n"})
    lines, status = closing("tests -k 'nothing or nobody'", folder=root / "scripts")
    assert status == 1
    assert "FAIL pytest tests -k nothing or nobody: ran no test" in lines


def test_count__a_file_that_several_processes_cannot_import_is_one_failure(run_tests, tmp_path):
    tests = run_tests.Pytest("tests", tmp_path)
    broken = '<testcase classname="" name="tests.faults.test_0"><error/></testcase>'
    counts = []
    for i in range(2):
        (tmp_path / f"{i}.xml").write_text(f"<testsuites><testsuite>{broken}</testsuite></testsuites>")
        counts.append(tests.count(tmp_path / f"{i}.xml", 2))
    assert [count.failed for count in counts] == [1, 0]
    assert counts[0].names == ["tests/faults/test_0.py"]


@pytest.mark.parametrize(("stream", "number"), [("beside", signal.SIGTERM), ("alone", signal.SIGINT)])
def test_interrupt__ends_everything_and_lets_fixtures_clean_up(tree, stream, number):
    path = {"beside": "tests/transport/test_0.py", "alone": "tests/faults/test_0.py"}[stream]
    root = tree({path: """
import os, pathlib, subprocess, time, pytest
here = pathlib.Path(__file__).parents[2]
@pytest.fixture
def network():
    child = subprocess.Popen(["sleep", "100"])
    (here / "begun.tmp").write_text(f"{os.getpid()} {child.pid}")
    (here / "begun.tmp").rename(here / "begun")
    yield
    (here / "cleaned").touch()
def test_long(network): time.sleep(100)
"""})
    command = [sys.executable, str(root / "scripts/run_tests.py"), "--pytest", "tests"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    end = time.monotonic() + 60
    while not (root / "begun").exists() and time.monotonic() < end:
        time.sleep(0.02)
    run.send_signal(number)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert (root / "cleaned").exists()
    for pid in (root / "begun").read_text().split():
        assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


def test_streams__no_pattern_is_of_nothing(run_tests):
    """A renamed file would otherwise run alone, or beside others, without anybody noticing."""
    import pytest_stream

    found = [path.relative_to(pytest_stream.ROOT) for path in pytest_stream.ROOT.glob("tests/**/test_*.py")]
    for pattern in (*pytest_stream.BESIDE, *pytest_stream.ALONE):
        assert any(path.match(pattern) for path in found), pattern
