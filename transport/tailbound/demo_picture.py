"""The picture of `tailbound demo`: accuracy over time, how step times are spread, and what a stopped rank costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .demo_report import pooled

STYLE = {"bounded": ("by deadline", "tab:blue"), "exact": ("exact (waits for all)", "tab:orange")}


def draw(
    results: list[dict[str, Any]], spec: Any, size: int, out: Path, stop: tuple[float, float] = (0.0, 0.0)
) -> None:
    """Writes the PNG. stop: when a rank was stopped and continued in phase (c); 0 = never."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    for run, (title, colour) in STYLE.items():
        record = results[0]["b"][run]
        shots = np.array(record["snapshots"], float).reshape(-1, 3)
        left.plot(shots[:, 1], 100 * shots[:, 2], color=colour, label=f"{title}, {results[0]['b']['steps']} steps")
        for phase, line in (("b", "-"), ("d", ":")):
            times = np.sort(pooled(results, phase, run, "took", spec.slow_rank if phase == "b" else None)) * 1e3
            share = np.arange(1, len(times) + 1) / len(times)
            faults = "losses, slow rank" if phase == "b" else "no faults"
            middle.plot(times, 100 * share, line, color=colour, label=f"{title}, ({phase}) {faults}")
    left.set(xlabel="time (s)", ylabel="test accuracy (%)", title="(b) accuracy over time")
    middle.set(
        xlabel="step time (ms)", ylabel="share of steps at most this long (%)", title="(b, d) step times", xscale="log"
    )
    _stopped(right, results, spec, stop)
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=8, frameon=False)
    loss = float(spec.fault.split(",")[0].removeprefix("drop="))
    figure.suptitle(
        f"{size} ranks over UDP on one host; {loss:.0%} of all frames lost; (b) rank "
        f"{spec.slow_rank} pauses {spec.slow_pause * 1e3:.0f} ms in {spec.slow_share:.0%} of its steps",
        fontsize=10,
    )
    figure.savefig(out, dpi=110, format="png")


def _stopped(axes: Any, results: list[dict[str, Any]], spec: Any, stop: tuple[float, float]) -> None:
    """Phase (c): the steps of rank 0 while another one was stopped."""
    record = results[0]["c"]
    begin, took = np.array(record["begin"]), np.array(record["took"]) * 1e3
    start = stop[0] or (begin[0] if len(begin) else 0.0)
    axes.plot(begin - start, took, ".", markersize=2, color="tab:blue", label="rank 0, by deadline")
    if stop[0] and stop[1]:
        label = f"rank {spec.stopped_rank} is stopped (SIGSTOP)"
        axes.axvspan(0, stop[1] - stop[0], color="tab:red", alpha=0.15, label=label)
    axes.set(xlabel="time since the stop (s)", ylabel="step time (ms)", title="(c) one rank is stopped", yscale="log")
