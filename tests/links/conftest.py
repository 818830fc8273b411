"""One running job for each kind of link and size, shared by all tests of this folder; kinds.py has the table.

`job` is that job, calm and in step (job.py). `net` is its laboratory, for tests that need faults: they run where frames
pass its switch. A test leaves no fault behind: here they are taken back, and the job has to be well again, or is
made anew for the next test. A module with jobs of its own lists them as SHARED: (kind, ranks, what else
SharedJob takes).
"""
import pathlib
import sys

import pytest

_HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "faults"), str(_HERE.parent.parent / "bench")]

from job import SharedJob  # noqa: E402 (the line above makes them importable)
from kinds import KINDS  # noqa: E402

FAILED = pytest.StashKey[bool]()


def pytest_generate_tests(metafunc):
    if "shared" in metafunc.fixturenames:
        # those without a switch last: pytest groups by place in the list, which thus is the same in both
        kinds = sorted(KINDS, key=lambda kind: not kind.switched)
        cases = getattr(metafunc.module, "SHARED", None) or [(kind, n, {}) for kind in kinds for n in kind.sizes]
        cases = [case for case in cases if case[0].switched or "net" not in metafunc.fixturenames]
        metafunc.parametrize("shared", cases, indirect=True, scope="session",
                             ids=[f"{kind.name}-{n}" for kind, n, _ in cases])


@pytest.fixture(scope="session")
def shared(request, tmp_path_factory):
    kind, n, more = request.param
    reason = kind.why_not()
    if reason:
        pytest.skip(f"link {kind.name}: {reason}")
    with SharedJob(kind, n, tmp_path_factory.mktemp("link"), **more) as one:
        yield one


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture
def job(request, shared):
    shared.begin_test()
    yield shared
    shared.end_test(failed=request.node.stash.get(FAILED, True))


@pytest.fixture
def net(job):
    return job.lab
