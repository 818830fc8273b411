"""The dpdk link through a process's life: opened and closed many times, its peers killed, its cable pulled, forked,
interrupted.

    TB_LIFE=full .venv/bin/python -m pytest tests/links/test_dpdk_life.py   # 1,000 cycles, 20 processes, 20 kills
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import netlab_host
import pytest
from harness import check_on_time, check_values, median
from kinds import KINDS

FULL = os.environ.get("TB_LIFE") == "full"
CYCLES, PROCESSES, KILLS = (1000, 20, 20) if FULL else (100, 2, 2)
# 200 ms are promised; a machine with more ranks than cores gets this much on top before the test calls it late.
SOON = 0.2 + 0.3
DEADLINE = 0.1
PAGE = os.sysconf("SC_PAGE_SIZE")
GROWTH = 256 * PAGE  # resident bytes that a process may gain in any number of cycles: what malloc keeps

WORKER = pathlib.Path(__file__).resolve().parent / "dpdk_steps.py"
TRANSPORT = WORKER.parent.parent.parent / "transport"
DEVICES = ("dpdk-af_packet", "dpdk-af_xdp", "dpdk-memif")
SHARED = [(kind, 2, {"worker": WORKER}) for kind in KINDS if kind.name in DEVICES]


def exact(job):
    said = job.step("exact", timeout=6, what="all_reduce", dtype="float32", counts=[50_021], key=job.key("exact"))
    assert all(line["wrong"] == {"50021": 0} for line in said.values()), said


def begin_on_own_options(job, do, **arguments):
    return job.begin(do, each=lambda rank: {"options": job.options_of(rank)}, **arguments)


def test_cycles__open_files_and_resident_size_stay(job):
    job.step("close", timeout=4)
    began = time.monotonic()
    said = job.end(begin_on_own_options(job, "cycles", n=CYCLES), timeout=30 + CYCLES)
    print(f"{CYCLES} cycles in {time.monotonic() - began:.1f} s: {said}")
    for rank, line in said.items():
        files, sizes = zip(*line["after"], strict=True)
        assert set(files) == {files[0]}, f"open files of rank {rank}: {files}"
        assert max(sizes[1:]) - sizes[0] < GROWTH, f"resident bytes of rank {rank}: {sizes}"
    job.init()


def test_processes__each_as_large_as_the_first(job):
    files, sizes = [], []
    for _ in range(PROCESSES):
        said = again(job)
        files.append([said[rank]["descriptors"] for rank in job.ranks])
        sizes.append([said[rank]["resident"] for rank in job.ranks])
        exact(job)
    print(f"open files {files}, resident MB {[[size >> 20 for size in pair] for pair in sizes]}")
    assert all(pair == files[0] for pair in files), files
    for of_rank in zip(*sizes, strict=True):
        assert max(of_rank) - min(of_rank) < 0.1 * min(of_rank), sizes


def again(job):
    """All ranks' processes end and start anew on the same devices, which nobody closed properly."""
    for rank in job.ranks:
        job.processes[rank].kill()
        job.start(rank)
    return job.init(head_start=0.2)


def test_killed__is_told_by_the_deadline_and_the_devices_serve_again(job):
    for i in range(KILLS):
        victim = i % 2
        other, key = 1 - victim, job.key("steps")
        step = job.begin("phase", phase={"name": key, "key": key, "n": 12, "count": 20_000, "deadline": DEADLINE,
                                         "gap": 0.01, "tagged": False})
        for rank in job.ranks:
            job.wait_for(rank, 4, what="op", phase=key, op=3)
        killed = job.signal(victim, signal.SIGKILL)
        job.end(step, timeout=6, ranks=[other])
        check_values(job, [other])
        after = [o for o in job.ops(other, key) if o["t0"] > killed]
        assert after, "all rounds were over before the kill"
        check_on_time(after)
        assert all(o["peers"][str(victim)] < 1 for o in after[1:]), after
        said = job.step("exact", timeout=7, ranks=[other], errors=True, what="all_reduce", dtype="float32", counts=[10],
                        key=job.key("exact"))
        assert said[other]["error"] == "PeerLost", said
        assert said[other]["text"].startswith(f"rank {victim} was silent"), said
        job.step("close", timeout=4, ranks=[other])
        job.start(victim)
        for rank in job.ranks:
            job.lines[rank].clear()
        job.init()
        exact(job)


def test_cable__pulled_rounds_miss_and_say_so_and_plugged_they_are_whole(job, net):
    key = job.key("cable")

    def rounds(name, n):
        job.step("phase", timeout=6, phase={"name": name, "key": key, "n": n, "count": 20_000, "deadline": DEADLINE,
                                            "gap": 0.02, "tagged": False})
        return [o for rank in job.ranks for o in job.ops(rank, name)]

    port = ("-n", net.namespace(), "link", "set", "p1")
    assert all(o["received"] == 1 for o in rounds("before", 5)[1:])
    netlab_host.ip(*port, "down")
    during = rounds("pulled", 8)
    time.sleep(0.6)  # a wait looks at the cable twice a second
    during += rounds("still", 2)
    netlab_host.ip(*port, "up")
    plugged = rounds("plugged", 12)
    check_values(job)
    check_on_time(during + plugged)
    assert all(o["received"] < 1 and o["verdict"] == "partial" for o in during), during
    for rank in job.ranks:
        assert median(o["received"] for o in job.ops(rank, "plugged")) == 1, plugged
    exact(job)
    said = "".join(job.errors[1])
    assert re.search(r"net_af_\w+_eth0 has no link: the cable.*ip link set eth0 up", said), said


@pytest.mark.parametrize("how", ["os", "fork"])
def test_fork__child_is_refused_and_the_parent_goes_on(job, how):
    said = job.step("init_forked", timeout=15, ranks=[0], how=how, options=job.options_of(0))
    assert "rank 0: dpdk: DPDK was started before this process was forked" in said[0]["said"], said
    assert 'multiprocessing: "spawn"' in said[0]["said"], said
    exact(job)


def test_interrupt__during_init_ends_it_and_it_can_begin_again(job):
    """Rank 1 of memif waits in its link for a server; of others, in the rendezvous."""
    job.step("close", timeout=4)
    job.processes[0].kill()  # its parked device would answer
    step = job.begin("init", ranks=[1], each=lambda rank: {"options": job.options_of(rank)})
    time.sleep(0.6)
    sent = job.signal(1, signal.SIGINT)
    said = job.end(step, timeout=5, ranks=[1])[1]
    assert 0 <= said["interrupted"] - sent < SOON, said
    job.start(0)
    job.init()
    exact(job)


def test_interrupt__during_an_exact_call_gives_the_input_back(job):
    key = job.key("interrupted")
    step = job.begin("exact_interrupted", ranks=[1], key=key)
    job.wait_for(1, 3, what="waits", key=key)
    time.sleep(0.3)
    sent = job.signal(1, signal.SIGINT)
    said = job.end(step, timeout=5, ranks=[1])[1]
    assert said["interrupted"] is not None, said
    assert 0 <= said["interrupted"] - sent < SOON, said
    assert said["kept"], said
    exact(job)


@pytest.mark.parametrize("place", [0, 1], ids=["same namespace", "another namespace"])
def test_second__on_the_same_device_is_refused_and_the_first_goes_on(job, place):
    """Of memif the files are the same in every network namespace, an interface is only in its own."""
    if job.kind.switched and place:
        return
    code = ("import json, sys, tailbound as tb\ntry:\n    tb.init(**json.loads(sys.argv[1]))\n"
            "except tb.Error as error:\n    print(error)\n")
    told = {"rank": 0, "size": 2, "address": f"{job.lab.management(place)}:29557", **job.options_of(0)}
    second = job.lab.run(place, [sys.executable, "-c", code, json.dumps(told)], text=True, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PYTHONPATH": str(TRANSPORT)})
    said, errors = second.communicate(timeout=20)
    serving = r"another process, number \d+, serves \S+: end it, give this one the role client, or another path"
    sitting = "another process has a device on eth0"
    assert re.search(sitting if job.kind.switched else serving, said), (said, errors)
    exact(job)
