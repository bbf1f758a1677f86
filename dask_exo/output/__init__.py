"""Parquet that is there as a whole or not at all: ``ddf.exo.to_parquet``."""

from dask_exo.output.bucket import committed
from dask_exo.output.write import write

__all__ = ["committed", "write"]
