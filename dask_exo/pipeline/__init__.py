"""Pipelines over Dask collections: stages with different requests, one partition at a time."""

from dask_exo.pipeline.api import Pipeline, from_files, materialize, of, union
from dask_exo.pipeline.run import Reject, Rejects
from dask_exo.pipeline.shards import Split

__all__ = ["Pipeline", "Reject", "Rejects", "Split", "from_files", "materialize", "of", "union"]
