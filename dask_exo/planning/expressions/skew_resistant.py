"""What all expressions that spread frequent keys have in common."""

from __future__ import annotations

from abc import abstractmethod

from dask_exo.dask_adapter import Expr


class SkewProof(Expr):
    """Part of an operation in which a key that repeats often makes no large partition."""

    @property
    @abstractmethod
    def plan(self) -> str:
        """What happens to frequent keys, in a line for people."""
