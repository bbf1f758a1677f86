"""Pipelines over Dask collections: stages with different needs, a partition at a time."""

from dask_exo.pipeline.begin import from_files, of
from dask_exo.pipeline.pipeline import Pipeline
from dask_exo.pipeline.rejects import Reject, Rejects
from dask_exo.pipeline.split import Split
from dask_exo.pipeline.together import materialize, union

__all__ = ["Pipeline", "Reject", "Rejects", "Split", "from_files", "materialize", "of", "union"]
