"""A device that takes rules of flows: DPDK's tap, which hands them to the kernel's traffic control. No NIC of QEMU's
takes any, and other virtual devices of DPDK refuse them: tests/dpdk/test_flow.c.
"""
import pytest

# Each takes seconds where a machine is idle, ten times that on a loaded one, and one try may be repeated.
pytestmark = pytest.mark.timeout(900)


def test_flow__rules_are_taken_and_taken_back(guest):
    program = guest.ROOT / "build/san/dpdk/test_flow"
    assert program.exists(), f"{program} is missing: make dpdk-tests"
    traffic_control = ["sch_multiq", "sch_ingress", "cls_flower", "act_skbedit", "act_mirred", "act_gact"]
    done = guest.run(program, "tap", timeout=200, modules=["veth", "bridge", "tun", *traffic_control], memory=1536)
    assert "[  PASSED  ] 1 test(s)." in done.stdout + done.stderr, done.stdout + done.stderr
