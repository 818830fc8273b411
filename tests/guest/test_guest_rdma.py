"""The verbs link on soft-RoCE devices in the guest: this machine's kernel need not have any RDMA."""
import re
from pathlib import Path

import pytest

# Each takes seconds where a machine is idle, ten times that on a loaded one, and one try may be repeated.
pytestmark = pytest.mark.timeout(900)

MODULES = ["rdma_rxe", "ib_uverbs", "veth", "bridge", "sch_netem"]
JUMBO, COMMON = 4200, 1500  # of the cables: frames of 4096 and of 1024 bytes
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")


@pytest.fixture
def rdma(guest):
    reason = guest.packages("rdma")
    if reason:
        pytest.skip(reason)
    built = guest.ROOT / "build/san/verbs/test_conformance"
    assert built.exists(), f"{built} is not there: make verbs-tests plugins"

    def run(devices, mtu, *command, timeout):
        done = guest.run(guest.HERE / "rdma.sh", devices, mtu, *command, timeout=timeout, modules=MODULES)
        print(done.stdout, done.stderr)
        return done.stdout + done.stderr  # cmocka sums up on the latter

    run.tests, run.python = built.parent, (guest.sys.executable, guest.HERE / "rdma_job.py")
    return run


def passed(text):
    count = re.search(r"\[  PASSED  \] (\d+) test", text)
    assert count, text
    assert "FAILED" not in text
    return int(count[1])


@pytest.mark.parametrize(("ends", "tests"), [(["rxe0", "rxe1", "rxe2"], 50), (["fd00:7::1"], 25)], ids=["IPv4", "IPv6"])
def test_verbs__keeps_what_every_link_promises(rdma, ends, tests):
    """Over IPv6 on one device: between two of its own interfaces Linux passes none of its own addresses' packets."""
    assert passed(rdma(3, JUMBO, rdma.tests / "test_conformance", *ends, timeout=240)) == tests


def test_verbs__outlives_failed_queues_lost_peers_and_a_port_that_goes_down(rdma):
    assert passed(rdma(3, JUMBO, rdma.tests / "test_device", timeout=240)) >= 11


def test_verbs__reads_registered_memory_and_never_what_was_there_before(rdma):
    assert passed(rdma(3, JUMBO, rdma.tests / "test_ref", timeout=240)) >= 7


@pytest.mark.parametrize(
    ("devices", "mtu", "jobs"),
    [(2, COMMON, ["clean2", "loss2"]), (4, COMMON, ["clean4", "loss4"]), (3, JUMBO, ["busy2", "silent"]),
     (2, JUMBO, ["registered2", "churn2"])],
    ids=["two-ranks", "four-ranks", "busy-and-silent-peers", "registered-memory"],
)
def test_verbs__jobs_are_exact_and_on_time(rdma, devices, mtu, jobs):
    said = rdma(devices, mtu, *rdma.python, *jobs, timeout=240)
    assert [name for name in jobs if f"{name} ok" not in said] == []


def test_verbs__and_pyverbs_understand_each_other(rdma, guest):
    """Another implementation speaks to our link, and says what none of ours would."""
    reason = guest.packages("pyverbs")
    version = f"cpython-{guest.sys.version_info.major}{guest.sys.version_info.minor}"
    if not reason and not list(PYVERBS.glob(f"device.{version}-*.so")):
        reason = f"Debian's pyverbs is for another Python than {version}"
    if reason:
        pytest.skip(reason)
    folder = guest.ROOT / "build/guest/pyverbs"  # all of dist-packages would shadow the venv's
    folder.mkdir(exist_ok=True)
    if not (folder / "pyverbs").is_symlink():
        (folder / "pyverbs").symlink_to(PYVERBS)
    said = rdma(2, JUMBO, "env", f"PYTHONPATH={folder}", guest.sys.executable, guest.HERE / "pyverbs_peer.py",
                rdma.tests / "peer", timeout=120)
    assert "pyverbs and our link understand each other" in said
