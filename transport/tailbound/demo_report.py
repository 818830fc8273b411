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
    paragraphs = [about, arrivals(results, spec), *gains(results, spec), "", "Where it loses:", *losses(results)]
    lines += ["", *(textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in paragraphs)]
    return "\n".join(lines)


def gains(results: list[dict[str, Any]], spec: Any) -> list[str]:
    """What the run by deadline gained under the faults, and what it paid."""
    bounded, exact = results[0]["b"]["bounded"], results[0]["b"]["exact"]
    steps = results[0]["b"]["steps"]
    ratio = exact["clock"] / bounded["clock"]
    fast, slow = time_to(bounded["snapshots"], GOAL), time_to(exact["snapshots"], GOAL)
    goal = f", and to {GOAL:.0%} right {slow / fast:.2f}x" if fast and slow else ""
    if ratio >= 1:
        time = f"For the same {steps} steps the exact run took {ratio:.2f}x the time of the run by deadline{goal}."
    else:
        time = f"The deadline gained no time here: the exact run took {ratio:.2f}x the time of the run by it{goal}."
    jumped = sum(results[spec.slow_rank]["b"]["bounded"]["behind"])
    used = f"rank {spec.slow_rank} jumped over {jumped} steps" + (
        ", so its images were used less often than the others'." if jumped else "."
    )
    return [f"{time} {step_times(results, spec)}", f"The price: {per_step(bounded, exact)} And {used}"]


def step_times(results: list[dict[str, Any]], spec: Any) -> str:
    """The median step, and the slow ones, in words that fit the figures."""
    mine, other = (pooled(results, "b", run, "took", spec.slow_rank) for run in ("bounded", "exact"))
    (p50, p99), (exact_p50, exact_p99) = (np.percentile(took, [50, 99]) * 1e3 for took in (mine, other))
    median = f"the median step is {compared(p50 / exact_p50)} ({p50:.1f} ms by deadline, {exact_p50:.1f} exact)"
    tail = f"the slowest hundredth {compared(p99 / exact_p99)} ({p99:.1f} ms, {exact_p99:.1f} exact)"
    return f"By deadline {median}, {tail}."


def compared(ratio: float) -> str:
    """Of two times: within 5 % they are equal."""
    return "slower" if ratio > 1.05 else "faster" if ratio < 0.95 else "as fast"


def per_step(bounded: dict[str, Any], exact: dict[str, Any]) -> str:
    """Accuracy after equally many steps."""
    theirs = {step: accuracy for step, _, accuracy in exact["snapshots"]}
    both = [(step, accuracy, theirs[step]) for step, _, accuracy in bounded["snapshots"] if step in theirs]
    if not both:
        return "the runs were too short to compare what a step teaches."
    mean = 100 * float(np.mean([mine - other for _, mine, other in both]))
    step, mine, other = both[-1]
    figures = (
        f"on average over the run {abs(mean):.1f} points {'less' if mean < 0 else 'more'} right after equally many "
        f"steps ({percent(mine)} and {percent(other)} exact after {step})."
    )
    if mean <= -0.1:
        return f"a step by deadline teaches less: {figures}"
    return f"none to be seen in accuracy per step this time: {figures}"


def arrivals(results: list[dict[str, Any]], spec: Any) -> str:
    """Why much less is received than the losses explain: by sender, and for the slow rank by itself."""
    slow = spec.slow_rank
    records = [result["b"]["bounded"] for result in results]
    others = [rank for rank in range(len(records)) if rank != slow]
    shares = np.array([np.mean(records[rank]["from_ranks"], axis=0) for rank in others])  # receiver, sender
    from_slow = shares[:, slow].mean()
    among = np.mean([shares[i, other] for i, rank in enumerate(others) for other in others if other != rank])
    own = np.mean(records[slow]["received"])
    total = pooled(results, "b", "bounded", "received").mean()
    loss = float(spec.fault.split(",")[0].removeprefix("drop="))
    if 1 - total <= loss:
        return f"Received: {percent(total)}; {loss:.0%} of the frames were dropped, and repaired where there was time."
    its = len(others) * (1 - from_slow) + len(others) * (1 - own)
    blame = (
        f"most of the rest is rank {slow}'s share, which came late"
        if from_slow < among and its > len(others) * (len(others) - 1) * (1 - among)
        else "the rest came late from all ranks alike"
    )
    return (
        f"Received: {percent(total)}, although only {loss:.0%} of the frames were dropped, and most of those repaired: "
        f"{blame}. The others received {percent(from_slow)} of what rank {slow} owed them and {percent(among)} of what "
        f"they owed each other; rank {slow}, which finds rounds decided without it, received {percent(own)}."
    )


def losses(results: list[dict[str, Any]]) -> list[str]:
    """Where this tool loses, with this run's figures."""
    bounded, exact = (pooled(results, "d", run, "took") for run in ("bounded", "exact"))
    ratio = float(np.median(bounded) / np.median(exact))
    missing = 1 - pooled(results, "d", "bounded", "received").mean()
    short = int((pooled(results, "d", "bounded", "received") < 1).sum())
    calls = len(pooled(results, "d", "bounded", "received"))
    lost = (
        "Nothing was lost: every call received everything."
        if short == 0
        else f"{short} of {calls} calls came out short, {100 * missing:.3f} % of the data in all, although no frame "
        "was dropped on purpose: a rank that the system runs late (more ranks than cores, a busy host) misses one."
    )
    verdict = {
        "as fast": "a deadline buys nothing",
        "slower": "a deadline costs time",
        "faster": "a deadline has nothing to cut but what the host itself makes ranks wait",
    }[compared(ratio)]
    return [
        f"- On a clean network with even ranks {verdict}: (d) median step {np.median(bounded) * 1e3:.2f} ms by "
        f"deadline, {np.median(exact) * 1e3:.2f} ms exact ({ratio:.2f}x). {lost}",
        "- What is missing is an estimate (the mean of what arrived), not the sum of everything, and ranks drift apart "
        "until an exact average, which waits. Whatever must be complete belongs into the exact class.",
        "- On one host, as here, shared memory would be faster than UDP: this shows behaviour, not bandwidth.",
        "- A stopped rank's own shard is reduced by nobody: while it is away everybody lacks that part of a gradient, "
        "until it is voted out (after 10 s).",
    ]
