"""Run a `Table` in a task: read Parquet by Polars, and return the frame that pandas would.

Data may have other types than Dask's metadata says, and then pandas has to do it. Integers with
nulls are the usual case: pandas makes floats of them.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from dask_exo.compile.rules import RULES, unit_of
from dask_exo.compile.terms import ComputedColumn, Table, Term, sources
from dask_exo.dask_adapter import read_table
from dask_exo.errors import ValidationError
from dask_exo.partitions.wire_format import frame_of_blocks

ROW = "\0row"


class DifferentDataError(Exception):
    """The data are not as the rules need them."""


@dataclass(frozen=True)
class Query:
    """A table, the labels of its columns or the name of its series, and the columns it reads."""

    table: Table
    labels: Any
    dtypes: dict[str, Any]
    verify: bool = False

    @classmethod
    def of(cls, table: Table, result: Any, source: Any, *, verify: bool) -> Query:
        """Return the query for a table, with the metadata of its result and of its source."""
        names = set().union(*map(sources, table.terms()))
        dtypes = {name: dtype for name, dtype in source.dtypes.items() if name in names}
        return cls(table, result.name if table.series else result.columns, dtypes, verify)

    def run(self, read: Any, parts: Sequence[Any], plain: Callable[[], Any]) -> Any:
        """Return the result for one partition.

        Parameters
        ----------
        read, parts
            Dask's reader, and the parts of the dataset that it would read.
        plain : callable
            Returns the result by pandas. It is called where the data are of other types, and where
            Polars cannot read a file: then it raises what pandas and pyarrow raise.
        """
        try:
            selection = self._selection()
            frames = [self._rows(each, *selection) for each in self._scanned(read, parts)]
            result = self._frame(frames)
        except (DifferentDataError, _polars().exceptions.PolarsError):
            return plain()
        if self.verify:
            _compare(result, plain(), self)
        return result

    def _scanned(self, read: Any, parts: Sequence[Any]) -> Iterator[Any]:
        """Yield a lazy frame for each frame that Dask would read.

        Polars reads whole local files. What has no nulls is known by the footer.
        """
        pl = _polars()
        options = {k: v for k, v in read.common_kwargs.items() if k not in _NOT_READ}
        schema = options.pop("schema", None)
        whole = [n for n, d in self.dtypes.items() if isinstance(d, np.dtype) and d.kind in "ib"]
        for part in parts:
            for each in part if isinstance(part, list) else [part]:
                path, groups, keys = each["piece"]
                groups = list(groups) if isinstance(groups, list | tuple) else [groups]
                if groups == [None] and isinstance(path, str) and type(read.fs) is LocalFileSystem:
                    footer = pq.read_metadata(path)
                    if _may_have_nulls(footer, whole) or _has_labels(footer.metadata):
                        raise DifferentDataError
                    yield pl.scan_parquet(path, glob=False, hive_partitioning=False)
                    continue
                table = read_table(read, path, groups, list(self.dtypes), schema, keys, options)
                metadata = table.schema.metadata
                if any(table[name].null_count for name in whole) or _has_labels(metadata):
                    raise DifferentDataError
                yield pl.from_arrow(table, rechunk=False).lazy()

    def _selection(self) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """Return columns and conditions as Polars has them, and the types that they read."""
        columns = [build(each.term).alias(str(i)) for i, each in enumerate(self._columns)]
        if self.table.conditions:
            columns.append(_polars().col(ROW).cast(_polars().Int64))
        types = {name: _polars_type(dtype) for name, dtype in self.dtypes.items()}
        return columns, [build(each) for each in self.table.conditions], types

    def _rows(self, frame: Any, columns: Any, conditions: Any, types: dict[str, Any]) -> Any:
        """Return the rows for which all conditions hold, and their numbers if there are some."""
        schema = frame.collect_schema()
        if any(schema.get(name) != expected for name, expected in types.items()):
            raise DifferentDataError
        if conditions:
            frame = frame.with_row_index(ROW).filter(*conditions)
        return frame.select(columns).collect()

    @property
    def _columns(self) -> list[ComputedColumn]:
        return list(self.table.columns.values())

    def _frame(self, parts: Sequence[Any]) -> pd.DataFrame | pd.Series[Any]:
        """Return the rows of several frames as pandas has them."""
        whole = _polars().concat(parts, rechunk=False)
        if self.table.conditions:
            index: Any = pd.Index(whole[ROW].to_numpy())
        elif len(parts) == 1:
            index = pd.RangeIndex(whole.height)
        else:
            index = pd.Index(np.concatenate([np.arange(each.height) for each in parts]))
        places = defaultdict[Any, list[int]](list)  # of columns that share a block
        for i, each in enumerate(self._columns):
            places[each.dtype if isinstance(each.dtype, np.dtype) else i].append(i)
        blocks = [
            (_block([whole[str(i)] for i in group], self._columns[group[0]].dtype), np.array(group))
            for group in places.values()
        ]
        labels = pd.RangeIndex(1) if self.table.series else self.labels
        result = frame_of_blocks(blocks, index, labels)
        return result.iloc[:, 0].rename(self.labels) if self.table.series else result


_NOT_READ = frozenset({"categories", "convert_string", "filters", "partitions"})


def _polars() -> Any:
    """Import Polars, with as many threads as Ray gives each task."""
    if "polars" not in sys.modules and (threads := os.environ.get("OMP_NUM_THREADS")):  # noqa: TID251
        os.environ.setdefault("POLARS_MAX_THREADS", threads)  # noqa: TID251  Polars has no other way
    import polars as pl

    return pl


def _may_have_nulls(footer: pq.FileMetaData, names: Sequence[str]) -> bool:
    """Return whether the footer of a file permits nulls in some columns."""
    schema = footer.schema
    positions = {schema.column(i).path: i for i in range(footer.num_columns)}
    for name in names:
        place = positions.get(name)
        if place is None:
            return True
        if schema.column(place).max_definition_level == 0:
            continue
        for group in range(footer.num_row_groups):
            rows = footer.row_group(group)
            statistics = rows.column(place).statistics
            if rows.num_rows and (
                statistics is None or not statistics.has_null_count or statistics.null_count
            ):
                return True
    return False


def _has_labels(metadata: dict[bytes, bytes] | None) -> bool:
    """Return whether pandas wrote attributes, or labels of rows other than 0, 1, 2 and so on."""
    stored = json.loads((metadata or {}).get(b"pandas", b"{}"))
    default = {"kind": "range", "name": None, "start": 0, "step": 1}.items()
    columns = stored.get("index_columns", [])
    labels = [each for each in columns if not (isinstance(each, dict) and default <= each.items())]
    return bool(labels or stored.get("attributes"))


def _polars_type(dtype: Any) -> Any:
    """Return the type in Polars of a column of a pandas dtype; None if there is none."""
    pl = _polars()
    if isinstance(dtype, pd.ArrowDtype):
        arrow = dtype.pyarrow_dtype
        if pa.types.is_decimal128(arrow):
            return pl.Decimal(arrow.precision, arrow.scale)
        return pl.Date if pa.types.is_date32(arrow) else None
    if isinstance(dtype, pd.StringDtype):
        return pl.String
    if dtype.kind == "M":
        return pl.Datetime(np.datetime_data(dtype)[0]) if dtype != "M8[s]" else None
    names = {"int64": pl.Int64, "int32": pl.Int32, "float64": pl.Float64, "bool": pl.Boolean}
    return names.get(str(dtype))


def build(term: Term) -> Any:
    """Return the Polars expression of a term."""
    pl = _polars()
    match term.operation, term.constants:
        case "column", (name,):
            return pl.col(name)
        case "constant", (value,):
            return pl.lit(value)
        case "time", (stamp, unit):
            return pl.lit(stamp, dtype=pl.Int64).cast(pl.Datetime(unit))
        case "date", (days,):
            return pl.lit(days, dtype=pl.Int32).cast(pl.Date)
    inputs = map(build, term.inputs)
    if term.operation == "cast":
        return _cast(*inputs, *term.constants)
    return RULES[term.operation].build(*inputs, *term.constants)


def _cast(values: Any, target: str, scale: int) -> Any:
    """Cast values; ``scale`` is that of decimals."""
    pl = _polars()
    if target == "double[pyarrow]":  # as Arrow; Polars' own cast rounds otherwise
        return values.to_physical().cast(pl.Int64).cast(pl.Float64) * (1 / 10.0**scale)
    types = {"float64": pl.Float64, "int64": pl.Int64}
    return values.cast(types.get(target, pl.Datetime("ms")))


def _block(columns: Sequence[Any], dtype: Any) -> Any:
    """Return k columns of n rows as pandas keeps them: (k, n) values, or an extension array."""
    pl = _polars()
    if isinstance(dtype, pd.ArrowDtype):
        arrow = columns[0].to_arrow().cast(dtype.pyarrow_dtype)
        return pd.arrays.ArrowExtensionArray(pa.chunked_array([arrow]))
    if isinstance(dtype, pd.StringDtype):
        arrow = columns[0].to_arrow().cast(pa.large_string())
        return pd.arrays.ArrowStringArray(pa.chunked_array([arrow]), dtype=dtype)
    values = np.empty((len(columns), len(columns[0])), dtype)
    for row, column in zip(values, columns, strict=True):
        start = 0
        for chunk in column.get_chunks():
            timed = chunk.cast(pl.Datetime(unit_of(dtype))) if dtype.kind == "M" else chunk
            row[start : start + len(chunk)] = timed.to_numpy()
            start += len(chunk)
    return values


def _compare(result: Any, expected: Any, query: Query) -> None:
    """Raise if the result differs from that of pandas."""
    compare = (
        pd.testing.assert_series_equal if query.table.series else pd.testing.assert_frame_equal
    )
    try:
        compare(result, expected, check_exact=True)
    except AssertionError as error:
        raise ValidationError(
            f'a compiled query differs from pandas: set exo.compile to "off", and report this '
            f"please: {query.table}: {error}"
        ) from error
