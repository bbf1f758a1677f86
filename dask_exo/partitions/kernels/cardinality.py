"""Estimate the number of distinct values from two samples of the rows.

Rows spread over all of them show how many values there are; runs of neighbours show values that
are clustered, as in sorted data. Estimates are rather too low than too high: if some values are
frequent and most are not, their repeats look like those of fewer values.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

SAMPLE = 4096  # rows of each sample
RUN = 256  # neighbours


def estimate_distinct(values: pd.DataFrame | pd.Series | pd.Index) -> float:
    """Estimate the number of distinct rows.

    Parameters
    ----------
    values : DataFrame, Series or Index
        (n,) rows, at least `SAMPLE`.

    Examples
    --------
    >>> 15_000 < estimate_distinct(pd.Index(np.arange(100_000) % 20_000)) < 25_000
    True
    """
    samples = spread_rows(len(values)), neighbour_rows(len(values))
    return distinct_of_repeats(
        len(values), *(int(values.take(at).duplicated().sum()) for at in samples)
    )


def distinct_of_repeats(rows: int, spread_repeats: int, near_repeats: int) -> float:
    """Estimate the number of distinct values from repeats in the two samples.

    Parameters
    ----------
    rows : int
        At least `SAMPLE`.
    spread_repeats : int
        Rows of `spread_rows` whose value an earlier one has, too.
    near_repeats : int
        The same of the rows of `neighbour_rows`.

    Returns
    -------
    float
        At most ``rows``.

    Examples
    --------
    >>> values = np.arange(100_000) % 20_000
    >>> samples = spread_rows(len(values)), neighbour_rows(len(values))
    >>> distinct = distinct_of_repeats(
    ...     len(values), *(SAMPLE - len(set(values[at])) for at in samples)
    ... )
    >>> 15_000 < distinct < 25_000
    True
    """
    return min(_distinct_if_uniform(rows, spread_repeats), (1 - near_repeats / SAMPLE) * rows)


def spread_rows(rows: int) -> np.ndarray:
    """Return (SAMPLE,) row numbers: a random one of each of as many equal stretches."""
    edges = np.arange(SAMPLE + 1) * rows // SAMPLE
    random = np.random.default_rng(rows).random(SAMPLE)
    return edges[:-1] + (random * np.diff(edges)).astype(np.int64)


def neighbour_rows(rows: int) -> np.ndarray:
    """Return (SAMPLE,) row numbers in evenly spaced runs."""
    starts = np.linspace(0, rows - RUN, SAMPLE // RUN).astype(np.int64)
    return np.minimum(starts[:, None] + np.arange(RUN), rows - 1).ravel()


def _distinct_if_uniform(rows: int, repeats: int) -> float:
    """Estimate distinct values from the repeats in `SAMPLE` rows, if all are equally frequent.

    Of ``m`` rows ``m - D (1 - exp(-m / D))`` repeat one of ``D`` values.
    """
    if repeats == 0:
        return float(rows)
    low, high = 1.0, float(SAMPLE) ** 2  # more values would hardly show a repeat
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        more = SAMPLE - _expected_distinct(middle, SAMPLE) > repeats
        low, high = (middle, high) if more else (low, middle)
    return _expected_distinct(low, rows)


def _expected_distinct(distinct: float, rows: int) -> float:
    return -distinct * math.expm1(-rows / distinct)
