"""For the Python tests of this folder: the laboratory and the jobs of the link tests, and a reader of frames, scapy."""
import pathlib
import sys

_TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_TESTS / "dpdk"), str(_TESTS / "links"), str(_TESTS / "faults"), str(_TESTS.parent / "bench")]
