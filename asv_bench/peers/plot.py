"""Draw what `asv_bench.peers` measured: ``python -m asv_bench.peers.plot OUT.svg RUN.json ...``.

Runs of one size become bars of median seconds, a group for each job. Runs of several sizes become
one panel for each job, with seconds over rows; a cross where a system failed.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from asv_bench.figures.bars import grouped_bars

Points = dict[str, dict[str, dict[float, list[float]]]]
"""Seconds by job, system and rows."""


def read(files: list[Path]) -> Points:
    """Read runs, but for the first one of each round; a system that failed has no seconds."""
    points: Any = defaultdict(lambda: defaultdict(dict))
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        rows = found["about"].get("rows") or found["about"]["tpch"]
        for run in found["runs"]:
            spent = points[run["job"]][run["system"]].setdefault(rows, [])
            spent.extend([run["seconds"]] if "seconds" in run and not run["first"] else [])
    return points


def bars(points: Points, rows: float) -> Figure:
    """Draw a group of bars for each job."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axis = figure.subplots()
    systems = list(dict.fromkeys(system for by in points.values() for system in by))
    heights = {
        system: [statistics.median(by.get(system, {}).get(rows) or [0.0]) for by in points.values()]
        for system in systems
    }
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "frameon": False}
    grouped_bars(axis, heights, list(points), ncols=len(systems), **above)
    axis.set(ylabel="seconds")
    return figure


def panels(points: Points) -> Figure:
    """Draw a panel for each job."""
    figure = Figure(figsize=(4.5 * len(points), 4), layout="constrained")
    axes = figure.subplots(1, len(points), squeeze=False)
    for axis, (job, systems) in zip(axes[0], points.items(), strict=True):
        highest = max((t for by in systems.values() for ts in by.values() for t in ts), default=1)
        for system, by in systems.items():
            done = sorted((rows, statistics.median(ts)) for rows, ts in by.items() if ts)
            (line,) = axis.plot(*zip(*done, strict=True), "o-", label=system) if done else [None]
            failed = [rows for rows, ts in by.items() if not ts]
            color = line.get_color() if line else None
            axis.plot(failed, [highest] * len(failed), "x", color=color)
        axis.set(title=job, xlabel="rows", ylabel="seconds", xscale="log", yscale="log")
    axes[0][0].legend()
    return figure


def main() -> None:
    """Read, draw, write."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "peers"})
    out, *files = map(Path, sys.argv[1:])
    points = read(files)
    sizes = {rows for systems in points.values() for by in systems.values() for rows in by}
    figure = bars(points, sizes.pop()) if len(sizes) == 1 else panels(points)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
