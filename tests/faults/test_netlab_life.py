"""A laboratory goes away with its block, its process, or the next laboratory's start."""
import os
import signal
import subprocess
import sys
import time

import netlab_host
import pytest


def test_close__ends_processes_and_leaves_no_namespace(laboratory):
    with laboratory.Lab(2) as net:
        mine = [n for n in netlab_host.namespaces() if n.startswith(net.namespace()[:-len("switch")])]
        assert len(mine) == 3
        process = net.run(0, ["sleep", "60"])
    assert process.returncode == -signal.SIGKILL
    assert not set(mine) & set(netlab_host.namespaces())
    net.close()  # a second time does nothing


def test_close__happens_when_the_block_raises(laboratory):
    with pytest.raises(RuntimeError, match="in the block"), laboratory.Lab(1) as net:
        raise RuntimeError("in the block")
    assert net.namespace() not in netlab_host.namespaces()


OWNER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import netlab
lab = netlab.Lab(2)
lab.run(0, ["sleep", "60"])
lab.loss(0, 0.5)
print(lab.namespace(), flush=True)
if sys.argv[2] == "exit": sys.exit(3)
time.sleep(60)
"""


def start_owner(laboratory, how):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, os.path.dirname(laboratory.__file__), how],
                             stdout=subprocess.PIPE, text=True)
    name = owner.stdout.readline().strip()
    assert name
    if how == "exit":
        return owner, name
    assert name in netlab_host.namespaces()
    return owner, name


@pytest.mark.parametrize(("how", "status"), [("exit", 3), ("INT", -signal.SIGINT), ("TERM", -signal.SIGTERM),
                                        ("HUP", -signal.SIGHUP)])
def test_close__happens_when_the_owner_ends(laboratory, how, status):
    owner, name = start_owner(laboratory, how)
    with owner:
        if how != "exit":
            owner.send_signal(getattr(signal, "SIG" + how))
        assert owner.wait(timeout=10) == status
    assert not [n for n in netlab_host.namespaces() if n.startswith(name[:-len("switch")])]


def test_start__removes_what_a_killed_owner_left_with_its_processes(laboratory):
    owner, name = start_owner(laboratory, "KILL")
    with owner:
        rank0 = name[:-len("switch")] + "0"
        inside = subprocess.run(["ip", "netns", "pids", rank0], capture_output=True, text=True).stdout.split()
        owner.kill()
        owner.wait()
        assert inside
        assert name in netlab_host.namespaces()
    with laboratory.Lab(1):
        assert not [n for n in netlab_host.namespaces() if n.startswith(name[:-len("switch")])]
        limit = time.monotonic() + 5
        while any(netlab_host.identity(int(pid)) for pid in inside) and time.monotonic() < limit:
            time.sleep(0.01)
        assert not any(netlab_host.identity(int(pid)) for pid in inside)


def test_start__leaves_the_laboratory_of_a_living_owner_alone(laboratory):
    owner, name = start_owner(laboratory, "TERM")
    with owner:
        with laboratory.Lab(1):
            assert name in netlab_host.namespaces()
        owner.terminate()
        owner.wait(timeout=10)
