"""scripts/run_tests.py: what of a failing C program is shown, and what it says to do about lint."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts" / "run_tests.py"


@pytest.fixture
def run_tests(monkeypatch):
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


def test_main__names_what_failed_right_above_the_last_line(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_well(): pass\ndef test_badly(): assert 0\n")
    command = [sys.executable, str(SCRIPT), "--pytest", f"{tmp_path}/test_it.py", "/bin/true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    *_, program, test, last = done.stdout.splitlines()
    assert program == "FAIL /bin/true: ran no test"
    assert test.startswith("FAIL ")
    assert test.endswith("test_it.py::test_badly")
    assert last.endswith(" failed, 0 skipped")
