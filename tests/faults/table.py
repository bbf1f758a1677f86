"""The table of docs/fault-matrix.md, from what came of each cell.

Run as ``python -m tests.faults.table FILE``, a file that ``FAULTS_ANSWERS=FILE pytest -m "faults or
cluster" tests/faults`` has written.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any


def table(found: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown."""
    calm: dict[str, list[float]] = {}
    for one in found:
        if one["fault"] == "none":
            calm.setdefault(one["job"], []).append(one["seconds"])
    lines = [
        "| fault | where | outcome | made again | seconds (without the fault) |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        if one["fault"] != "none":
            count, total = sum(one["repeated"].values()), max(one["partitions"], 1)
            again = f"{count} of {total}" if count else "-"
            without = statistics.median(calm.get(one["job"], [float("nan")]))
            took = f"{one['seconds']:.1f} ({without:.1f})"
            outcome = one["outcome"].replace("same result", "✓ same result")
            lines.append(f"| {one['fault']} | {one['place']} | {outcome} | {again} | {took} |")
    return lines


if __name__ == "__main__":
    answers = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    sys.stdout.write("\n".join(table(answers)) + "\n")
