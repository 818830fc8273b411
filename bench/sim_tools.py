"""What the sim_*.py scripts share: tables, spreads over seeds, pictures where matplotlib is installed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def spread(values: Sequence[float], form: Callable[[float], str] = "{:.4g}".format) -> str:
    """Median and, in brackets, least and most."""
    return f"{form(statistics.median(values))} ({form(min(values))}..{form(max(values))})"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints rows under their names."""
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    for line in (dict(zip(names, names, strict=True)), *rows):
        print("  ".join(str(line[name]).rjust(width) for name, width in zip(names, widths, strict=True)))


def picture(path: str | None, draw: Callable[[Any], None]) -> None:
    """draw(axes) into a PNG; without matplotlib, or without a path, nothing."""
    if not path:
        return
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    draw(figure.subplots())
    figure.savefig(Path(path))
    print(f"picture: {path}")
