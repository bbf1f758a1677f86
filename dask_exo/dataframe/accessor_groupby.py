"""Groups of dataframes: aggregates that no frequent key slows down, and online ones."""

from __future__ import annotations

from typing import Any

from dask_exo.dataframe.base import OfFrame
from dask_exo.dataframe.groupby import GroupBy


class Grouping(OfFrame):
    """Methods that group rows."""

    def groupby(self, by: Any) -> GroupBy:
        """Group rows by columns; rows with a null among them belong to no group.

        Parameters
        ----------
        by : label or list of labels
            Columns.

        Returns
        -------
        GroupBy
            Its ``agg`` and ``quantile`` are lazy and exact, and no frequent key makes a partition
            larger than the others. Its ``agg_online`` yields estimates while it runs, and ends
            with the exact result.

        Raises
        ------
        ColumnError
            There is no such column.
        """
        return GroupBy(self._frame, by)
