"""Phase (c) of `tailbound demo` in words: pace of the others while one rank was stopped, and how it came back."""

from __future__ import annotations

from typing import Any

import numpy as np


def spread(seconds: list[float]) -> str:
    """p50 / p99 in ms."""
    if not seconds:
        return "none"
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    return f"{p50:.1f} / {p99:.1f} ms ({len(seconds)})"


def windows(record: dict[str, Any], stopped_at: float, continued_at: float) -> dict[str, list[int]]:
    """Calls of a record before, during and after the stop; those across an edge belong to `during`."""
    found: dict[str, list[int]] = {"before": [], "during": [], "after": []}
    for i, (begin, took) in enumerate(zip(record["begin"], record["took"], strict=True)):
        where = "before" if begin + took < stopped_at else "after" if begin > continued_at else "during"
        found[where].append(i)
    return found


def came_back(records: list[dict[str, Any]], stopped: int, continued_at: float) -> dict[str, Any] | None:
    """The first call of the continued rank that took part in a round that rank 0 was in then (or the one beside it):
    its number from 1, counted from the first call begun after SIGCONT; None when there was none."""
    record, leader = records[stopped], records[0]
    later = [i for i, begin in enumerate(record["begin"]) if begin > continued_at]
    for number, i in enumerate(later, 1):
        begin, end = record["begin"][i], record["begin"][i] + record["took"][i]
        there = [
            step
            for step, start, took in zip(leader["step"], leader["begin"], leader["took"], strict=True)
            if start <= end and start + took >= begin
        ]
        if there and there[0] - 1 <= record["step"][i] <= there[-1] + 1:
            return {
                "number": number,
                "after": end - continued_at,
                "round": record["step"][i],
                "behind": sum(record["behind"][j] for j in later[:number]),
                "received": [record["received"][j] for j in later[number:]],
            }
    return None


def stop_report(
    results: list[dict[str, Any]], spec: Any, stopped_at: float, continued_at: float, log: list[tuple[float, int, str]]
) -> list[str]:
    """Paragraphs for people."""
    records = [result["c"] for result in results]
    stopped = spec.stopped_rank
    if not stopped_at or not continued_at:
        return ["(c) the steps were over before a rank could be stopped: nothing to show (try more --steps)"]
    seconds, steps = continued_at - stopped_at, records[0]["of"]
    lines = [f"(c) rank {stopped} was stopped (SIGSTOP) for {seconds:.1f} s in a run of {steps} steps:"]
    others = [record for rank, record in enumerate(records) if rank != stopped]
    for name in ("before", "during", "after"):
        took, received = [], []
        for record in others:
            inside = windows(record, stopped_at, continued_at)[name]
            took += [record["took"][i] for i in inside]
            received += [record["received"][i] for i in inside]
        share = f"received {np.mean(received):.1%}" if received else ""
        longest = f", longest {max(took) * 1e3:.0f} ms" if took else ""
        lines.append(f"  {name:6}  step time of the others, p50 / p99 (steps): {spread(took)}{longest}; {share}")
    named = [(at, rank, text) for at, rank, text in log if at >= stopped_at]
    for word in ("absent", "back"):
        said = next(((at, rank, text) for at, rank, text in sorted(named) if f"is {word}" in text), None)
        if said:
            since = said[0] - (stopped_at if word == "absent" else continued_at)
            of = "SIGSTOP" if word == "absent" else "SIGCONT"
            lines.append(f"  {since * 1e3:4.0f} ms after {of} the log of rank {said[1]} says: {said[2]}")
    back = came_back(records, stopped, continued_at)
    if back is None:
        lines.append(f"  rank {stopped} was not in step again before the phase was over")
    else:
        lines.append(
            f"  rank {stopped}: call number {back['number']} after SIGCONT took part in round {back['round']}, in "
            f"which rank 0 was, {back['after'] * 1e3:.0f} ms after SIGCONT; by then `r.behind` had told it of "
            f"{back['behind']} rounds missed."
            + (f" In the calls after that it received {np.mean(back['received']):.1%}." if back["received"] else "")
        )
    lines.append(
        "  It jumped over those rounds, and over their images, so it lacks their updates: at the end of the phase its "
        f"weights were {records[stopped]['away']:.1%} (of their norm) away from rank 0's. What the demo does about it: "
        f"an exact broadcast of rank 0's weights to all, at the known step {records[0]['first'] + records[0]['of']}. "
        f"Accuracy of rank {stopped} before {records[stopped]['accuracy']['before']:.1%}, after it "
        f"{records[stopped]['accuracy']['after']:.1%}."
    )
    return lines
