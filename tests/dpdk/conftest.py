"""For the Python tests of this folder: the laboratory and the jobs of the link tests, and a reader of frames, scapy."""
import pathlib
import sys

_TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_TESTS / "dpdk"), str(_TESTS / "links"), str(_TESTS / "faults"), str(_TESTS.parent / "bench")]

import captured  # noqa: E402 (the line above makes it importable)
import kinds  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture
def run(tmp_path):
    """captured.Run over the frames that it is given."""
    reason = kinds.dpdk_plugin()
    if reason:
        pytest.skip(reason)
    assert captured.PROGRAM.exists(), f"{captured.PROGRAM} is missing: make dpdk-tests"
    return lambda *heard, **how: captured.Run(tmp_path, heard, **how)
