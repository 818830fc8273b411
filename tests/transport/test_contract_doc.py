"""docs/contract.md names the tests that hold each rule: they must exist, and no rule may go without a word. What
README.md shows must run, and what the pages refer to must be there."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "contract.md").read_text()
LATER = re.compile(r"not\s+in\s+this\s+version", re.IGNORECASE)


def sections(text):
    """Rule number -> its text."""
    parts = re.split(r"^### (\d+)\. ", text, flags=re.MULTILINE)
    found = dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))
    assert len(found) == len(parts) // 2, "a rule has two sections"
    return {number: re.split(r"^## ", body, flags=re.MULTILINE)[0] for number, body in found.items()}


def named(text):
    """What stands in backticks in the paragraphs that begin with "Tests:"."""
    paragraphs = re.findall(r"^Tests: (.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    names = [name for paragraph in paragraphs for name in re.findall(r"`([^`]*)`", paragraph)]
    for paragraph in paragraphs:
        rest = re.sub(r"`[^`]*`", "", paragraph).strip(" ,\n")
        assert not rest.replace(",", "").strip(), f"not the name of a test: {rest!r}"
    return names


def c_tests(path):
    """Test functions of a C program that are defined and registered: mentioned besides the definition."""
    text = path.read_text()
    defined = re.findall(r"^static void (\w+)\(void \*\*state\)", text, re.MULTILINE)
    return {name for name in defined if re.search(rf"\(\s*{name}\s*[,)]", text)}


def python_tests(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def exists(name):
    match name.split("::"):
        case [file, function] if file.startswith("tests/") and function.startswith("test_"):
            return (ROOT / file).is_file() and function in python_tests(ROOT / file)
    file, _, function = name.partition(": ")
    path = ROOT / "tests" / "native" / file
    return bool(function) and path.is_file() and function in c_tests(path)


def test_contract__has_every_rule():
    assert sorted(sections(TEXT)) == list(range(1, 25))


@pytest.mark.parametrize("rule", range(1, 25))
def test_contract__rule_has_tests_or_is_not_in_this_version(rule):
    body = sections(TEXT)[rule]
    assert named(body) or LATER.search(body)


def test_contract__every_named_test_exists():
    names = named(TEXT)
    assert len(names) > 100
    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize(
    "name",
    [
        "test_core.c: all_reduce__no_such_case",
        "test_nothing.c: all_reduce__every_count_and_size",
        "test_core.c:all_reduce__every_count_and_size",
        "test_core.c: sum_once",
        "tests/transport/test_comm.py::test_no_such",
        "tests/transport/test_comm.py::mine",
        "tests/transport/test_nothing.py::test_broadcast",
        "test_broadcast",
    ],
)
def test_exists__tells_a_wrong_name(name):
    assert not exists(name)


def test_named__refuses_what_is_no_name():
    assert named("Tests: `a: b`,\n`c`\n\n`d`") == ["a: b", "c"]
    with pytest.raises(AssertionError, match="by hand"):
        named("Tests: `a: b`, by hand\n")


# ---- README.md and the pages


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_readme__its_training_loop_runs(run_python):
    (code,) = (block for block in blocks("README.md") if "tb.init" in block)
    assert "step < 100" in code
    launch = [sys.executable, "-m", "tailbound", "launch", "-n", "2"]
    done = run_python(code.replace("step < 100", "step < 5"), command=launch)
    assert (done.returncode, done.stderr) == (0, ""), "nothing is missing, so nothing is said but the last line"
    said = sorted(line.partition("rank ")[2] for line in done.stdout.splitlines())
    assert [line[:9] for line in said] == ["0: 5 step", "1: 5 step"]
    assert said[0][1:] == said[1][1:]


def test_readme__its_simulation_runs_as_it_says(run_python):
    (code,) = (block for block in blocks("README.md") if "tb.simulate" in block)
    once, again = run_python(code), run_python(code)
    assert once.returncode == 0, once.stderr
    assert re.match(r"\[(1\.0|0\.9\d+)(, (1\.0|0\.9\d+)){3}\] 0\.0", once.stdout), once.stdout
    assert once.stdout == again.stdout


@pytest.mark.parametrize(
    "page", ["README.md", "bench/README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_pages__what_they_link_to_is_there(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_readme__options_are_real():
    import tailbound.config

    known = {name for row in tailbound.config.Config().rows() for name in row.env.split()}
    text = (ROOT / "README.md").read_text()
    named_there = set(re.findall(r"\bTAILBOUND_[A-Z_]+", text))
    assert len(named_there) > 3
    assert named_there <= known


def public_members(kind):
    return [name for name in dir(kind) if not name.startswith("_") and not name.endswith("_async")]


def test_api__every_public_name_is_mentioned():
    import tailbound as tb

    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", (ROOT / "docs" / "api.md").read_text()))))
    wanted = set(tb.__all__)
    for kind in (tb.Communicator, tb.Work, tb.Result, tb.World):
        wanted |= set(public_members(kind)) | set(getattr(kind, "__dataclass_fields__", {}))
    wanted |= {"comms", "rank", "size", "link"}
    assert sorted(name for name in wanted if name not in words and not name.startswith("_mask")) == []


def test_api__exceptions_have_their_number_and_bases():
    import errno

    import tailbound as tb
    from tailbound import errors

    text = (ROOT / "docs" / "api.md").read_text()
    rows = re.findall(r"^\| `(\w+)`(?: \(([\w, ]+)\))? \| ([^|]*) \|", text, re.MULTILINE)
    told = {name: (bases.split(", ") if bases else [], numbers) for name, bases, numbers in rows}
    assert set(errors.__all__) <= set(told)
    for name in errors.__all__:
        kind = getattr(tb, name)
        bases, numbers = told[name]
        assert {base.__name__ for base in kind.__bases__} - {"Error", "Exception"} == set(bases), name
        if kind is not tb.Error:
            assert errno.errorcode[kind.default_errno] in numbers, name
