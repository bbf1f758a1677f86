"""The rows of an epoch that each consumer gets: equal numbers of batches for all.

A consumer gets neighbouring rows of the shuffled epoch, so that each partition is read by one
consumer, or by two where it is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

from dask_exo.partitions.batching import RowSpan

Part = TypeVar("Part")


def split_rows(rows: int, consumers: int, batch_size: int, *, drop_last: bool) -> list[range]:
    """Split the rows of an epoch, so that all consumers get the same number of batches.

    With ``drop_last`` all batches are full, and fewer rows than one batch for each consumer are
    left over. Without it consumers differ by one row at most, and none is left over, but where
    that row would be a batch of its own: then fewer rows than consumers are.

    Parameters
    ----------
    rows, consumers, batch_size : int
    drop_last : bool
        Whether a last batch with fewer rows is left out.

    Returns
    -------
    list of range
        The rows of each consumer.

    Examples
    --------
    >>> split_rows(10, 3, 2, drop_last=False)
    [range(0, 4), range(4, 7), range(7, 10)]
    >>> split_rows(10, 3, 2, drop_last=True)
    [range(0, 2), range(2, 4), range(4, 6)]
    >>> split_rows(10, 3, 3, drop_last=False)
    [range(0, 3), range(3, 6), range(6, 9)]
    """
    each, more = divmod(rows, consumers)
    if drop_last:
        each -= each % batch_size
    if each % batch_size == 0:
        more = 0
    ends = [0, *accumulate(each + (i < more) for i in range(consumers))]
    return [range(a, b) for a, b in pairwise(ends)]


def locate_rows(rows: range, lengths: Sequence[int]) -> list[RowSpan[int]]:
    """Locate rows of an epoch in its partitions, given their lengths.

    Examples
    --------
    >>> locate_rows(range(2, 5), [3, 0, 4])
    [RowSpan(part=0, start=2, stop=3), RowSpan(part=2, start=0, stop=2)]
    """
    spans = []
    first = 0
    for part, length in enumerate(lengths):
        start, stop = max(rows.start - first, 0), min(rows.stop - first, length)
        if start < stop:
            spans.append(RowSpan(part, start, stop))
        first += length
    return spans


def skip_rows(spans: Sequence[RowSpan[Part]], rows: int) -> list[RowSpan[Part]]:
    """Return spans without their first ``rows``.

    Examples
    --------
    >>> skip_rows([RowSpan(0, 2, 3), RowSpan(2, 0, 2)], 2)
    [RowSpan(part=2, start=1, stop=2)]
    """
    kept = []
    for span in spans:
        skipped = min(rows, span.stop - span.start)
        rows -= skipped
        if span.start + skipped < span.stop:
            kept.append(span._replace(start=span.start + skipped))
    return kept
