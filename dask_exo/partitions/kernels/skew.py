"""Kernels for frequent keys: of joins, and of medians and quantiles of groups.

In a join, keys are known by their hashes. Each partition counts a sample of its rows and reports
the most frequent keys; their counts are added (mergeable summaries: a key left out of one is rarer
than all keys in it). The rows of a heavy hitter on one side of a join are dealt out to several
outputs, and its rows on the other side are copied to each of these. Every pair of rows still meets
exactly once.

A row that an outer join keeps without a partner must appear once, too. The first copy of a row goes
to the *first* output of its key, and so does one row of each key that a partition deals out: the
first copy meets a partner if there is any. The other copies are marked, and dropped if they meet
none. Different keys may have equal hashes, so keys themselves are compared here.

For quantiles, rows are sorted by group and value over all partitions, nulls last. Most groups are
in one partition, where pandas aggregates them. For a group that spans partitions, the number of its
values in each of them tells which rows hold the two values around each quantile. These rows are
picked, and pandas interpolates between them. A quantile is a number from 0 to 1, or None for the
median.

References: Agarwal et al., "Mergeable summaries" (PODS 2012); Xu et al., "Handling data skew in
parallel joins" (SIGMOD 2008); Graham, "Bounds on multiprocessing timing anomalies" (1969) for the
placement: the largest key first, to the outputs with the least work.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

SAMPLE = 2**17  # rows of a partition that are counted
MOST = 1024  # keys that a partition reports
FINE = 4  # shares that a key as large as the mean output is divided into
PLACED = 16  # a key with more than 1/16 of the mean output is placed; others go by hash
VALUE = "value"  # column of which medians and quantiles are computed
RANK, BEGIN, FRACTION = "_rank", "_begin", "_fraction"  # columns of picked rows

SPLITTING = {  # sides of a join whose rows may be dealt out while those of the other are copied
    "inner": ("left", "right"),
    "left": ("left", "right"),
    "leftsemi": ("left",),  # a row comes out once, however many partners it has
    "right": ("left", "right"),
    "outer": ("left", "right"),
}
KEPT = {  # sides whose rows are kept without a partner
    "inner": (),
    "left": ("left",),
    "leftsemi": (),
    "right": ("right",),
    "outer": ("left", "right"),
}


class KeyCounts(NamedTuple):
    """Most frequent keys of some rows."""

    keys: np.ndarray  # (k,) hashes, ascending
    counts: np.ndarray  # (k,) estimated rows of each
    rows: int  # all rows


class Placement(NamedTuple):
    """Outputs of the rows of heavy hitters.

    A key has one output or several, all different. The first one gets the first copies. Rows of the
    left side are dealt out and those of the right side copied where ``left`` is true, otherwise the
    other way round.
    """

    keys: np.ndarray  # (k,) hashes, ascending
    first: np.ndarray  # (k + 1,) start of the outputs of each key in ``outputs``
    outputs: np.ndarray  # (p,)
    left: np.ndarray  # (k,) bool


def count_keys(hashes: np.ndarray) -> KeyCounts:
    """Count the keys in a sample of rows, given their hashes."""
    step = max(1, len(hashes) // SAMPLE)
    counts = pd.Series(hashes[::step]).value_counts().head(MOST)
    counts = counts[counts > 1].sort_index()
    return KeyCounts(counts.index.to_numpy(), counts.to_numpy() * step, len(hashes))


def merge_counts(*parts: KeyCounts) -> KeyCounts:
    """Add the counts of several partitions."""
    keys, place = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
    weights = np.concatenate([part.counts for part in parts])
    counts = np.bincount(place, weights, minlength=len(keys)).astype(np.int64)
    return KeyCounts(keys, counts, sum(part.rows for part in parts))


def place_keys(left: KeyCounts, right: KeyCounts, how: str, npartitions: int) -> Placement:
    """Place heavy hitters such that all outputs of a join have about the same work.

    The work of an output is the number of its input and output rows. A key of l and r rows makes
    l * r output rows; of other keys, each row of the longer side is assumed to make one.

    Examples
    --------
    >>> hot = KeyCounts(np.array([5]), np.array([900]), 1000)
    >>> rare = KeyCounts(np.array([5]), [1], 100)
    >>> placed = place_keys(hot, rare, "left", 4)
    >>> placed.keys, placed.outputs, placed.left
    (array([5]), array([0, 1, 2, 3]), array([ True]))
    """
    keys = np.union1d(left.keys, right.keys)
    left_rows, right_rows = (_counts_of(keys, side) for side in (left, right))
    work = left_rows + right_rows + np.maximum(left_rows, 1) * np.maximum(right_rows, 1)
    rest = max(left.rows - left_rows.sum(), 0), max(right.rows - right_rows.sum(), 0)
    others = sum(rest) + max(rest)
    mean = (work.sum() + others) / npartitions
    chosen = np.flatnonzero(work > mean / PLACED)
    chosen = chosen[np.argsort(-work[chosen], kind="stable")]  # the largest first

    heap = [(others / npartitions, j) for j in range(npartitions)]
    outputs: dict[int, list[int]] = {}
    is_dealt = np.zeros(len(keys), bool)
    sides = SPLITTING[how]
    for i in chosen.tolist():
        is_dealt[i] = len(sides) == 1 or left_rows[i] >= right_rows[i]
        rows, copies = (
            (left_rows[i], right_rows[i]) if is_dealt[i] else (right_rows[i], left_rows[i])
        )
        count = min(int(np.ceil(work[i] * FINE / mean)), npartitions, int(rows))
        lightest = [heapq.heappop(heap) for _ in range(max(count, 1))]
        share = (work[i] - copies) / len(lightest) + copies
        outputs[i] = sorted(j for _, j in lightest)
        for load, j in lightest:
            heapq.heappush(heap, (load + share, j))
    chosen.sort()
    lists = [outputs[i] for i in chosen.tolist()]
    first = np.cumsum([0, *map(len, lists)])
    flat = np.array([j for places in lists for j in places], np.int64)
    return Placement(keys[chosen], first, flat, is_dealt[chosen])


class RowRoutes(NamedTuple):
    """Rows of a partition, with the output of each."""

    rows: np.ndarray | None  # (m,) repeated for each copy; None for each row once
    outputs: np.ndarray  # (m,)
    is_copy: np.ndarray | None  # (m,) whether it is a copy after the first; None without copies


def route_rows(
    hashes: np.ndarray,
    placement: Placement,
    npartitions: int,
    *,
    left: bool,
    number: int,
    keys: pd.DataFrame | None = None,
) -> RowRoutes:
    """Compute the outputs of the rows of a partition, given their hashes, which are not negative.

    ``left`` is the side of the join, and ``number`` the number of the partition: it rotates the
    output that is dealt to first. With ``keys``, needed if the join has rows of the other side
    without a partner, one row of each key that is dealt out goes to the first output.

    Examples
    --------
    >>> placed = Placement(np.array([5]), np.array([0, 2]), np.array([0, 2]), np.array([True]))
    >>> route_rows(np.array([5, 4, 5, 5]), placed, 3, left=True, number=1).outputs
    array([2, 1, 0, 2])
    >>> keys = pd.DataFrame({"k": list("abac")})
    >>> route_rows(np.array([5, 4, 5, 5]), placed, 3, left=True, number=1, keys=keys).outputs
    array([0, 1, 0, 0])
    >>> route_rows(np.array([5, 4]), placed, 3, left=False, number=0)
    RowRoutes(rows=array([0, 0, 1]), outputs=array([0, 2, 1]), is_copy=array([False,  True, False]))
    """
    outputs = hashes % npartitions
    if not len(placement.keys):
        return RowRoutes(None, outputs, None)
    at = np.searchsorted(placement.keys, hashes).clip(max=len(placement.keys) - 1)
    frequent = np.flatnonzero(placement.keys[at] == hashes)
    key = at[frequent]
    counts = np.diff(placement.first)
    deals = (placement.left[key] == left) | (counts[key] == 1)

    dealt_rows, ids = frequent[deals], key[deals]
    turn = (pd.Series(ids).groupby(ids).cumcount().to_numpy() + number) % counts[ids]
    if keys is not None:
        turn[~keys.iloc[dealt_rows].duplicated().to_numpy()] = 0
    outputs[dealt_rows] = placement.outputs[placement.first[ids] + turn]
    if deals.all():
        return RowRoutes(None, outputs, None)

    copies = np.ones(len(hashes), np.int64)
    copies[frequent[~deals]] = counts[key[~deals]]
    rows = np.repeat(np.arange(len(hashes)), copies)
    copy = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
    outputs = outputs[rows]
    has_copies = copies[rows] > 1
    outputs[has_copies] = placement.outputs[
        placement.first[at[rows[has_copies]]] + copy[has_copies]
    ]
    return RowRoutes(rows, outputs, copy > 0)


def has_partner(keys: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """Return which keys occur among others, compared as in a join of pandas (nulls are equal).

    Columns of both frames are numbered.

    Examples
    --------
    >>> has_partner(pd.DataFrame({0: [1, None, 3]}), pd.DataFrame({0: [None, 3.0]}))
    array([False,  True,  True])
    """
    number = keys.shape[1]
    numbered = keys.copy()
    numbered.insert(number, number, np.arange(len(keys)))
    matches = numbered.merge(others.drop_duplicates(), on=list(keys.columns))
    mask = np.zeros(len(keys), bool)
    mask[matches[number].to_numpy()] = True
    return mask


def _counts_of(keys: np.ndarray, side: KeyCounts) -> np.ndarray:
    counts = np.zeros(len(keys), np.int64)
    counts[np.searchsorted(keys, side.keys)] = side.counts
    return counts


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


def spanning_groups(*edges: EdgeGroups | None) -> list[SpanningGroup]:
    """Return the groups that are in more than one partition.

    Examples
    --------
    >>> first, last = EdgeGroups(("a",), ("b",), 4, 2), EdgeGroups(("b",), ("c",), 1, 5)
    >>> spanning_groups(first, None, EdgeGroups(("b",), ("b",), 7, 7), last)
    [SpanningGroup(parts=[0, 2, 3], counts=[2, 7, 1])]
    """
    groups: list[SpanningGroup] = []
    open_key: tuple[Any, ...] | None = None
    for j, part in enumerate(edges):
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
                is_null = not sum(span.counts) and place == 0  # the first null stands for all
                if before <= at < before + count or is_null:
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
    begins_before = any(j in span.parts[1:] for span in spanning)
    ends_after = any(j in span.parts[:-1] for span in spanning)
    start = _rows_like(part, keys, 0).stop if begins_before else 0
    stop = _rows_like(part, keys, -1).start if ends_after else len(part)
    inside = part.iloc[start : max(start, stop)].groupby(keys, observed=True)[VALUE]
    spanning_rows = picked[picked[BEGIN] == j]
    columns = {}
    for number, (rank, name) in enumerate(zip(quantiles, names, strict=True)):
        rows = spanning_rows[spanning_rows[RANK] == number]
        between = rows.groupby(keys, observed=True)[VALUE]
        results = inside.median() if rank is None else inside.quantile(rank)
        if len(rows):  # one group: not more than one goes on in the next partition
            fraction = rows[FRACTION].iloc[0]
            spanning_results = between.median() if rank is None else between.quantile(fraction)
            results = pd.concat([results, spanning_results]) if len(results) else spanning_results
        columns[name] = results
    groups = next(iter(columns.values())).index.to_frame(index=False)
    return groups.assign(**{name: column.array for name, column in columns.items()})


def _rows_like(part: pd.DataFrame, keys: list[str], row: int) -> slice:
    """Return the slice of rows with the keys of the first (0) or the last row (-1)."""
    same = np.ones(len(part), bool)
    for key in keys:
        same &= (part[key] == part[key].iloc[row]).to_numpy(bool)
    count = int(same.sum())
    return slice(0, count) if row == 0 else slice(len(part) - count, len(part))
