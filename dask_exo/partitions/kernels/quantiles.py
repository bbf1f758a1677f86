"""Kernels for medians and quantiles of groups whose sorted rows span several partitions.

Rows are sorted by group and value over all partitions, nulls last. Most groups are in one
partition, where pandas aggregates them. For a group that spans partitions, the number of its values
in each of them tells which rows hold the two values around each quantile. These rows are picked,
and pandas interpolates between them.

A quantile is a number from 0 to 1, or None for the median.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

VALUE = "value"
RANK, BEGIN, FRACTION = "_rank", "_begin", "_fraction"


class EdgeGroups(NamedTuple):
    """First and last group of a partition: their keys, and numbers of values that are not null."""

    first: tuple[Any, ...]
    last: tuple[Any, ...]
    head: int
    tail: int


class SpanningGroup(NamedTuple):
    """Group in several partitions, with the number of its values in each that are not null."""

    parts: list[int]
    counts: list[int]


def edge_groups(part: pd.DataFrame, keys: list[str]) -> EdgeGroups | None:
    """Return the first and the last group of a partition; None if it is empty.

    ``part`` has the columns ``keys`` and `VALUE`, sorted by all of them.

    Examples
    --------
    >>> part = pd.DataFrame({"k": list("aab"), "value": [1.0, None, 2.0]})
    >>> edge_groups(part, ["k"])
    EdgeGroups(first=('a',), last=('b',), head=1, tail=1)
    """
    if not len(part):
        return None
    head, tail = _rows_like(part, keys, 0), _rows_like(part, keys, -1)
    count = [int(part[VALUE].iloc[rows].notna().sum()) for rows in (head, tail)]
    first, last = (tuple(part[key].iloc[i] for key in keys) for i in (0, -1))
    return EdgeGroups(first, last, count[0], count[1])


def spanning_groups(found: Sequence[EdgeGroups | None]) -> list[SpanningGroup]:
    """Return the groups that are in more than one partition.

    Examples
    --------
    >>> spanning_groups(
    ...     [
    ...         EdgeGroups(("a",), ("b",), 4, 2),
    ...         None,
    ...         EdgeGroups(("b",), ("b",), 7, 7),
    ...         EdgeGroups(("b",), ("c",), 1, 5),
    ...         EdgeGroups(("d",), ("d",), 2, 2),
    ...     ]
    ... )
    [SpanningGroup(parts=[0, 2, 3], counts=[2, 7, 1])]
    """
    groups: list[SpanningGroup] = []
    open_key: tuple[Any, ...] | None = None
    for j, part in enumerate(found):
        if part is None:
            continue
        if part.first == open_key:
            groups[-1].parts.append(j)
            groups[-1].counts.append(part.head)
        if part.last != open_key:
            groups.append(SpanningGroup([j], [part.tail]))
            open_key = part.last
    return [group for group in groups if len(group.parts) > 1]


def quantile_ranks(count: int, rank: float | None) -> tuple[int, int, float]:
    """Return the ranks around a quantile of ``count`` values, and its position between them.

    Examples
    --------
    >>> quantile_ranks(4, None), quantile_ranks(5, None), quantile_ranks(4, 0.25)
    ((1, 2, 0.5), (2, 2, 0.0), (0, 1, 0.75))
    """
    if count == 0:
        return 0, 0, 0.0
    at = rank * (count - 1) if rank is not None else (count - 1) / 2
    low = int(at)
    fraction = float(at % 1)  # as pandas computes it
    return low, low + (fraction > 0), fraction


def pick_ranked_rows(
    part: pd.DataFrame,
    keys: list[str],
    spanning: Sequence[SpanningGroup],
    quantiles: Sequence[float | None],
    j: int,
) -> pd.DataFrame:
    """Pick the rows of partition ``j`` that the quantiles of spanning groups need.

    They have further columns: the number of their quantile, the first partition of their group, and
    the fraction of `quantile_ranks`.
    """
    rows: list[tuple[int, int, int, float]] = []
    for span in spanning:
        if j not in span.parts:
            continue
        place = span.parts.index(j)
        # the group continues from the partition before, or it is the last one
        start = 0 if place else _rows_like(part, keys, -1).start
        before, count = sum(span.counts[:place]), span.counts[place]
        for number, rank in enumerate(quantiles):
            low, high, fraction = quantile_ranks(sum(span.counts), rank)
            for at in dict.fromkeys((low, high)):
                none = not sum(span.counts) and place == 0  # the first null stands for all
                if before <= at < before + count or none:
                    rows.append((start + at - before, number, span.parts[0], fraction))
    positions, numbers, begins, fractions = (
        np.array(column) for column in (zip(*rows, strict=True) if rows else ([], [], [], []))
    )
    picked = part[[*keys, VALUE]].take(positions.astype(np.int64))
    return picked.assign(
        **{
            RANK: numbers.astype(np.int64),
            BEGIN: begins.astype(np.int64),
            FRACTION: fractions.astype(float),
        }
    )


def finish_quantiles(  # noqa: PLR0913, PLR0917
    part: pd.DataFrame,
    keys: list[str],
    spanning: Sequence[SpanningGroup],
    picked: pd.DataFrame,
    quantiles: Sequence[float | None],
    names: Sequence[str],
    j: int,
) -> pd.DataFrame:
    """Compute medians and quantiles of the groups that begin in partition ``j``.

    ``picked`` are the results of `pick_ranked_rows` for all partitions. The result has a row for
    each group: the keys, and for each quantile a column of ``names``.
    """
    begun = any(j in span.parts[1:] for span in spanning)
    ending = any(j in span.parts[:-1] for span in spanning)
    start = _rows_like(part, keys, 0).stop if begun else 0
    stop = _rows_like(part, keys, -1).start if ending else len(part)
    inside = part.iloc[start : max(start, stop)].groupby(keys, observed=True)[VALUE]
    of_groups = picked[picked[BEGIN] == j]
    columns = {}
    for number, (rank, name) in enumerate(zip(quantiles, names, strict=True)):
        rows = of_groups[of_groups[RANK] == number]
        between = rows.groupby(keys, observed=True)[VALUE]
        found = inside.median() if rank is None else inside.quantile(rank)
        if len(rows):  # one group: not more than one goes on in the next partition
            fraction = rows[FRACTION].iloc[0]
            more = between.median() if rank is None else between.quantile(fraction)
            found = pd.concat([found, more]) if len(found) else more
        columns[name] = found
    groups = next(iter(columns.values())).index.to_frame(index=False)
    return groups.assign(**{name: column.array for name, column in columns.items()})


def _rows_like(part: pd.DataFrame, keys: list[str], row: int) -> slice:
    """Return the slice of rows with the keys of the first (0) or the last row (-1)."""
    same = np.ones(len(part), bool)
    for key in keys:
        same &= (part[key] == part[key].iloc[row]).to_numpy(bool)
    count = int(same.sum())
    return slice(0, count) if row == 0 else slice(len(part) - count, len(part))
