"""Medians and quantiles of groups whose sorted rows lie in several partitions: kernels.

Rows are sorted by group and value over all partitions, values that are null last. Most groups lie
in one partition, where pandas aggregates them. A group that goes on in the next partition is a
*span*: from the numbers of its values in each partition follows which ranks are wanted of which
partition, at most two values for each quantile. pandas makes the quantile of those.

A *rank* asked for is a share from 0 to 1 for a quantile, None for a median.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

VALUE = "value"
RANK, BEGIN, FRACTION = "_rank", "_begin", "_fraction"


class Edges(NamedTuple):
    """The first and the last group of a partition.

    Attributes
    ----------
    first, last : tuple
        Keys.
    head, tail : int
        Values that are not null.
    """

    first: tuple[Any, ...]
    last: tuple[Any, ...]
    head: int
    tail: int


class Span(NamedTuple):
    """A group in several partitions.

    Attributes
    ----------
    parts : list of int
        Partitions.
    counts : list of int
        Values that are not null in each.
    """

    parts: list[int]
    counts: list[int]


def edges(part: pd.DataFrame, keys: list[str]) -> Edges | None:
    """The first and the last group of a partition; None if it is empty.

    Parameters
    ----------
    part : DataFrame
        Columns ``keys`` and `VALUE`, sorted by all of them.
    keys : list of str

    Examples
    --------
    >>> part = pd.DataFrame({"k": list("aab"), "value": [1.0, None, 2.0]})
    >>> edges(part, ["k"])
    Edges(first=('a',), last=('b',), head=1, tail=1)
    """
    if not len(part):
        return None
    head, tail = _rows_like(part, keys, 0), _rows_like(part, keys, -1)
    count = [int(part[VALUE].iloc[rows].notna().sum()) for rows in (head, tail)]
    first, last = (tuple(part[key].iloc[i] for key in keys) for i in (0, -1))
    return Edges(first, last, count[0], count[1])


def spans(found: Sequence[Edges | None]) -> list[Span]:
    """The groups that lie in more than one partition.

    Examples
    --------
    >>> spans(
    ...     [
    ...         Edges(("a",), ("b",), 4, 2),
    ...         None,
    ...         Edges(("b",), ("b",), 7, 7),
    ...         Edges(("b",), ("c",), 1, 5),
    ...         Edges(("d",), ("d",), 2, 2),
    ...     ]
    ... )
    [Span(parts=[0, 2, 3], counts=[2, 7, 1])]
    """
    groups: list[Span] = []
    open_key: tuple[Any, ...] | None = None
    for j, part in enumerate(found):
        if part is None:
            continue
        if part.first == open_key:
            groups[-1].parts.append(j)
            groups[-1].counts.append(part.head)
        if part.last != open_key:
            groups.append(Span([j], [part.tail]))
            open_key = part.last
    return [group for group in groups if len(group.parts) > 1]


def ranks(count: int, rank: float | None) -> tuple[int, int, float]:
    """Which of ``count`` sorted values a median or quantile needs, and how far between them it is.

    Examples
    --------
    >>> ranks(4, None), ranks(5, None), ranks(4, 0.25)
    ((1, 2, 0.5), (2, 2, 0.0), (0, 1, 0.75))
    """
    if count == 0:
        return 0, 0, 0.0
    at = rank * (count - 1) if rank is not None else (count - 1) / 2
    low = int(at)
    fraction = float(at % 1)  # as pandas computes it
    return low, low + (fraction > 0), fraction


def pick(
    part: pd.DataFrame,
    keys: list[str],
    spanning: Sequence[Span],
    asked: Sequence[float | None],
    j: int,
) -> pd.DataFrame:
    """The rows of partition ``j`` that hold what spans are asked for.

    Parameters
    ----------
    part : DataFrame
        As of `edges`.
    keys : list of str
    spanning : list of Span
    asked : list
        Ranks.
    j : int
        Number of the partition.

    Returns
    -------
    DataFrame
        Rows with their rank's number, where their span begins, and the fraction of `ranks`.
    """
    rows: list[tuple[int, int, int, float]] = []
    for span in spanning:
        if j not in span.parts:
            continue
        place = span.parts.index(j)
        # a span comes from the part before, or else is the last group
        start = 0 if place else _rows_like(part, keys, -1).start
        before, count = sum(span.counts[:place]), span.counts[place]
        for number, rank in enumerate(asked):
            low, high, fraction = ranks(sum(span.counts), rank)
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


def finish(  # noqa: PLR0913, PLR0917  all that is known of a partition
    part: pd.DataFrame,
    keys: list[str],
    spanning: Sequence[Span],
    picked: pd.DataFrame,
    asked: Sequence[float | None],
    names: Sequence[str],
    j: int,
) -> pd.DataFrame:
    """Medians and quantiles of the groups that begin in partition ``j``.

    Parameters
    ----------
    part, keys, spanning, asked, j
        As of `pick`.
    picked : DataFrame
        What `pick` found in all partitions.
    names : list of str
        Columns of the result, for each rank one.

    Returns
    -------
    DataFrame
        A row for each group: the keys and ``names``.
    """
    begun = any(j in span.parts[1:] for span in spanning)
    ending = any(j in span.parts[:-1] for span in spanning)
    start = _rows_like(part, keys, 0).stop if begun else 0
    stop = _rows_like(part, keys, -1).start if ending else len(part)
    inside = part.iloc[start : max(start, stop)].groupby(keys, observed=True)[VALUE]
    mine = picked[picked[BEGIN] == j]
    columns = {}
    for number, (rank, name) in enumerate(zip(asked, names, strict=True)):
        rows = mine[mine[RANK] == number]
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
    """The rows that have the keys of the first or the last one, from and to."""
    same = np.ones(len(part), bool)
    for key in keys:
        same &= (part[key] == part[key].iloc[row]).to_numpy(bool)
    count = int(same.sum())
    return slice(0, count) if row == 0 else slice(len(part) - count, len(part))
