"""`tailbound launch -n 4 script.py`: starts the ranks of a job on this host and sees every one of them to its end.

Each rank is the leader of a session of its own, so that whatever it started is ended with it. Output lines get the rank
in front. The first rank that fails ends the others, unless they are to go on. Ctrl-C and SIGTERM are passed on, and a
second one kills.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_LONGEST_LINE = 1 << 16
_PR_SET_PDEATHSIG = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `tailbound launch`."""
    parser.add_argument("-n", "--ranks", type=int, required=True, help="how many ranks to start on this host")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for every rank (again for more)"
    )
    parser.add_argument("--port", type=int, default=0, help="TCP port of the rendezvous (default: a free one)")
    parser.add_argument("--no-prefix", action="store_true", help="lines without [rank] in front")
    parser.add_argument(
        "--keep-going", action="store_true", help="a rank that fails does not end the others, which may vote it out"
    )
    parser.add_argument("-m", "--module", action="store_true", help="the program is a Python module, as in python -m")
    parser.add_argument("program", help="script.py, a module with -m, or any program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to it")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank: int, ranks: int, port: int, master_port: int, extra: dict[str, str]) -> dict[str, str]:
    """What a rank sees: torchrun's names, and our own rendezvous port apart from torch's."""
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
        "TAILBOUND_MASTER_PORT": str(port),
        "TAILBOUND_JOB": f"launch-{os.getpid()}",
        **extra,
    }


def command_of(program: str, arguments: list[str], module: bool) -> list[str]:
    """The argument vector of one rank. Python runs unbuffered, or the lines would come in blocks, long after the
    fact."""
    if module:
        return [sys.executable, "-u", "-m", program, *arguments]
    if program.endswith(".py"):
        return [sys.executable, "-u", program, *arguments]
    return [program, *arguments]


@dataclass
class Rank:
    """One child and the unfinished last line of each of its streams."""

    number: int
    process: subprocess.Popen
    rest: dict[str, bytes] = field(default_factory=lambda: {"out": b"", "err": b""})

    def kill(self, number: int) -> None:
        """To the child and all that it started, also when it is stopped or already gone."""
        for send in (number, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, send)


class Launcher:
    """The children, their output, and the signals that came."""

    def __init__(
        self, command: list[str], ranks: int, port: int, extra: dict[str, str], prefix: bool, keep_going: bool = False
    ) -> None:
        self.command, self.size, self.prefix, self.keep_going = command, ranks, prefix, keep_going
        self.unwritten: set[str] = set()  # streams of ours that could not be written
        self.port, self.extra = port or free_port(), extra
        self.master_port = free_port()
        self.ranks: list[Rank] = []
        self.selector = selectors.DefaultSelector()
        self.received: list[int] = []  # signals not passed on yet
        self.signals = 0
        self.failed = 0  # status of the first rank that ended badly
        self.told: set[int] = set()  # ranks whose bad end was said

    def run(self) -> int:
        """The exit status of the job: 0, the first failure's, or 128 + signal."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        previous = signal.set_wakeup_fd(wake_write)
        self.selector.register(wake_read, selectors.EVENT_READ, None)
        try:
            self._start()
            return self._watch(wake_read)
        finally:
            self._end_all()
            signal.set_wakeup_fd(previous)
            for number, handler in before.items():
                signal.signal(number, handler)
            self.selector.close()
            os.close(wake_read)
            os.close(wake_write)

    def _on_signal(self, number: int, _frame: object) -> None:
        self.received.append(number)
        self.signals += 1

    def _start(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        parent = os.getpid()

        def die_with_launcher() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        for number in range(self.size):
            process = subprocess.Popen(
                self.command,
                env=environment(number, self.size, self.port, self.master_port, self.extra),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=die_with_launcher,
            )
            rank = Rank(number, process)
            self.ranks.append(rank)
            for name, stream in (("out", process.stdout), ("err", process.stderr)):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
                self.selector.register(stream, selectors.EVENT_READ, (rank, name, stream))

    def _watch(self, wake_read: int) -> int:
        status, killing, kill_at = 0, False, float("inf")
        while self._alive():
            for key, _ in self.selector.select(0.05):
                if key.data is None:
                    os.read(wake_read, 4096)
                else:
                    self._read(*key.data)
            while self.received:
                number = self.received.pop(0)
                status = status or 128 + number
                for rank in self._alive():
                    rank.kill(signal.SIGKILL if self.signals > 1 else number)
                killing, kill_at = True, min(kill_at, time.monotonic() + GRACE)
            if not killing and self._failed() and not self.keep_going:
                status, killing, kill_at = self.failed, True, time.monotonic() + GRACE
                for other in self._alive():
                    other.kill(signal.SIGTERM)
            if time.monotonic() >= kill_at:
                for rank in self._alive():
                    rank.kill(signal.SIGKILL)
                kill_at = float("inf")
        return status or self._failed()

    def _failed(self) -> int:
        """The status of the first rank that ended badly; 0 = none. Told once: of it, or of each if they go on."""
        for rank in self.ranks:
            code = rank.process.poll()
            if not code or rank.number in self.told or (self.failed and not self.keep_going):
                continue
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
            then = "the others go on" if self.keep_going else "ending the others"
            self._say(f"tailbound launch: rank {rank.number} {how}; {then}")
            self.told.add(rank.number)
            self.failed = self.failed or (128 - code if code < 0 else code)
        return self.failed

    def _alive(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.process.poll() is None]

    def _end_all(self) -> None:
        """No process is left: not a rank, not a child of one, not a zombie. What they still had to say is printed."""
        for rank in self.ranks:
            rank.kill(signal.SIGKILL)
            rank.process.wait()
        for key in list(self.selector.get_map().values()):
            if key.data is not None:
                self._read(*key.data)
        for rank in self.ranks:
            for name in rank.rest:
                if rank.rest[name]:
                    self._print(rank, name, rank.rest[name])
            for stream in (rank.process.stdout, rank.process.stderr):
                if stream is not None:
                    stream.close()

    def _read(self, rank: Rank, name: str, stream: IO[bytes]) -> None:
        for piece in _pieces(stream.fileno()):
            if piece is None:
                self.selector.unregister(stream)
                return
            *lines, last = (rank.rest[name] + piece).split(b"\n")
            for line in lines:
                self._print(rank, name, line)
            if len(last) > _LONGEST_LINE:  # a line that never ends must not be kept for ever
                self._print(rank, name, last)
                last = b""
            rank.rest[name] = last

    def _print(self, rank: Rank, name: str, line: bytes) -> None:
        stream = sys.stdout if name == "out" else sys.stderr
        before = f"[{rank.number}] " if self.prefix else ""
        try:
            stream.write(before + line.decode("utf-8", "replace") + "\n")
            stream.flush()
        except BrokenPipeError:
            pass
        except OSError as error:  # a full disk: the job goes on without its log
            self._unwritten(name, error)

    def _unwritten(self, name: str, error: OSError) -> None:
        if name not in self.unwritten:
            self.unwritten.add(name)
            self._say(f"tailbound launch: std{name} cannot be written, lines of the ranks are lost: {error.strerror}")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # closed, or on a full disk
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def _pieces(descriptor: int) -> Iterator[bytes | None]:
    """What can be read now; None at the end of the stream."""
    while True:
        try:
            piece = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        yield piece or None
        if not piece:
            return


def main(options: argparse.Namespace) -> int:
    """`tailbound launch` after its command line was read."""
    if not 1 <= options.ranks <= 1024:
        print(f"tailbound launch: -n {options.ranks}: 1 to 1024 ranks", file=sys.stderr)
        return 2
    extra: dict[str, str] = {}
    for entry in options.env:
        name, equals, value = entry.partition("=")
        if not name or not equals:
            print(f"tailbound launch: --env {entry}: NAME=VALUE is needed", file=sys.stderr)
            return 2
        extra[name] = value
    command = command_of(options.program, options.arguments, options.module)
    try:
        job = Launcher(command, options.ranks, options.port, extra, not options.no_prefix, options.keep_going)
        return job.run() or int(bool(job.unwritten))
    except OSError as error:
        print(f"tailbound launch: cannot start {command[0]}: {error}", file=sys.stderr)
        return 127
