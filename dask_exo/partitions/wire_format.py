"""The wire format: rows of a frame as they are sent through the object store.

A reducer reads a few rows from each of hundreds of blocks. Unpickling, slicing and concatenating
pandas frames costs 0.2 ms a block, however few its rows are; plain arrays cost a fifth of that. So
a frame is sent as `WireColumns` if `wire_dtypes` supports all its dtypes, and as a `WireFrame`
otherwise. Frames of libraries with GPU kernels of their own are sent as a `WireTable`.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Self, TypeGuard

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.sizeof import sizeof

from dask_exo.cluster.ownership import PANDAS_3, is_plain_data
from dask_exo.dask_adapter import concat_partitions
from dask_exo.partitions import wire_dtypes
from dask_exo.partitions.kernels.argsort import string_buffers

_INDEX = -1
_PLAIN_INDEXES = frozenset({pd.Index, pd.RangeIndex, pd.DatetimeIndex, pd.TimedeltaIndex})


class WireSchema(NamedTuple):
    """Everything but the arrays that is needed to make a pandas frame of `WireColumns`."""

    labels: Any  # of the columns
    places: tuple[tuple[int, ...], ...]  # positions of the columns of each array; -1 is the index
    dtypes: tuple[Any, ...]  # arguments of `wire_dtypes.decode`, for each array
    name: Any  # of the index

    def to_frame(self, length: int, arrays: Sequence[Any]) -> pd.DataFrame:
        """Make a frame of the arrays, without a copy."""
        index: Any = pd.RangeIndex(length)
        blocks: list[tuple[Any, np.ndarray]] = []
        for array, places, wire_dtype in zip(arrays, self.places, self.dtypes, strict=True):
            values, dtype = wire_dtypes.decode(array, wire_dtype)
            if places == (_INDEX,):
                values = values[0] if values.ndim == 2 else values
                index = pd.Index(values, dtype=dtype, name=self.name, copy=False)
            else:
                blocks.append((values, np.array(places)))
        return frame_of_blocks(blocks, index, self.labels.view())  # users may rename the view


@dataclass(frozen=True, slots=True)
class WireColumns:
    """Rows as one array for each dtype.

    Arrays are (k, n) of numpy, for all k columns of a dtype, or (n,) large strings of Arrow, which
    may be chunked if the rows are not sent or concatenated again. ``schema`` is a `WireSchema`, or
    a class with ``to_frame``, ``frame_of`` and ``concat``, as `dump_schema` returns it. Rows of
    equal schemas can be concatenated array by array.
    """

    length: int  # rows, n
    arrays: list[Any]
    schema: bytes = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(
            a.nbytes if not isinstance(a, np.ndarray) or a.dtype != object else int(sizeof(a))
            for a in self.arrays
        )

    def slice(self, start: int, stop: int) -> WireColumns:
        """Return rows ``start`` to ``stop``, without a copy."""
        arrays = [
            a[:, start:stop] if isinstance(a, np.ndarray) else a[start:stop] for a in self.arrays
        ]
        return WireColumns(stop - start, arrays, self.schema)

    def take(self, order: np.ndarray) -> WireColumns:
        """Return the rows at some positions."""
        rows = pa.array(order) if any(isinstance(a, pa.Array) for a in self.arrays) else None
        arrays = [
            pc.take(a, rows, boundscheck=False) if isinstance(a, pa.Array) else a.take(order, 1)
            for a in self.arrays
        ]
        return WireColumns(len(order), arrays, self.schema)

    def digested(self) -> Iterator[Any]:
        """Implement `dask_exo.partitions.digest.Digestible`."""
        yield self.schema
        yield from self.arrays

    def joins(self, pieces: int) -> bool:  # noqa: ARG002
        """Return whether the pieces of many such rows are joined for all their readers at once."""
        return True

    def to_frame(self) -> Any:
        """Return the rows as a frame, on the host without a copy."""
        return load_schema(self.schema).to_frame(self.length, self.arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = [_dump_strings(a) if isinstance(a, pa.Array) else a for a in self.arrays]
        return _load_columns, (self.length, arrays, self.schema)


@dataclass(frozen=True, slots=True)
class WireFrame:
    """Rows as a pandas frame, for dtypes without a wire format."""

    rows: Any

    @property
    def length(self) -> int:
        """Number of rows, n."""
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Estimated bytes of the rows."""
        return int(sizeof(self.rows))

    def slice(self, start: int, stop: int) -> WireFrame:
        """Return rows ``start`` to ``stop``, without a copy."""
        return WireFrame(self.rows.iloc[start:stop])

    def digested(self) -> Iterator[Any]:
        """Implement `dask_exo.partitions.digest.Digestible`."""
        yield self.rows

    def to_frame(self) -> Any:
        """Return the frame."""
        return self.rows


@dataclass(frozen=True, slots=True)
class WireTable:
    """Rows as an Arrow table in host memory, for a module with ``DataFrame.from_arrow``.

    Columns are called "0", "1", ..., and then the levels of the index: any label comes back.
    """

    table: pa.Table
    library: str
    columns: pd.Index
    names: tuple[Any, ...]  # of the levels of the index; none if it is dropped

    @property
    def length(self) -> int:
        """Number of rows, n."""
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.table.nbytes)

    def slice(self, start: int, stop: int) -> Self:
        """Return rows ``start`` to ``stop``, without a copy."""
        return replace(self, table=self.table.slice(start, stop - start))

    def to_frame(self) -> Any:
        """Return the rows as a frame of the library."""
        frame = importlib.import_module(self.library).DataFrame.from_arrow(self.table)
        if self.names:
            levels = [str(len(self.columns) + i) for i in range(len(self.names))]
            frame = frame.set_index(levels if len(levels) > 1 else levels[0])
            frame.index.names = list(self.names)
        frame.columns = self.columns
        return frame

    @classmethod
    def concat(cls, tables: Sequence[Self]) -> Self:
        """Concatenate rows, on the host."""
        nonempty = [part.table for part in tables if part.length] or [tables[0].table]
        table = pa.concat_tables(nonempty, promote_options="permissive")
        return replace(tables[0], table=table.combine_chunks())


WireRows = WireColumns | WireFrame | WireTable
"""Rows in the wire format."""


def to_wire(frame: Any, order: np.ndarray, *, ignore_index: bool = False) -> WireRows:
    """Take rows of a frame by position, and encode them for the object store."""
    if not _is_encodable(frame, ignore_index=ignore_index):
        rows = frame.take(order)
        return WireFrame(rows.reset_index(drop=True) if ignore_index else rows)
    groups = defaultdict[Any, list[int]](list)
    for place, dtype in enumerate(frame.dtypes):
        groups[dtype if isinstance(dtype, np.dtype) else place].append(place)
    columns = [[frame.iloc[:, i] for i in places] for places in groups.values()]
    places = [tuple(places) for places in groups.values()]
    if not ignore_index:
        columns.append([frame.index])
        places.append((_INDEX,))
    encoded = [wire_dtypes.encode(group, order) for group in columns]
    schema = WireSchema(
        frame.columns,
        tuple(places),
        tuple(dtype for _, dtype in encoded),
        None if ignore_index else frame.index.name,
    )
    return WireColumns(len(order), [array for array, _ in encoded], dump_schema(schema))


def _is_encodable(frame: Any, *, ignore_index: bool) -> bool:
    """Return whether a `WireSchema` restores the frame with all its labels and flags."""
    return (
        type(frame) is pd.DataFrame
        and all(map(wire_dtypes.is_supported, frame.dtypes))
        and (ignore_index or _is_plain_index(frame.index))
        and type(frame.columns) in (pd.Index, pd.RangeIndex)
        and is_plain_data([*frame.columns, frame.columns.name, frame.index.name])
        and not frame.attrs
        and frame.flags.allows_duplicate_labels
    )


def _is_plain_index(index: pd.Index) -> bool:
    return (
        type(index) in _PLAIN_INDEXES
        and index.dtype != object
        and wire_dtypes.is_supported(index.dtype)
    )


def same_schema(tables: Sequence[WireRows]) -> TypeGuard[Sequence[WireColumns]]:
    """Return whether all rows have the same columns, dtypes and names, as plain arrays."""
    first = tables[0]
    return isinstance(first, WireColumns) and all(
        isinstance(t, WireColumns) and t.schema == first.schema for t in tables
    )


def is_pandas(table: WireColumns) -> bool:
    """Return whether the rows become a pandas frame."""
    return isinstance(load_schema(table.schema), WireSchema)


def concat(tables: Sequence[WireRows], *, ignore_index: bool = False) -> WireRows:
    """Concatenate rows as Dask does: categories are united, empty frames skipped."""
    if same_schema(tables):
        return tables[0] if len(tables) == 1 else concat_same_schema(tables)
    if isinstance(tables[0], WireColumns) and not is_pandas(tables[0]):
        schema = load_schema(tables[0].schema)
        return schema.concat(tables, ignore_index=ignore_index)
    if isinstance(tables[0], WireTable):
        return WireTable.concat([t for t in tables if isinstance(t, WireTable)])
    frames = [t.to_frame() for t in tables]
    if len(frames) > 1:
        return WireFrame(concat_partitions(frames, ignore_index))
    return WireFrame(frames[0].reset_index(drop=True)) if ignore_index else tables[0]


def frame_of(tables: Sequence[WireRows], *, ignore_index: bool = False) -> Any:
    """Concatenate rows as `concat` does; return them as a frame."""
    if isinstance(tables[0], WireColumns) and not is_pandas(tables[0]) and same_schema(tables):
        return load_schema(tables[0].schema).frame_of(tables)
    return concat(tables, ignore_index=ignore_index).to_frame()


def concat_same_schema(tables: Sequence[WireColumns]) -> WireColumns:
    """Concatenate rows of the `same_schema`, array by array."""
    arrays = []
    for parts in zip(*(t.arrays for t in tables), strict=True):
        is_text = isinstance(parts[0], pa.Array)
        arrays.append(pa.concat_arrays(parts) if is_text else np.concatenate(parts, axis=1))
    return WireColumns(sum(t.length for t in tables), arrays, tables[0].schema)


def dump_schema(schema: Any) -> bytes:
    """Pickle a schema; equal schemas give equal bytes."""
    labels = schema.labels
    if type(labels) is pd.Index:
        schema = schema._replace(labels=(list(labels), labels.dtype, labels.name))
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.fast = True  # no memo: equal labels give equal bytes, be they one object or two
    pickler.dump(schema)
    return file.getvalue()


@lru_cache(maxsize=64)
def load_schema(data: bytes) -> Any:
    """Return the schema that `dump_schema` pickled."""
    schema = pickle.loads(data)  # noqa: S301  by `dump_schema`
    if isinstance(schema.labels, tuple):
        labels, dtype, name = schema.labels
        schema = schema._replace(labels=pd.Index(labels, dtype=dtype, name=name))
    return schema


def _dump_strings(text: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Offsets, bytes and validity of strings, without those that a slice leaves out."""
    offsets, data = string_buffers(text)
    if offsets[0]:
        offsets = offsets - offsets[0]
    return offsets, data, np.asarray(text.is_valid()) if text.null_count else None


def _load_strings(offsets: np.ndarray, data: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    bits = None if valid is None else pa.array(valid).buffers()[1]
    parts = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, parts)


def _load_columns(
    length: int, arrays: list[Any], schema: bytes, cls: type[Any] = WireColumns, *more: Any
) -> Any:
    arrays = [_load_strings(*a) if isinstance(a, tuple) else a for a in arrays]
    return cls(length, arrays, schema, *more)


def frame_of_blocks(
    blocks: Sequence[tuple[Any, np.ndarray]], index: Any, labels: Any
) -> pd.DataFrame:
    """Make a frame of (k, n) blocks, each for the k columns at some positions."""
    if PANDAS_3:
        from pandas.api.internals import create_dataframe_from_blocks

        return create_dataframe_from_blocks(list(blocks), index, labels)
    columns = {
        int(place): values[i] if values.ndim == 2 else values
        for values, places in blocks
        for i, place in enumerate(places)
    }
    frame = pd.DataFrame(dict(sorted(columns.items())), index=index, copy=False)
    frame.columns = labels
    return frame
