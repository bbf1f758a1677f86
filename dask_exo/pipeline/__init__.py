"""Pipelines over Dask collections: stages with different needs, a partition at a time."""

from dask_exo.pipeline.pipeline import Pipeline

__all__ = ["Pipeline"]
