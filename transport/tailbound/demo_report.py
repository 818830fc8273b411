"""The closing table of `tailbound demo`, and what to make of it. Every figure comes from the run's own records."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

GOAL = 0.93  # share of test images told right that `time to` asks for
WIDTH = 110


def pooled(results: list[dict[str, Any]], phase: str, run: str, name: str, leave_out: int | None = None) -> np.ndarray:
    """One list of all ranks' records together."""
    return np.array([v for rank, r in enumerate(results) if rank != leave_out for v in r[phase][run][name]])


def counted(results: list[dict[str, Any]], phase: str, run: str, name: str) -> int:
    return sum(result[phase][run]["counters"][name] for result in results)


def at_time(snapshots: list[list[float]], clock: float) -> float | None:
    """Accuracy of the last snapshot by then."""
    found = [accuracy for _, when, accuracy in snapshots if when <= clock]
    return found[-1] if found else None


def at_step(snapshots: list[list[float]], step: int) -> float | None:
    found = [accuracy for done, _, accuracy in snapshots if done <= step]
    return found[-1] if found else None


def time_to(snapshots: list[list[float]], goal: float) -> float | None:
    return next((when for _, when, accuracy in snapshots if accuracy >= goal), None)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def limit(deadline: float | str) -> str:
    return deadline if isinstance(deadline, str) else f"{deadline * 1e3:.1f} ms"


def milliseconds(values: np.ndarray) -> str:
    p50, p99 = np.percentile(values, [50, 99]) * 1e3
    return f"{p50:.1f} / {p99:.1f} ms"


def rows(results: list[dict[str, Any]], spec: Any) -> list[tuple[str, str, str, str, str]]:
    """Title, then (b) by deadline, (b) exact, (d) by deadline, (d) exact."""
    columns = [("b", "bounded"), ("b", "exact"), ("d", "bounded"), ("d", "exact")]
    slow = {"b": spec.slow_rank, "d": None}
    record = {column: results[0][column[0]][column[1]] for column in columns}
    shots = {column: record[column]["snapshots"] for column in columns}
    table: list[tuple[str, ...]] = []

    def row(title: str, value: Any) -> None:
        table.append((title, *(value(*column) for column in columns)))

    total = {phase: results[0][phase]["steps"] for phase in "bd"}
    row("deadline", lambda p, r: "none" if r == "exact" else limit(results[0][p]["deadline"]))
    row("steps", lambda p, r: str(total[p]))
    row("time of them", lambda p, r: f"{record[p, r]['clock']:.2f} s")
    row("step time p50 / p99", lambda p, r: milliseconds(pooled(results, p, r, "took", slow[p])))
    steps = total["b"]
    for step in sorted({max(10, steps // 12 // 10 * 10), max(10, steps // 4 // 10 * 10), steps}):
        row(
            f"right after {step} steps", lambda p, r, s=step: percent(at_step(shots[p, r], s)) if s <= total[p] else "-"
        )
    whole = record["b", "bounded"]["clock"]
    for clock in (whole / 12, whole / 4, whole):
        row(
            f"right after {clock:.2f} s",
            lambda p, r, c=clock: percent(at_time(shots[p, r], c)) if c <= record[p, r]["clock"] + 1e-9 else "-",
        )
    row(
        f"time to {GOAL:.0%} right",
        lambda p, r: f"{when:.2f} s" if (when := time_to(shots[p, r], GOAL)) is not None else "not reached",
    )
    row("received", lambda p, r: f"{100 * pooled(results, p, r, 'received').mean():.3f} %")
    row("calls with all of it", lambda p, r: percent(float((pooled(results, p, r, "received") >= 1).mean())))
    row("deadline hits", lambda p, r: percent(float(pooled(results, p, r, "hit").mean())))
    row("not committed (skip)", lambda p, r: str(int(pooled(results, p, r, "skipped").sum())))
    row("steps jumped over", lambda p, r: str(int(pooled(results, p, r, "behind").sum())))
    row(
        "frames repaired", lambda p, r: f"{counted(results, p, r, 'repaired')} of {counted(results, p, r, 'data_sent')}"
    )
    return table


def report(results: list[dict[str, Any]], spec: Any, size: int) -> str:
    """The table and the words below it."""
    lines = [
        f"{'':25}  {'(b) losses and a slow rank':^40}  {'(d) no faults':^40}",
        "  ".join([f"{'':25}", *(f"{cell:>19}" for cell in ("by deadline", "exact") * 2)]),
    ]
    for title, *cells in rows(results, spec):
        lines.append("  ".join([f"{title:25}", *(f"{cell:>19}" for cell in cells)]))
    others = ", ".join(str(rank) for rank in range(size) if rank != spec.slow_rank)
    about = (
        f"Step times in (b) are those of ranks {others}. Right: rank 0's weights on images that no rank trained on. "
        f"The time by deadline includes an exact average of the weights every {spec.block} steps, which waits for all. "
        "Received, hits, skips and jumps are of all ranks; a rank that comes late for a round finds it decided, "
        "receives little, and jumps."
    )
    paragraphs = [about, gains(results, spec), "", "Where it loses:", *losses(results)]
    lines += ["", *(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in paragraphs)]
    return "\n".join(lines)


def gains(results: list[dict[str, Any]], spec: Any) -> str:
    bounded, exact = results[0]["b"]["bounded"], results[0]["b"]["exact"]
    steps = results[0]["b"]["steps"]
    ratio = exact["clock"] / bounded["clock"]
    fast, slow = time_to(bounded["snapshots"], GOAL), time_to(exact["snapshots"], GOAL)
    goal = f", and to {GOAL:.0%} right {slow / fast:.2f}x" if fast and slow else ""
    jumped = sum(results[spec.slow_rank]["b"]["bounded"]["behind"])
    return (
        f"For the same {steps} steps the exact run took {ratio:.2f}x the time of the run by deadline{goal}. The price: "
        f"rank {spec.slow_rank} jumped over {jumped} of them, so its images were used less often than the others'."
    )


def losses(results: list[dict[str, Any]]) -> list[str]:
    """Where this tool loses, with this run's figures."""
    bounded, exact = (pooled(results, "d", run, "took") for run in ("bounded", "exact"))
    ratio = np.median(bounded) / np.median(exact)
    missing = 1 - pooled(results, "d", "bounded", "received").mean()
    short = int((pooled(results, "d", "bounded", "received") < 1).sum())
    calls = len(pooled(results, "d", "bounded", "received"))
    lost = (
        "Nothing was lost: every call received everything."
        if short == 0
        else f"{short} of {calls} calls came out short, {100 * missing:.3f} % of the data in all, although no frame "
        "was dropped on purpose: a rank that the system runs late (more ranks than cores, a busy host) misses one."
    )
    return [
        "- On a clean network with even ranks a deadline buys nothing: (d) median step "
        f"{np.median(bounded) * 1e3:.2f} ms by deadline, {np.median(exact) * 1e3:.2f} ms exact ({ratio:.2f}x). {lost}",
        "- What is missing is an estimate (the mean of what arrived), not the sum of everything, and ranks drift apart "
        "until an exact average, which waits. Whatever must be complete belongs into the exact class.",
        "- On one host, as here, shared memory would be faster than UDP: this shows behaviour, not bandwidth.",
        "- A stopped rank's own shard is reduced by nobody in this version: while it is away everybody lacks that part "
        "of a gradient.",
    ]
