"""Groups of dataframes."""

from __future__ import annotations

from typing import Any

from dask_exo.accessors.base import OfFrame
from dask_exo.online import OnlineGroupBy


class Grouping(OfFrame):
    """Methods that group rows."""

    def groupby(self, by: Any) -> OnlineGroupBy:
        """Group rows, to aggregate them online.

        Parameters
        ----------
        by : label or list of labels
            Columns.

        Returns
        -------
        OnlineGroupBy
            Its ``agg_online`` yields estimates while it runs, and ends with the exact result.

        Raises
        ------
        ColumnError
            There is no such column.
        """
        return OnlineGroupBy(self._frame, by)
