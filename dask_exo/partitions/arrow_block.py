"""Rows of a library's frames on their way, as tables of Arrow in host memory."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows that come out as a frame of some library, which has ``DataFrame.from_arrow``.

    Attributes
    ----------
    table : pyarrow.Table
        (n,) rows.
    library : str
        Name of the module.
    """

    table: pa.Table
    library: str

    @property
    def length(self) -> int:
        """Number of rows, n."""
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.table.nbytes)

    def part(self, start: int, stop: int) -> Self:
        """Rows ``start`` to ``stop``, without a copy."""
        return type(self)(self.table.slice(start, stop - start), self.library)

    def frame(self) -> Any:
        """The frame, where its library puts it."""
        return importlib.import_module(self.library).DataFrame.from_arrow(self.table)

    @classmethod
    def below(cls, several: Sequence[Self]) -> Self:
        """Put rows below each other, on the host."""
        tables = [one.table for one in several if one.length] or [several[0].table]
        together = pa.concat_tables(tables, promote_options="permissive")
        return cls(together.combine_chunks(), several[0].library)
