"""The guest itself, and what it gives that few machines have: another kernel, netem."""
import platform

import pytest

# Each takes seconds where a machine is idle, ten times that on a loaded one, and one try may be repeated.
pytestmark = pytest.mark.timeout(900)

SIMULATED = """
import platform
import sys
import numpy as np
import tailbound as tb

def average(comm):
    x = np.full(1000, float(comm.rank), np.float32)
    result = comm.all_reduce(x, op="avg", deadline="inf")
    assert result.received == 1, result
    return x

with tb.simulate(4, seed=1, loss=0.05) as world:
    for x in world.run(average):
        assert (x == 1.5).all(), x
print("kernel", platform.release())
print("apart", file=sys.stderr)
sys.exit(7)
"""


def test_guest__runs_the_project_on_another_kernel(guest):
    done = guest.python("-c", SIMULATED, status=7, timeout=120)
    assert done.stderr.splitlines()[-1] == "apart"
    name, kernel = done.stdout.split()
    assert name == "kernel"
    assert kernel != platform.release()


def test_guest__command_that_hangs_is_told_from_a_guest_that_hangs(guest):
    done = guest.run("sh", "-c", "echo before; exec sleep 100", timeout=4, status=124)
    assert done.stdout == "before\n"
    assert "did not end in 4 s" in done.stderr


def test_guest__netem_delay_and_loss_cost_no_deadline(guest):
    done = guest.python(guest.HERE / "netem_job.py", timeout=120, modules=["veth", "bridge", "sch_netem"])
    print(done.stdout)
