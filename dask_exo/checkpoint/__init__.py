"""Values that outlive the program which made them: where they lie, and as what."""

from dask_exo.checkpoint.store import Entry, Group, Store

__all__ = ["Entry", "Group", "Store"]
