"""Pipelines over Dask collections: stages with different requests, one partition at a time."""

from dask_exo.pipeline.api import Pipeline
from dask_exo.pipeline.constructors import from_files, materialize, of, union
from dask_exo.pipeline.dead_letters import Reject, Rejects
from dask_exo.pipeline.shard_server import Split

__all__ = ["Pipeline", "Reject", "Rejects", "Split", "from_files", "materialize", "of", "union"]
