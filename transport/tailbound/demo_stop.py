"""Phase (c) of `tailbound demo` in words: pace of the others while one rank was stopped, and how it came back."""

from __future__ import annotations

from typing import Any

import numpy as np

SETTLED = 3  # calls of the returned rank that do not count for "received again": the first ones it only catches up in


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


def first_back(records: list[dict[str, Any]], stopped: int, continued_at: float) -> dict[str, Any] | None:
    """The first call that the stopped rank began after it was continued: its round, how far behind it said it was, and
    how many rounds lay between it and the one that rank 0 was in when that call ended."""
    record = records[stopped]
    later = [i for i, begin in enumerate(record["begin"]) if begin > continued_at]
    if not later:
        return None
    i = later[0]
    end = record["begin"][i] + record["took"][i]
    others = [s for s, begin in zip(records[0]["step"], records[0]["begin"], strict=True) if begin <= end]
    return {
        "after": record["begin"][i] - continued_at,
        "round": record["step"][i],
        "apart": (others[-1] if others else 0) - record["step"][i],
        "behind": [record["behind"][j] for j in later[:3]],
        "received": [record["received"][j] for j in later[SETTLED:]],
        "received_at_first": [record["received"][j] for j in later[:SETTLED]],
    }


def stop_report(
    results: list[dict[str, Any]], spec: Any, stopped_at: float, continued_at: float, log: list[tuple[float, int, str]]
) -> list[str]:
    """Paragraphs for people."""
    records = [result["c"] for result in results]
    stopped = spec.stopped_rank
    lines = [f"(c) rank {stopped} stopped (SIGSTOP) for {continued_at - stopped_at:.1f} s in a run of {records[0]['of']} steps:"]
    if not stopped_at or not continued_at:
        return ["(c) the steps were over before a rank could be stopped; nothing is shown (try more --steps)"]
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
    back = first_back(records, stopped, continued_at)
    if back is None:
        return [*lines, f"  rank {stopped} made no call after SIGCONT: the phase was over"]
    behind = sum(back["behind"])
    lines.append(
        f"  rank {stopped} began its next call {back['after'] * 1e3:.0f} ms after SIGCONT, said it was {behind} rounds "
        f"behind (`r.behind`) and joined round {back['round']}; rank 0 was in round {back['round'] + back['apart']} "
        f"when that call ended, {_apart(back['apart'])}. "
        + (f"From its {SETTLED + 1}th call on it received {np.mean(back['received']):.1%}." if back["received"] else "")
    )
    lines.append(
        f"  it jumped over the rounds, and over their images, so it lacks their updates: at the end of the phase its "
        f"weights were {records[stopped]['away']:.1%} (of their norm) away from rank 0's. What the demo does about it: "
        f"an exact broadcast of rank 0's weights to all, here at the known step {records[0]['first'] + records[0]['of']}. "
        f"Accuracy of rank {stopped} before {records[stopped]['accuracy']['before']:.1%}, after it "
        f"{records[stopped]['accuracy']['after']:.1%}."
    )
    return lines


def _apart(rounds: int) -> str:
    if rounds == 0:
        return "the same one"
    return f"{abs(rounds)} {'later' if rounds > 0 else 'earlier'}"
