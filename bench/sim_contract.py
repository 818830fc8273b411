"""The contract over the simulated network, by the thousand: random jobs with faults, judged by the oracle that reads
the delivery log, and the scenarios whose figures the project shows.

    python bench/sim_contract.py                       10,000 random all-reduces, then every scenario at full size
    python bench/sim_contract.py --only loss,late      some classes or scenarios (--list names them)
    python bench/sim_contract.py --operations 500 --seed 7

An operation is one all_reduce of one key and round; every rank that took part is judged. "must" are the contributions
and decided chunks that the log shows delivered one round trip before their close; "counted" those of them that are in
the bytes. Everything is a function of the seed: a row's failures print the job's seed and run again with --seed.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "transport"))

import sim_shows
from sim_job import CLASSES, random_job, run

SCENARIOS = {
    "blackholed": lambda k: [sim_shows.blackholed(k)],
    "issuer": lambda k: [sim_shows.late_issuer(k)],
    "loss10": lambda k: [sim_shows.lossy(k, 10)],
    "loss500": lambda k: [sim_shows.lossy(k, 500)],
    "faultless": lambda k: [
        sim_shows.faultless(max(k // 100, 4), n, chunks, delay, rate)
        for n, chunks, delay, rate in (
            (2, 10, 50e-6, "10G"),
            (2, 100, 50e-6, "10G"),
            (2, 1000, 50e-6, "10G"),
            (4, 10, 50e-6, "10G"),
            (4, 100, 50e-6, "10G"),
            (4, 1000, 50e-6, "10G"),
            (8, 10, 50e-6, "10G"),
            (8, 100, 50e-6, "10G"),
            (4, 100, 5e-6, "10G"),
            (4, 100, 1e-3, "10G"),
            (4, 1000, 50e-6, "100G"),
        )
    ],
}
PIECE = 50  # operations of a scenario that share a world: the log of more would fill the memory


def random_class(fault, operations, first_seed):
    """Row of the table, and what was wrong: (seed, text)."""
    row = {
        "class": fault,
        "jobs": 0,
        "operations": 0,
        "calls": 0,
        "must": 0,
        "counted": 0,
        "values": 0,
        "value errors": 0,
        "late": 0,
        "other": 0,
        "refused": 0,
    }
    received, wrong, seed, began = [], [], first_seed, time.monotonic()
    while row["operations"] < operations:
        found = run(random_job(seed, fault))
        report = found.check()
        row["jobs"] += 1
        row["operations"] += report.rounds
        row["calls"] += report.operations
        row["must"] += report.must
        row["counted"] += report.counted
        row["values"] += report.values
        row["value errors"] += sum(report.kinds[k] for k in ("value", "torn", "exact", "memory"))
        row["late"] += report.kinds["late"]
        row["refused"] += len(found.refused)
        wrong += [(seed, text) for text in report.wrong]
        received += [c.result.received for c in found.calls if c.result]
        seed += 1
    row["other"] = len(wrong) - row["value errors"] - row["late"]
    row["seeds"] = f"{first_seed}..{seed - 1}"
    row["received %"] = f"{100 * sum(received) / max(len(received), 1):.2f}"
    row["s"] = f"{time.monotonic() - began:.0f}"
    return row, wrong


def table(rows):
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    for line in (dict(zip(names, names, strict=True)), *rows):
        print("  ".join(str(line[name]).rjust(width) for name, width in zip(names, widths, strict=True)))


def merged(figures):
    """Pieces of one scenario as one figure: the mean of means, the worst of the rest."""
    one = figures[0]
    for name in one.values:
        every = [figure.values[name] for figure in figures]
        if name.startswith("mean"):
            one.values[name] = sum(every) / len(every)
        elif name.startswith(("rounds", "refused")):
            one.values[name] = sum(every)
        else:
            one.values[name] = min(every) if "least" in name else max(every)
    one.operations = sum(figure.operations for figure in figures)
    one.wrong = [text for figure in figures for text in figure.wrong]
    return one


def scenario(name, operations, seed):
    if name == "faultless":
        return SCENARIOS[name](operations)
    piece = PIECE if name == "loss500" else 500
    make = {"blackholed": sim_shows.blackholed, "issuer": sim_shows.late_issuer}.get(name)
    parts = []
    for i, start in enumerate(range(0, operations, piece)):
        turns = min(piece, operations - start)
        parts.append(make(turns, seed + i) if make else sim_shows.lossy(turns, int(name[4:]), seed + i))
    return [merged(parts)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--operations", type=int, default=10_000, metavar="N", help="random all-reduces; scenarios take N/10"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first job of each class; the next ones follow")
    parser.add_argument("--only", default="", metavar="A,B", help="these classes of faults and scenarios")
    parser.add_argument("--quick", action="store_true", help="a few operations of everything")
    parser.add_argument("--list", action="store_true", help="name the classes and scenarios")
    args = parser.parse_args()
    if args.quick:
        args.operations = 2 * len(CLASSES)
    known = [*CLASSES, *SCENARIOS]
    only = [name for name in args.only.split(",") if name] or known
    if args.list or set(only) - set(known):
        unknown = sorted(set(only) - set(known))
        if unknown:
            print(f"unknown: {', '.join(unknown)}")
        print(f"classes: {', '.join(CLASSES)}\nscenarios: {', '.join(SCENARIOS)}")
        return 2 if unknown else 0
    if args.operations < 1 or args.seed < 0:
        parser.error("--operations is at least 1, --seed at least 0")
    logging.getLogger("tailbound").setLevel(logging.CRITICAL)  # the ranks warn of every loss that is made here
    classes = [name for name in CLASSES if name in only]
    bad = []
    if classes:
        each = -(-args.operations // len(classes))
        rows = []
        for name in classes:
            row, wrong = random_class(name, each, args.seed)
            rows.append(row)
            bad += [(f"{name} seed {seed}", text) for seed, text in wrong]
        total = {name: sum(row[name] for row in rows) if isinstance(rows[0][name], int) else "" for name in rows[0]}
        print(
            "random jobs: N 1..8, mtu 1088/1472/4096, delay 5/50/300 us, rate 1/10/100 Gb/s, queue 512k (slow: 16k), "
            f"seed {args.seed}"
        )
        table([*rows, {**total, "class": "all"}])
        print()
    figures = []
    for name in SCENARIOS:
        if name in only:
            figures += scenario(name, max(args.operations // 10, 4), args.seed + 1)
    if figures:
        print(
            "scenarios: time in virtual seconds; ideal = 2(N-1)/N * (bytes + headers) / rate + 2 one-way delays, of "
            "stages one\nafter the other; a round whose second stage goes out during the first hides up to one delay "
            "and is below 1"
        )
    for figure in figures:
        print(
            f"{figure.name}: N={figure.n}, {figure.rate}b/s, delay {figure.delay * 1e6:g} us, queue {figure.queue}, "
            f"{figure.operations} operations"
        )
        for name, value in figure.values.items():
            print(f"    {name:40} {value:.6g}")
        bad += [(figure.name, text) for text in figure.wrong]
    print()
    print(f"violations: {len(bad)}")
    for where, text in bad[:20]:
        print(f"    {where}: {text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
