"""Namespaces of laboratories on this machine: what they are called, who owns them, and how they go away."""

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys

import netlab_kernel as kernel

PREFIX = "netlab"
NETNS = "/run/netns"


class LabError(RuntimeError):
    pass


def tool(*argv, stdin=None):
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True)
    if done.returncode:
        script = f" (given {stdin!r})" if stdin else ""
        raise LabError(f"`{' '.join(argv)}`{script} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def ip(*argv):
    return tool("ip", *argv)


def identity(pid):
    """pid and start time, so that a recycled pid does not protect a dead laboratory; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{pid}.{fields[19]}"


def unavailable():
    """Why no laboratory can be built here, as a sentence with the remedy; "" when it can."""
    if not sys.platform.startswith("linux"):
        return "the network laboratory needs Linux"
    if os.geteuid() != 0:
        return "the network laboratory needs root: run as root or under sudo"
    name = f"{PREFIX}-{identity(os.getpid())}-probe"
    try:
        ip("netns", "add", name)
    except FileNotFoundError:
        return "the network laboratory needs ip and tc: apt-get install iproute2"
    except LabError as error:
        return f"the network laboratory needs network namespaces: {error}"
    try:
        ip("-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
        ip("-n", name, "link", "add", "probe2", "type", "bridge")
        tool("tc", "-n", name, "qdisc", "add", "dev", "probe0", "clsact")
        kernel.Array(1, 8).close()
    except LabError as error:
        return f"the network laboratory needs the kernel's veth, bridge and clsact: {error}"
    except OSError as error:
        return f"the network laboratory needs the bpf system call and tc: {error}"
    finally:
        ip("netns", "del", name)
    return ""


def namespaces():
    """Names of the namespaces of all laboratories on this machine."""
    try:
        return sorted(n for n in os.listdir(NETNS) if n.startswith(PREFIX + "-"))
    except FileNotFoundError:
        return []


def remove_stale():
    """Remove what laboratories of processes that no longer exist left behind, processes in them included."""
    for name in namespaces():
        found = re.fullmatch(PREFIX + r"-(\d+)(\.\d+)-.*", name)
        if not found or identity(int(found[1])) == found[1] + found[2]:
            continue
        remove(name)


def remove(name):
    try:
        for pid in ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        ip("netns", "del", name)
    except LabError:
        if os.path.exists(f"{NETNS}/{name}"):  # somebody else may have removed it in between
            raise


def group_of(user):
    return str(pwd.getpwnam(user).pw_gid)


def readable_by_others(path):
    path = os.path.realpath(shutil.which(path) or path)
    while True:
        if not os.stat(path).st_mode & 0o001:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)
