"""Online aggregation: estimates of a groupby while it runs, and the exact result at its end."""

from dask_exo.online.groupby import OnlineGroupBy
from dask_exo.online.state import AGGREGATES, Estimate

__all__ = ["AGGREGATES", "Estimate", "OnlineGroupBy"]
