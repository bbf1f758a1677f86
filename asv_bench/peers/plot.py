"""Draw what `asv_bench.peers` measured: ``python -m asv_bench.peers.plot OUT.png RUN.json ...``.

One panel for each job: median seconds of each system over the number of rows; a cross where it
failed.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path


def main() -> None:
    """Read, draw, write."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    out, *files = map(Path, sys.argv[1:])
    points: dict = defaultdict(lambda: defaultdict(dict))  # job → system → rows → seconds
    for file in files:
        found = json.loads(file.read_text())
        rows = found["about"].get("rows") or found["about"]["tpch"]
        for run in found["runs"]:
            spent = points[run["job"]][run["system"]].setdefault(rows, [])
            spent.extend([run["seconds"]] if "seconds" in run and not run["first"] else [])
    figure, axes = plt.subplots(
        1, len(points), figsize=(4.5 * len(points), 4), squeeze=False, layout="constrained"
    )
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
    figure.savefig(out)


if __name__ == "__main__":
    main()
