"""The table of docs/fault-tolerance.md, from ``pytest -m "faults or cluster" --junitxml=FILE``.

Run as ``python -m tests.faults.table FILE...``.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET


def answers(paths: list[str]) -> list[dict[str, Any]]:
    """What came of each cell, as far as its test has passed."""
    found = []
    for path in paths:
        for case in ET.fromstring(Path(path).read_text()).iter("testcase"):
            if case.find("failure") is None:
                found += [json.loads(p.get("value", "")) for p in case.iter("property")]
    return found


def table(found: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown."""
    calm: dict[str, list[float]] = {}
    for one in found:
        if not one["fault"]:
            calm.setdefault(one["job"], []).append(one["seconds"])
    lines = ["| fault | where | outcome | made again | time |", "|---|---|---|---|---|"]
    for one in found:
        if one["fault"]:
            count, total = sum(one["repeated"].values()), max(one["partitions"], 1)
            again = f"{count} of {total}" if count else "-"
            ratio = one["seconds"] / statistics.median(calm.get(one["job"], [one["seconds"]]))
            outcome = one["outcome"].replace("same result", "✓ same result")
            lines.append(
                f"| {one['fault']} | {one['place']} | {outcome} | {again} | {ratio:.1f} × |"
            )
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join(table(answers(sys.argv[1:]))) + "\n")
