"""Atomic Parquet outputs: ``ddf.exo.to_parquet``."""

from dask_exo.dataframe.to_parquet.object_store_commit import committed
from dask_exo.dataframe.to_parquet.write import write

__all__ = ["committed", "write"]
