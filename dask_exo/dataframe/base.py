"""Base classes of the accessors."""

from __future__ import annotations

import inspect
from typing import Any

import dask.dataframe as dd


class Accessor:
    """A namespace whose repr lists its methods."""

    def __repr__(self) -> str:
        methods = [
            f"  {name}{_bare(getattr(type(self), name))}"
            for name in dir(type(self))
            if not name.startswith("_")
        ]
        return "\n".join([f"{type(self).__name__} of dask_exo:", *methods])


class FrameMethods(Accessor):
    """A namespace of a Dask DataFrame.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
    """

    def __init__(self, frame: dd.DataFrame) -> None:
        self._frame = frame


def _bare(method: Any) -> inspect.Signature:
    """Return the signature without types and self."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return inspect.Signature(bare)
