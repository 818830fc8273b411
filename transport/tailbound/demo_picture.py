"""The picture of `tailbound demo`: accuracy over time, and how step times are spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .demo_report import pooled

STYLE = {"bounded": ("by deadline", "tab:blue"), "exact": ("exact (waits for all)", "tab:orange")}


def draw(results: list[dict[str, Any]], spec: Any, size: int, out: Path) -> None:
    """Writes the PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for run, (title, colour) in STYLE.items():
        record = results[0]["b"][run]
        shots = np.array(record["snapshots"], float).reshape(-1, 3)
        left.plot(shots[:, 1], 100 * shots[:, 2], color=colour, label=f"{title}, {results[0]['b']['steps']} steps")
        for phase, line in (("b", "-"), ("d", ":")):
            times = np.sort(pooled(results, phase, run, "took", spec.slow_rank if phase == "b" else None)) * 1e3
            share = np.arange(1, len(times) + 1) / len(times)
            faults = "losses, slow rank" if phase == "b" else "no faults"
            right.plot(times, 100 * share, line, color=colour, label=f"{title}, {faults}")
    left.set(xlabel="time (s)", ylabel="test images told right (%)", title="accuracy over time")
    right.set(xlabel="step time (ms)", ylabel="steps at most so long (%)", title="step times", xscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    loss = float(spec.fault.split(",")[0].removeprefix("drop="))
    figure.suptitle(
        f"{size} ranks over UDP on one host; {loss:.0%} of all frames lost; rank "
        f"{spec.slow_rank} pauses {spec.slow_pause * 1e3:.0f} ms in {spec.slow_share:.0%} of its steps",
        fontsize=10,
    )
    figure.savefig(out, dpi=110, format="png")
