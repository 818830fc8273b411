"""The verbs link on soft-RoCE devices in the guest: this machine's kernel need not have any RDMA.

Two boots for all: one for the C programs and pyverbs, one for the jobs. Each test asks what its part of them said.
"""
import re
import shlex
from pathlib import Path

import guestlab
import pytest

# The first that asks boots: a minute on an idle machine, many times that on a loaded one, and one try may be repeated.
pytestmark = pytest.mark.timeout(1800)

MODULES = ["rdma_rxe", "ib_uverbs", "veth", "bridge", "sch_netem"]
MTU = 4200  # of the cables: datagrams of 4096 bytes
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
JOBS = ["busy2", "silent", "registered2", "churn2", "clean2", "loss2", "clean4", "loss4"]
TESTS = guestlab.ROOT / "build/san/verbs"


@pytest.fixture(scope="module")
def rdma():
    """rdma(devices, *command): one boot; its sections by name, each (status, what it printed)."""
    reason = guestlab.unavailable() or guestlab.packages("rdma")
    if reason:
        pytest.skip(reason)

    def run(devices, *command):
        done = guestlab.run(guestlab.HERE / "rdma.sh", devices, MTU, *command, timeout=700, modules=MODULES,
                            status=None)
        sections = {name: (int(status), text) for name, text, status in
                    re.findall(r"^=== (.*)\n((?:.*\n)*?)=== \1: (\d+)$", done.stdout, re.MULTILINE)}
        return sections, f"status {done.returncode}\n{done.stdout[-6000:]}\n--- stderr\n{done.stderr[-6000:]}"

    return run


def without_pyverbs():
    """Why pyverbs cannot be the peer here; "" when it can."""
    version = f"cpython-{guestlab.sys.version_info.major}{guestlab.sys.version_info.minor}"
    reason = guestlab.packages("pyverbs")
    if not reason and not list(PYVERBS.glob(f"device.{version}-*.so")):
        reason = f"Debian's pyverbs is for another Python than {version}"
    return reason


def pyverbs_command():
    folder = guestlab.ROOT / "build/guest/pyverbs"  # all of dist-packages would shadow the venv's
    folder.mkdir(exist_ok=True)
    if not (folder / "pyverbs").is_symlink():
        (folder / "pyverbs").symlink_to(PYVERBS)
    return ["env", f"PYTHONPATH={folder}", guestlab.sys.executable, guestlab.HERE / "pyverbs_peer.py", TESTS / "peer"]


@pytest.fixture(scope="module")
def programs(rdma):
    assert (TESTS / "test_conformance").exists(), f"{TESTS} lacks programs: make verbs-tests plugins"
    commands = {
        "conformance IPv4": [TESTS / "test_conformance", "rxe0", "rxe1", "rxe2"],
        # On one device: between two of its own interfaces Linux passes none of its own addresses' packets over IPv6.
        "conformance IPv6": [TESTS / "test_conformance", "fd00:7::1"],
        "device": [TESTS / "test_device"],
        "ref": [TESTS / "test_ref"],
    }
    if not without_pyverbs():
        commands["pyverbs"] = pyverbs_command()
    lines = [word for name, command in commands.items() for word in (name, shlex.join(map(str, command)))]
    return rdma(3, guestlab.HERE / "sections.sh", *lines)


@pytest.fixture(scope="module")
def jobs(rdma):
    return rdma(4, guestlab.sys.executable, guestlab.HERE / "rdma_job.py", *JOBS)


def said(ran, name):
    """What that section printed; it must have ended well."""
    sections, everything = ran
    assert name in sections, f"{name} did not end in the guest: {everything}"
    status, text = sections[name]
    print(text)
    assert status == 0, f"{name}: status {status}"
    return text


def passed(text):
    count = re.search(r"\[  PASSED  \] (\d+) test", text)
    assert count, text
    assert "FAILED" not in text
    return int(count[1])


@pytest.mark.parametrize(("ends", "tests"), [("IPv4", 50), ("IPv6", 25)])
def test_verbs__keeps_what_every_link_promises(programs, ends, tests):
    assert passed(said(programs, f"conformance {ends}")) == tests


def test_verbs__outlives_failed_queues_lost_peers_and_a_port_that_goes_down(programs):
    assert passed(said(programs, "device")) >= 11


def test_verbs__reads_registered_memory_and_never_what_was_there_before(programs):
    assert passed(said(programs, "ref")) >= 7


def test_verbs__and_pyverbs_understand_each_other(programs):
    """Another implementation speaks to our link, and says what none of ours would."""
    reason = without_pyverbs()
    if reason:
        pytest.skip(reason)
    assert "pyverbs and our link understand each other" in said(programs, "pyverbs")


@pytest.mark.parametrize("name", JOBS)
def test_verbs__job_is_exact_and_on_time(jobs, name):
    assert "rank 0: " in said(jobs, name)
