"""The queries of TPC-H as ordinary Dask dataframes, with the parameters that validate them.

Each takes the tables and returns a lazy frame that has the rows and columns of the SQL, in its
order. Nothing runs before ``compute``, and any scheduler of Dask can do it.

* Filters and projections come first.
* What is known to be small is made one partition (`small`): a join with it moves no other rows.
* A join of two large tables says ``broadcast=False``. Dask may choose to broadcast by itself, and
  then Dask 2026.8 takes the rows of a key to be together, and leaves out the shuffle of a
  ``groupby`` or a ``merge`` by the same key: its result is wrong.
* A ``groupby`` says ``split_out=1`` if there are few groups and ``split_out=True`` if there are
  many. Any other number, also the one that Dask chooses by itself, can make a ``merge`` by the
  same key lose rows.
"""

from __future__ import annotations

from collections.abc import Callable

import dask.dataframe as dd

from examples.tpch import first_half, second_half
from examples.tpch.tables import Tables

Query = Callable[[Tables], dd.DataFrame]

QUERIES: dict[int, Query] = {
    i: getattr(first_half if i <= 11 else second_half, f"q{i}") for i in range(1, 23)
}
