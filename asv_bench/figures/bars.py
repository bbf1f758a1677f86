"""Grouped bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def grouped_bars(
    axis: Any, heights: Mapping[str, Sequence[float]], groups: Sequence[Any], **legend: Any
) -> float:
    """Draw a bar of each series, by name, in each group; return the width of a bar."""
    width = 0.8 / len(heights)
    for i, (name, values) in enumerate(heights.items()):
        axis.bar([j + i * width for j in range(len(groups))], values, width, label=name)
    axis.set_xticks([j + 0.4 - width / 2 for j in range(len(groups))], list(map(str, groups)))
    axis.legend(**legend)
    return width
