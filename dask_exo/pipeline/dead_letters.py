"""Dead letters: inputs that a pipeline set aside because a function failed, and the errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import pandas as pd

from dask_exo.pipeline.streaming.provenance import Origin
from dask_exo.pipeline.streaming.types import Block


@dataclass(frozen=True)
class Reject:
    """An input that was set aside.

    Attributes
    ----------
    stage, function : str
        Where it happened; the function "source" makes partitions.
    origin : Origin
        Rows of the source that it was made of: partition, first row and the one after the last of
        each range in ``origin.rows``. They are these very rows where ``origin.exact``, which is
        known as long as functions give as many rows as they take.
    error : BaseException
        What the function raised.
    traceback : str
        The same as text.
    """

    stage: str
    function: str
    origin: Origin
    error: BaseException
    traceback: str
    _fetch: Callable[[], Any] = field(repr=False, compare=False)

    @property
    def partition(self) -> int:
        """Number of the first partition of the source that it was made of."""
        return self.origin.rows[0].partition

    @property
    def frame(self) -> pd.DataFrame | None:
        """The input; None if making it has failed."""
        found = self._fetch()
        return found if isinstance(found, pd.DataFrame) else None


class Rejects(Sequence[Reject]):
    """Inputs that a run of a pipeline has set aside so far.

    It can be looked at while the pipeline runs. The inputs stay in the object store as long as
    they or the pipeline are referenced.

    Parameters
    ----------
    blocks : list of Block
    get : callable
        Fetches a value.
    """

    def __init__(
        self, blocks: Sequence[Block] = (), get: Callable[[Any], Any] = lambda value: value
    ) -> None:
        self._blocks, self._get = blocks, get

    def __len__(self) -> int:
        return len(self._blocks)

    @overload
    def __getitem__(self, at: int) -> Reject: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Reject]: ...

    def __getitem__(self, at: int | slice) -> Reject | Sequence[Reject]:
        """Return one of them, or a slice."""
        if isinstance(at, slice):
            return Rejects(self._blocks[at], self._get)
        block = self._blocks[at]
        rejected = block.rejected
        assert rejected is not None
        return Reject(
            rejected.stage,
            rejected.function,
            rejected.origin,
            rejected.failure.error(),
            rejected.failure.text,
            lambda: self._get(block.value),
        )

    def table(self) -> pd.DataFrame:
        """Return a table with a row for each: stage, function, rows and error."""
        columns = ["stage", "function", "partition", "start", "stop", "exact", "rows", "error"]
        found = []
        for one, block in zip(self, self._blocks, strict=False):
            first = one.origin.rows[0]
            where = (one.stage, one.function, first.partition, first.start, first.stop)
            error = f"{type(one.error).__name__}: {one.error}"
            found.append((*where, one.origin.exact, block.rows, error))
        return pd.DataFrame(found, columns=columns).astype({"stop": "Int64"})

    def __repr__(self) -> str:
        """Return their number as text."""
        return f"Rejects of a pipeline: {len(self)}"
