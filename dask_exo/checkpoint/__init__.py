"""Checkpoints: values that are stored for the next program."""

from dask_exo.checkpoint.store import CheckpointStore, StoredGroup, StoredValue

__all__ = ["CheckpointStore", "StoredGroup", "StoredValue"]
