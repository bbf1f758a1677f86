"""Values that outlive the program which made them: where they lie, and as what."""

from dask_exo.checkpoint.store import CheckpointStore, StoredGroup, StoredValue

__all__ = ["CheckpointStore", "StoredGroup", "StoredValue"]
