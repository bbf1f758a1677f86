"""Skew-resistant joins of dataframes."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import pandas as pd

from dask_exo import validation
from dask_exo.dask_adapter import Merge, new_collection
from dask_exo.errors import MergeArgumentError
from dask_exo.planning.skew_resistant import SpreadMerge


class MergeMethods:
    """Methods that join dataframes."""

    _frame: dd.DataFrame

    def merge(  # noqa: PLR0913  as Dask has them
        self,
        right: Any,
        how: str = "inner",
        on: Any = None,
        *,
        left_on: Any = None,
        right_on: Any = None,
        left_index: bool = False,
        right_index: bool = False,
        suffixes: tuple[str, str] = ("_x", "_y"),
        indicator: bool = False,
        npartitions: int | None = None,
    ) -> dd.DataFrame:
        """Join on columns or indexes; a heavy hitter does not make one partition larger.

        Returns the rows of `pandas.DataFrame.merge`. Dask's ``merge`` puts all rows of a key into
        one partition, and later steps may depend on that. This one spreads the rows of a heavy
        hitter over several partitions, and copies its rows on the other side to each of them.

        The side with more rows of the key is spread; in leftsemi joins, the left side. In left,
        right and outer joins each row without a partner comes out once. Nulls are keys like others.

        Parameters
        ----------
        right : dask.dataframe.DataFrame or pandas.DataFrame
        how : {"inner", "left", "right", "outer", "leftsemi"}
        on, left_on, right_on : label or list of labels
            Columns; by default all that both sides have.
        left_index, right_index : bool
            Whether the index of a side is its key.
        suffixes, indicator
            Arguments of `pandas.DataFrame.merge`.
        npartitions : int, optional
            Number of output partitions; by default that of the side with more.

        Returns
        -------
        dask.dataframe.DataFrame
            Divisions unknown. Equal keys may be in several partitions.

        Raises
        ------
        ColumnError
            There is no such column.
        MergeArgumentError
            The keys of a side are missing or ambiguous, or no column is in both.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> views = pd.DataFrame({"page": [7] * 90 + list(range(10)), "n": range(100)})
        >>> views = dd.from_pandas(views, npartitions=5)
        >>> pages = dd.from_pandas(pd.DataFrame({"page": range(10)}), npartitions=5)
        >>> int(views.merge(pages, on="page", broadcast=False).map_partitions(len).compute().max())
        91
        >>> int(views.exo.merge(pages, on="page").map_partitions(len).compute().max())
        21
        """
        if isinstance(right, pd.DataFrame):
            right = dd.from_pandas(right, npartitions=1, sort=False)
        keys = validation.join_keys(
            self._frame,
            right,
            on=on,
            left_on=left_on,
            right_on=right_on,
            left_index=left_index,
            right_index=right_index,
        )
        if how == "leftsemi" and right_index:
            raise MergeArgumentError(
                "how='leftsemi' with right_index=True: need columns of the right side; "
                "reset_index() it first"
            )
        merged = self._frame.merge(
            right,
            how=how,
            **keys,
            suffixes=suffixes,
            indicator=indicator,
            npartitions=npartitions,
        ).expr
        if isinstance(merged, Merge):
            return new_collection(SpreadMerge(*merged.operands))
        # Dask renames the index where those of both sides have different names
        spread = new_collection(SpreadMerge(*merged.frame.operands))
        return spread.rename_axis(index=spread._meta.index.name)
