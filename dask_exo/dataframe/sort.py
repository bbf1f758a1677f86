"""Rows of a dataframe in another order: sorted, by an index, or random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.dataframe as dd
from dask.utils import M

from dask_exo import validation
from dask_exo.dask_adapter import new_collection
from dask_exo.errors import SortArgumentError
from dask_exo.planning.reorder import SortRows, shuffle_windows


class SortMethods:
    """Methods that put rows into another order."""

    _frame: dd.DataFrame

    def sort_values(
        self,
        by: Any,
        *,
        ascending: bool | Sequence[bool] = True,
        na_position: str = "last",
        npartitions: int | str | None = None,
        ignore_index: bool = False,
        key: None = None,
    ) -> dd.DataFrame:
        """Sort rows over all partitions, stably, in one pass over the input.

        Equals `pandas.DataFrame.sort_values` with ``kind="stable"`` of the concatenated frame, row
        by row and with its index. Nothing is computed on the call.

        Parameters
        ----------
        by : label or list of labels
            Columns, or the name of the index; the first is the most significant.
        ascending : bool or list of bool
            One for all, or one for each.
        na_position : {"last", "first"}
            Position of nulls, in either direction.
        npartitions : int, optional
            Number of output partitions. By default, and with "auto", that of the input.
        ignore_index : bool
            Whether to number the rows from 0 on, over all partitions.
        key : None
            Not supported: assign a column to sort by.

        Returns
        -------
        dask.dataframe.DataFrame
            Partitions have about equally many rows; divisions are unknown. Equal keys may be in
            several partitions.

        Raises
        ------
        ColumnError
            There is no such column.
        SortArgumentError
            Another argument is invalid.
        SortKeyError
            During the computation: values of a key cannot be compared with each other.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> df = pd.DataFrame({"a": [2, None, 1, 2], "b": list("xyzw")})
        >>> ddf = dd.from_pandas(df, npartitions=2)
        >>> ddf.exo.sort_values(["a", "b"], na_position="first").compute()
             a  b
        1  NaN  y
        2  1.0  z
        3  2.0  w
        0  2.0  x
        """
        names = validation.labels(self._frame, by)
        if key is not None:
            raise SortArgumentError(
                f"key={key!r} is not supported: assign a column, ddf.assign(k=...), sort by it, "
                f"and drop it"
            )
        sort = SortRows(
            self._frame,
            names,
            validation.directions(ascending, names),
            validation.na_position(na_position),
            validation.count(npartitions),
            bool(ignore_index),
        )
        return new_collection(sort)

    def set_index(
        self,
        column: Any,
        *,
        drop: bool = True,
        npartitions: Any = None,
        split_equal: bool = False,
        **options: Any,
    ) -> dd.DataFrame:
        """Make a column the index, and sort the rows by it.

        Parameters
        ----------
        column : label
            Without ``split_equal``, all that Dask's ``set_index`` takes.
        drop : bool
            Whether to remove the column from the columns.
        npartitions : int, optional
            Number of output partitions.
        split_equal : bool
            Whether rows of equal index may be in several partitions. By default they may not:
            this is Dask's ``set_index``, which reads all data twice to have known divisions. With
            it, partitions have about equally many rows however often a value repeats, data is
            read once, rows of equal index keep their order, nulls come last, and divisions are
            unknown.
        **options
            Options of Dask's ``set_index``.

        Raises
        ------
        ColumnError
            There is no such column.
        SortArgumentError
            ``options`` are given with ``split_equal``, or another argument is invalid.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": [7] * 6, "b": range(6)}), npartitions=3)
        >>> ddf.exo.set_index("a", split_equal=True).map_partitions(len).compute().tolist()
        [2, 2, 2]
        """
        if not split_equal:
            return self._frame.set_index(column, drop=drop, npartitions=npartitions, **options)
        if options:
            raise SortArgumentError(
                f"set_index with split_equal=True takes no arguments {sorted(options)}: leave "
                f"these out, or split_equal"
            )
        validation.check_columns([column], self._frame, "to sort by")
        ordered = self.sort_values([column], npartitions=npartitions)
        meta = self._frame._meta.set_index(column, drop=drop)
        return ordered.map_partitions(M.set_index, column, drop=drop, meta=meta)

    def random_shuffle(
        self, *, seed: int = 0, window: int | None = None, npartitions: int | None = None
    ) -> dd.DataFrame:
        """Put rows in random order, over all partitions or within windows of them.

        Rows keep their index. The order depends only on the seed and on the partitions of the
        input. Output partitions have about equally many rows; divisions are unknown.

        Parameters
        ----------
        seed : int
            0 or more.
        window : int, optional
            Number of neighbouring partitions within which rows move. By default all: a full
            shuffle. With windows the first rows are ready as soon as one window has been read, but
            rows that are far apart stay far apart.
        npartitions : int, optional
            Number of output partitions; by default that of the input. Each window has its share of
            them, at least one.

        Raises
        ------
        ShuffleArgumentError
            An argument is invalid.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(6)}), npartitions=3)
        >>> sorted(ddf.exo.random_shuffle(seed=1).a.compute())
        [0, 1, 2, 3, 4, 5]
        >>> sorted(ddf.exo.random_shuffle(seed=1, window=1).partitions[2].a.compute())
        [4, 5]
        """
        validation.number_from(0, "seed", seed)
        if window is not None:
            validation.number_from(1, "window", window)
        if npartitions is not None:
            validation.number_from(1, "npartitions", npartitions)
        count = npartitions or self._frame.npartitions
        windows = list(shuffle_windows(self._frame, int(seed), window, count))
        return windows[0] if len(windows) == 1 else dd.concat(windows, interleave_partitions=False)
