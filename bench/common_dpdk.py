"""What the dpdk_*.py scripts share: a laboratory of two ranks, our programs there, testpmd there and what it prints.

testpmd is in Debian's package dpdk-dev; nothing else of Tailbound needs it.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import netlab
import netlab_host

HERE = Path(__file__).resolve().parent.parent
PROGRAMS = HERE / "build/bench"
FRAME = 1472  # of ours; 42 bytes of Ethernet, IP and UDP come before it
PAYLOAD = FRAME - 64
RING = "framesz=2048,blocksz=16384,framecnt=4096,qpairs=1"  # what the link asks of af_packet
STARTED_S = 60.0


class Failed(RuntimeError):
    """A program of the run did not do what it should; its last words."""


def needs(testpmd: bool) -> str:
    """What is missing, as a sentence with the remedy; "" when nothing is."""
    if not (PROGRAMS / "stream_bw").exists():
        return "there are no perf programs: make build"
    if not list((PROGRAMS.parent / "plugins").glob("libtailbound_dpdk-*.so")):
        return "there is no dpdk link: make plugins"
    if testpmd and not shutil.which("dpdk-testpmd"):
        return "there is no testpmd to compare with: apt-get install dpdk-dev"
    return netlab_host.unavailable()


def load() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


class Rig:
    """Two ranks whose eth0 belong to whoever drives them, and a folder for memif's socket."""

    def __init__(self, folder: str, mtu: int = 1500) -> None:
        self.lab = netlab.Lab(2, mtu=mtu, management=True, bare=[0, 1])
        self.folder, self.turn = folder, 0

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.lab.close()

    def socket(self) -> str:
        """Another one each time: who comes late to the last one's meets nobody."""
        self.turn += 1
        return f"{self.folder}/m{self.turn}"

    def device(self, kind: str, socket: str) -> str:
        return f"memif:{socket}" if kind == "memif" else "af_packet:eth0"

    def variables(self, kind: str, rank: int, server: int, socket: str, port: int) -> dict[str, str]:
        """Of one rank of a job; `server` is where its rank 0 runs, the rendezvous and memif's server."""
        given = {name: value for name, value in os.environ.items() if not name.startswith("TAILBOUND_")}
        drop = {name: "" for name in os.environ if name not in given}
        job = {"RANK": str(int(rank != server)), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": str(port),
               "MASTER_ADDR": self.lab.management(server), "TAILBOUND_LOG": "error"}  # fmt: skip
        if kind == "udp":
            return {**drop, **job, "TAILBOUND_LINK": "udp", "TAILBOUND_INTERFACE": "eth0"}
        return {**drop, **job, "TAILBOUND_LINK": "dpdk", "TAILBOUND_DEVICE": self.device(kind, socket),
                "TAILBOUND_IP": f"{self.lab.ip4(rank)}/16", "TAILBOUND_HUGEPAGES": "off"}  # fmt: skip

    def start(self, rank: int, cpu: int | None, argv: list[str], **popen: Any) -> subprocess.Popen[str]:
        pinned = ["taskset", "-c", str(cpu)] if cpu is not None else []
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return self.lab.run(rank, [*pinned, *argv], **pipes, **popen)


def finish(processes: list[subprocess.Popen[str]], seconds: float) -> list[str]:
    """What each of them printed; all of them have to end well."""
    until = time.monotonic() + seconds
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=max(1.0, until - time.monotonic()))[0])
            if process.returncode:
                raise Failed(f"{process.args} ended with {process.returncode}:\n{said[-1][-2000:]}")
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{error.cmd} did not end in {seconds:g} s") from error
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    return said


# ---- testpmd -------------------------------------------------------------------------------------------------------


def parse_port_stats(text: str) -> list[dict[str, int]]:
    """Every `show port stats` in testpmd's output. The rates of a block are those since the block before it."""
    blocks = text.split("NIC statistics for port")[1:]
    names = {"RX-packets": "rx", "TX-packets": "tx", "RX-missed": "missed", "Rx-pps": "rx_pps", "Tx-pps": "tx_pps"}
    found = []
    for block in blocks:
        values = {ours: re.search(rf"{theirs}:\s+(\d+)", block) for theirs, ours in names.items()}
        if absent := [name for name, match in values.items() if not match]:
            raise Failed(f"testpmd's statistics have no {', '.join(absent)}:\n{block[:1000]}")
        found.append({name: int(match[1]) for name, match in values.items() if match})
    return found


class Testpmd:
    """One testpmd, on one core, in a rank's namespace; it is told what to do on its standard input."""

    def __init__(self, rig: Rig, rank: int, cpu: int, device: str, mode: str, extra: list[str]) -> None:
        eal = ["--no-huge", "-m", "512", "--no-shconf", "--no-pci", "--no-telemetry", "--lcores", f"0@{cpu},1@{cpu}"]
        argv = ["stdbuf", "-oL", "dpdk-testpmd", *eal, "--vdev", device, "--", "-i", f"--forward-mode={mode}", *extra]
        self.process = rig.start(rank, None, argv, stdin=subprocess.PIPE)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.text = ""
        self.await_text("testpmd> ", 1)

    def await_text(self, what: str, times: int) -> None:
        until = time.monotonic() + STARTED_S
        while self.text.count(what) < times:
            if self.process.poll() is not None or time.monotonic() > until:
                raise Failed(f"testpmd: no {what!r} from it:\n{self.text[-2000:]}")
            if self.readable():
                self.text += os.read(self.process.stdout.fileno(), 1 << 16).decode(errors="replace")

    def readable(self) -> bool:
        return bool(select.select([self.process.stdout], [], [], 0.05)[0])

    def say(self, command: str) -> None:
        prompts = self.text.count("testpmd> ")
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Failed(f"testpmd ended with {self.process.wait(10)}:\n{self.text[-2000:]}") from error
        self.await_text("testpmd> ", prompts + 1)

    def stats(self) -> dict[str, int]:
        self.say("show port stats 0")
        return parse_port_stats(self.text)[-1]

    def end(self) -> None:
        try:
            if self.process.poll() is None:
                self.process.stdin.write("stop\nquit\n")
            self.process.stdin.close()
        except BrokenPipeError:  # it died; whoever wanted something of it was told
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def testpmd_device(kind: str, socket: str, server: bool) -> str:
    if kind == "memif":
        role = "server" if server else "client"
        return f"net_memif0,role={role},id=0,bsize=9216,socket={socket},socket-abstract=no"
    return f"net_af_packet0,iface=eth0,{RING}"


def run_json(rig: Rig, argv: list[str], seconds: float) -> list[dict[str, Any]]:
    """A program of this host's own namespace that prints an object a line."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise Failed(f"{argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def stop_with(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 3
