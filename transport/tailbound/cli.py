"""The command `tailbound`: launch, config, doctor, links, build-plugin, demo, perf. Each is imported when
asked for."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import Config

PERF = """The perf binaries are C programs, built from a source tree by `make build` into build/bench:
  all_reduce_perf   flags, columns and JSON of nccl-tests, then p99(us) recv% miss nmse
  stream_bw         one-way bandwidth, server and client, columns of perftest
  pingpong_lat      round-trip latency, server and client, columns of perftest
  reduce_bench      the reduction kernels alone, in memory
  compute_bench     the Hadamard transform and the wire encodings alone, in memory
  link_bench        a link alone (udp, dpdk), two processes: what a frame costs at each burst size
Each prints its options with --help. Ranks on one host:
  tailbound launch -n 2 build/bench/all_reduce_perf -b 64K -e 4M -f 4"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from .launch import add_arguments

    top = argparse.ArgumentParser(prog="tailbound", description="All-reduce by a deadline over unreliable datagrams.")
    top.add_argument("--version", action="store_true", help="print the version of the core")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    add_arguments(commands.add_parser("launch", help="start the ranks of a job on this host"))
    config = commands.add_parser("config", help="every option: value, where it came from, why it exists")
    config.add_argument("--short", action="store_true", help="one line an option")
    config.add_argument("name", nargs="*", help="only these, as options or variables")
    doctor = commands.add_parser("doctor", help="check this host; a one-line remedy for each finding")
    doctor.add_argument("-n", "--ranks", type=int, default=0, help="ranks that will run here, for the check of cores")
    commands.add_parser("links", help="the links there are, the interfaces, and which one auto takes")
    plugin = commands.add_parser("build-plugin", help="compile a link that needs a library: dpdk, verbs")
    plugin.add_argument("name", help="dpdk or verbs: needs the headers of DPDK or libibverbs, and a C compiler")
    plugin.add_argument("--to", metavar="FOLDER", help="where to (default: beside the package, or ~/.local/share)")
    demo = commands.add_parser("demo", help="train over a lossy network, on time, beside an exact run")
    demo.add_argument("arguments", nargs=argparse.REMAINDER, help="of the demo, see `tailbound demo --help`")
    commands.add_parser("perf", help="which perf binaries there are and how to run them")
    return top


def _unknown(config: Config, name: str) -> str:
    """The core's sentence about a name that is no option: it has the one that was probably meant."""
    from .errors import ConfigError

    try:
        config.set(name, "")
    except ConfigError as error:
        return str(error)
    return ""


def _config(options: argparse.Namespace) -> int:
    from .config import Config, table

    config = Config()
    rows = config.rows()
    if options.name:
        known = {name: row for row in rows for name in (row.name, row.env)}
        for name in options.name:
            if name not in known:
                print(f"tailbound config: {_unknown(config, name)}", file=sys.stderr)
                return 2
        rows = [known[name] for name in options.name]
    print(table(rows, reasons=not options.short))
    for name in sorted(set(os.environ) - {row.env for row in config.rows()}):
        if name.startswith("TAILBOUND_") and "did you mean" in (why := _unknown(config, name[10:].lower())):
            print(f"tailbound config: {name} has no effect: {why}", file=sys.stderr)
    return 0


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _unwritten(error: OSError) -> int:
    print(f"tailbound: cannot write: {error.strerror}", file=sys.stderr)
    return 1


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 well, 1 a finding or a failure, 2 a wrong command line."""
    status = _main(argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:  # a full disk: what was asked for is not there
        status = status or _unwritten(error)
    else:
        return status
    with contextlib.suppress(OSError):  # Python itself flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _main(argv: list[str] | None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["demo"]:  # its own options, --help included, are read by itself
        from .demo import main as demo

        return demo(arguments[1:])
    options = parser().parse_args(arguments)
    try:
        if options.version:
            from . import __version__

            print(f"tailbound {__version__}")
            return 0
        if options.command == "launch":
            from .launch import main as launch

            return launch(options)
        if options.command == "config":
            return _config(options)
        if options.command == "doctor":
            from .doctor import main as doctor

            return doctor(options.ranks)
        if options.command == "links":
            from .links_cmd import main as links

            return links()
        if options.command == "build-plugin":
            from .build_plugin import main as build_plugin

            return build_plugin(options.name, options.to)
        if options.command == "perf":
            print(PERF)
            return 0
    except BrokenPipeError:  # | head
        sys.stderr.close()
        return 0
    except Exception as error:
        from .errors import Error

        if not isinstance(error, Error):
            if isinstance(error, OSError) and error.errno in _FULL:
                return _unwritten(error)
            raise
        print(f"tailbound {options.command}: {error}", file=sys.stderr)
        return 1
    parser().print_help()
    return 2


if __name__ == "__main__":
    sys.exit(main())
