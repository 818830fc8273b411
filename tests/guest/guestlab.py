"""Runs a command in the guest of run-in-guest.sh; see there. What it prints is in the failure's message."""
import functools
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "run-in-guest.sh"

GUEST_BROKE = 125  # the guest, not the command: see the script
SETUP_SECONDS = 300


def packages(need):
    """Why what tests need is not on this machine and cannot be installed (scripts/need.sh says it); "" when it is."""
    done = subprocess.run(["sh", str(ROOT / "scripts/need.sh"), need], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=SETUP_SECONDS)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"scripts/need.sh {need} failed")


@functools.cache
def unavailable():
    """Why there can be no guest here; "" when there can. Sets it up if it is not yet."""
    done = subprocess.run([SCRIPT, "--setup"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=SETUP_SECONDS)
    return "" if done.returncode == 0 else "no QEMU guest: " + done.stderr.strip()


def run(*command, timeout=30, status=0, modules=(), nics=(), iommu=False, memory=1024, env=None):
    """The CompletedProcess of a command in a guest; once more if the guest itself hung or died.

    nics: ("virtio-net-pci", "e1000e"): see nic(i) for their addresses. Another status than the wanted one fails;
    None: any will do.
    """
    argv = [str(SCRIPT), "--timeout", str(timeout), "--mem", str(memory), "--modules", " ".join(modules)]
    for model in nics:
        argv += ["--nics", f"1:{model}"]
    argv += ["--iommu"] * iommu + ["--", *map(str, command)]
    clean = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
             "OPENBLAS_NUM_THREADS": "1", **(env or {})}
    done = _once(argv, clean, timeout)
    if done.returncode == GUEST_BROKE:
        print(f"the guest broke, once more:\n{done.stderr[-2000:]}")
        done = _once(argv, clean, timeout)
    assert status is None or done.returncode == status, (
        f"{' '.join(map(str, command))}\nin the guest: status {done.returncode}, wanted {status}\n"
        f"--- stdout\n{done.stdout[-6000:]}\n--- stderr\n{done.stderr[-6000:]}")
    return done


def _once(argv, env, timeout):
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, errors="replace", cwd=ROOT, env=env)
    try:
        # the script bounds the guest; this bound is for the script
        out, err = process.communicate(timeout=timeout + 200)
    except BaseException:
        process.terminate()  # and not killed: it has a folder to remove
        process.communicate(timeout=30)
        raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def python(*argv, **how):
    """run() of this interpreter: its real path, because a launcher script in between costs seconds there."""
    return run(sys.executable, *argv, **how)


def nic(index):
    """PCI address of the index-th NIC."""
    return f"0000:00:{16 + index:02x}.0"
