"""Check that no row is lost: the reducers receive what the maps sent.

Both sides of a shuffle count rows (items of a bag, elements of an array), sum the hashed partition
numbers of all rows, and sum the fixed-width key columns of frames. The three sums do not depend on
the order of rows, and cost little beside the copies that a shuffle makes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_exo.errors import IntegrityError

_WORD = 2**64


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over rows that a shuffle must not change.

    Attributes
    ----------
    rows : int
        Number of rows, items or elements.
    places : int
        Sum over all rows of a hash of the reducer, modulo 2**64.
    dtypes : tuple of str or None
        Dtypes of the key columns in ``keys``; None if parts differ, so that sums cannot be
        compared.
    keys : int
        Sum over the key columns, modulo 2**64.

    Examples
    --------
    >>> Tally(2, 5, ("int64",), 7) + Tally(1, 3, ("int64",), 1)
    Tally(rows=3, places=8, dtypes=('int64',), keys=8)
    >>> Tally() + Tally(1, 3, ("int64",), 1)
    Tally(rows=1, places=3, dtypes=('int64',), keys=1)
    """

    rows: int = 0
    places: int = 0
    dtypes: tuple[str, ...] | None = ()
    keys: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Return the tally of the rows of both."""
        if not self.rows or not other.rows:
            return other if other.rows else self
        same = self.dtypes == other.dtypes
        return Tally(
            self.rows + other.rows,
            (self.places + other.places) % _WORD,
            self.dtypes if same else None,
            (self.keys + other.keys) % _WORD,
        )


def tally(
    counts: np.ndarray, first: int = 0, *, dtypes: tuple[str, ...] = (), keys: int = 0
) -> Tally:
    """Return the tally of rows that were sent to, or have arrived at, reducers.

    Parameters
    ----------
    counts : (k,)
        Rows (items, elements) of each of k reducers.
    first : int
        Number of the first of these reducers.
    dtypes, keys
        See `Tally`.
    """
    counts = np.asarray(counts, np.uint64)
    # an odd multiplier of the golden ratio spreads neighbouring numbers over the word
    with np.errstate(over="ignore"):
        hashes = np.arange(first + 1, first + 1 + len(counts), dtype=np.uint64)
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        places = int((hashes * counts).sum(dtype=np.uint64))
    return Tally(int(counts.sum()), places, dtypes, keys)


def verify(name: str, sent: Tally, arrived: Tally) -> None:
    """Raise `IntegrityError` unless both sides of a shuffle agree.

    Parameters
    ----------
    name : str
        Name of the shuffle, for the error.
    sent, arrived : Tally

    Raises
    ------
    IntegrityError
        They differ.

    Examples
    --------
    >>> verify("shuffle", Tally(10, 4), Tally(10, 4))
    >>> verify("shuffle", Tally(10, 4), Tally(9, 3))
    Traceback (most recent call last):
    ...
    dask_exo.errors.IntegrityError: shuffle: 10 rows went in, 9 came out; no result is returned. \
Compute it again
    """
    if sent.rows != arrived.rows:
        raise IntegrityError(
            f"{name}: {sent.rows} rows went in, {arrived.rows} came out; no result is returned. "
            f"Compute it again"
        )
    comparable = sent.dtypes is not None and sent.dtypes == arrived.dtypes
    if sent.places != arrived.places or (comparable and sent.keys != arrived.keys):
        raise IntegrityError(
            f"{name}: as many rows came out as went in ({sent.rows}), but not the same ones, or "
            f"not where they belong; no result is returned. Compute it again"
        )
