"""Rows on their way: the columns of a frame as plain arrays.

A reducer reads a few rows of each of hundreds of objects. To unpickle, to slice and to concatenate
frames of pandas takes a fifth of a millisecond for each of them, however few its rows are. With
arrays it is a fifth of that. So rows travel as `Columns` where their dtypes are numpy's or strings
of Arrow, and as a `Frame` otherwise.
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.sizeof import sizeof

from dask_exo.dask_adapter import concat_partitions
from dask_exo.partitions.arrow_block import ArrowRows
from dask_exo.partitions.fixed_width import Fixed, is_fixed
from dask_exo.partitions.kernels.prefetch import warm
from dask_exo.partitions.kernels.string_sort import buffers, is_text, large
from dask_exo.partitions.ownership import PANDAS_3, plain

_INDEX = -1
_COUNTED = 2**31  # bytes that offsets of 32 bits cannot count
_INDEXES = frozenset({pd.Index, pd.RangeIndex, pd.DatetimeIndex, pd.TimedeltaIndex})


class Schema(NamedTuple):
    """What is needed besides the arrays to make a frame.

    Attributes
    ----------
    labels : Index
        (c,) names of the columns.
    places : tuple
        For each array the positions of its columns among ``labels``; -1 is the index.
    dtypes : tuple
        For each array the dtype of its columns, or their `Fixed`.
    name : object
        Of the index.
    """

    labels: Any
    places: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    name: Any

    def frame(self, length: int, arrays: Sequence[Any]) -> pd.DataFrame:
        """A frame of the arrays, without a copy."""
        index: Any = pd.RangeIndex(length)
        blocks: list[tuple[Any, np.ndarray]] = []
        for array, places, dtype in zip(arrays, self.places, self.dtypes, strict=True):
            kind = dtype.dtype if isinstance(dtype, Fixed) else dtype
            values = _values(array, dtype)
            if places == (_INDEX,):
                values = values[0] if values.ndim == 2 else values
                index = pd.Index(values, dtype=kind, name=self.name, copy=False)
            else:
                blocks.append((values, np.array(places)))
        return _frame(blocks, index, self.labels.view())  # a user may name it


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of numbers, times, strings and objects.

    Attributes
    ----------
    length : int
        Number of rows, n.
    arrays : list
        (k, n) arrays of numpy, one for all k columns of a dtype; (n,) large strings of Arrow, which
        may be in chunks where they are only made a frame of.
    schema : bytes
        A pickled `Schema`, or another that has its ``frame``: the same for frames whose rows can
        be put below each other.
    """

    length: int
    arrays: list[Any]
    schema: bytes = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(
            a.nbytes if not isinstance(a, np.ndarray) or a.dtype != object else int(sizeof(a))
            for a in self.arrays
        )

    def part(self, start: int, stop: int) -> Columns:
        """Rows ``start`` to ``stop``, without a copy."""
        return Columns(stop - start, [_part(a, start, stop) for a in self.arrays], self.schema)

    def take(self, order: np.ndarray) -> Columns:
        """Rows in another order."""
        rows = pa.array(order) if any(isinstance(a, pa.Array) for a in self.arrays) else None
        taken = [
            pc.take(a, rows, boundscheck=False) if isinstance(a, pa.Array) else a.take(order, 1)
            for a in self.arrays
        ]
        return Columns(len(order), taken, self.schema)

    def digested(self) -> Iterator[Any]:
        """See `dask_exo.partitions.digest.Composed`."""
        yield self.schema
        yield from self.arrays

    def frame(self) -> Any:
        """The rows as a frame, on the host without a copy."""
        return schema_of(self.schema).frame(self.length, self.arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        sent = [_sent(a) if isinstance(a, pa.Array) else a for a in self.arrays]
        return _received, (self.length, sent, self.schema)


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows of a frame as it is.

    Attributes
    ----------
    rows : DataFrame
    """

    rows: Any

    @property
    def length(self) -> int:
        """Number of rows, n."""
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, about."""
        return int(sizeof(self.rows))

    def part(self, start: int, stop: int) -> Frame:
        """Rows ``start`` to ``stop``, without a copy."""
        return Frame(self.rows.iloc[start:stop])

    def digested(self) -> Iterator[Any]:
        """See `dask_exo.partitions.digest.Composed`."""
        yield self.rows

    def frame(self) -> Any:
        """The frame."""
        return self.rows


Travelling = Columns | Frame | ArrowRows
"""Rows on their way."""


def travelling(frame: Any, order: np.ndarray, *, ignore_index: bool = False) -> Travelling:
    """Rows of a frame in another order, as they are sent best.

    Parameters
    ----------
    frame : DataFrame
        (n,) rows.
    order : (n,)
        Positions of rows.
    ignore_index : bool
        Whether the index need not be sent.
    """
    kinds = defaultdict[Any, list[int]](list)
    for place, dtype in enumerate(frame.dtypes):
        kinds[dtype if isinstance(dtype, np.dtype) else place].append(place)
    dtypes = [frame.dtypes.iloc[places[0]] for places in kinds.values()]
    columns = [[frame.iloc[:, i] for i in places] for places in kinds.values()]
    if not ignore_index:
        dtypes.append(frame.index.dtype)
        columns.append([frame.index])
        kinds[_INDEX] = [_INDEX]
    if not (
        type(frame) is pd.DataFrame
        and all(isinstance(one, np.dtype) or _is_strings(one) or is_fixed(one) for one in dtypes)
        and (ignore_index or (type(frame.index) in _INDEXES and frame.index.dtype != object))
        and type(frame.columns) in (pd.Index, pd.RangeIndex)
        and plain([*frame.columns, frame.columns.name, frame.index.name])
        and not frame.attrs
        and frame.flags.allows_duplicate_labels
    ):
        rows = frame.take(order)
        return Frame(rows.reset_index(drop=True) if ignore_index else rows)
    arrays = []
    for i, some in enumerate(columns):
        fixed = Fixed.of(some[0])
        if fixed is None:
            arrays.append(_taken(some, order))
        else:
            dtypes[i], raw = fixed
            arrays.append(_gathered([raw], order))
    schema = Schema(
        frame.columns,
        tuple(map(tuple, kinds.values())),
        tuple(dtypes),
        None if ignore_index else frame.index.name,
    )
    return Columns(len(order), arrays, pickled(schema))


def alike(tables: Sequence[Travelling]) -> TypeGuard[Sequence[Columns]]:
    """Whether any of these below each other give the same columns, dtypes and names."""
    first = tables[0]
    return isinstance(first, Columns) and all(
        isinstance(t, Columns) and t.schema == first.schema for t in tables
    )


def on_host(table: Columns) -> bool:
    """Whether its frame is one of pandas."""
    return isinstance(schema_of(table.schema), Schema)


def below(tables: Sequence[Travelling], *, ignore_index: bool = False) -> Travelling:
    """Put rows below each other, as Dask does it (categories united, empty frames skipped)."""
    if alike(tables):
        return tables[0] if len(tables) == 1 else joined(tables)
    if isinstance(tables[0], Columns) and not on_host(tables[0]):
        there: Travelling = schema_of(tables[0].schema).below(tables, ignore_index=ignore_index)
        return there
    if isinstance(tables[0], ArrowRows):
        return ArrowRows.below([t for t in tables if isinstance(t, ArrowRows)])
    frames = [t.frame() for t in tables]
    if len(frames) > 1:
        return Frame(concat_partitions(frames, ignore_index))
    return Frame(frames[0].reset_index(drop=True)) if ignore_index else tables[0]


def joined(tables: Sequence[Columns]) -> Columns:
    """Put rows below each other that are `alike`."""
    together = []
    for pieces in zip(*(t.arrays for t in tables), strict=True):
        text = isinstance(pieces[0], pa.Array)
        together.append(pa.concat_arrays(pieces) if text else np.concatenate(pieces, axis=1))
    return Columns(sum(t.length for t in tables), together, tables[0].schema)


def _is_strings(dtype: Any) -> bool:
    if isinstance(dtype, pd.ArrowDtype):
        kind = dtype.pyarrow_dtype
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    return is_text(dtype)


def _values(array: Any, dtype: Any) -> Any:
    """An array as the values of columns of pandas."""
    if isinstance(dtype, Fixed):
        return dtype.values(array[0])
    if isinstance(array, np.ndarray):
        return array
    if isinstance(dtype, pd.ArrowDtype) and pa.types.is_string(dtype.pyarrow_dtype):
        array = pa.chunked_array(list(_pieces(array)))
    return dtype.__from_arrow__(array)


def _pieces(texts: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """The same strings in pieces that offsets of 32 bits can count."""
    if isinstance(texts, pa.ChunkedArray):
        for chunk in texts.chunks or [pa.array([], texts.type)]:
            yield from _pieces(chunk)
    elif len(texts) > 1 and len(buffers(texts)[1]) >= _COUNTED:
        middle = len(texts) // 2
        yield from _pieces(texts[:middle])
        yield from _pieces(texts[middle:])
    else:
        yield texts


def _part(array: Any, start: int, stop: int) -> Any:
    return array[:, start:stop] if isinstance(array, np.ndarray) else array[start:stop]


def _taken(columns: Sequence[Any], order: np.ndarray) -> Any:
    """Some rows of columns of one dtype, as one array."""
    if _is_strings(columns[0].dtype):
        texts = large(pa.array(columns[0].array))
        warm(texts)
        return pc.take(texts, pa.array(order), boundscheck=False)
    return _gathered([column.to_numpy() for column in columns], order)


def _gathered(columns: Sequence[np.ndarray], order: np.ndarray) -> np.ndarray:
    taken = np.empty((len(columns), len(order)), columns[0].dtype)
    for row, values in zip(taken, columns, strict=True):
        warm(values)
        np.take(values, order, out=row, mode="clip")
    return taken


def _sent(text: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Offsets, bytes and validity of strings, without what a slice leaves out."""
    offsets, data = buffers(text)
    if offsets[0]:
        offsets = offsets - offsets[0]
    return offsets, data, np.asarray(text.is_valid()) if text.null_count else None


def _received(length: int, sent: list[Any], schema: bytes) -> Columns:
    return Columns(length, [_text(*a) if isinstance(a, tuple) else a for a in sent], schema)


def _text(offsets: np.ndarray, data: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    bits = None if valid is None else pa.array(valid).buffers()[1]
    parts = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, parts)


def pickled(schema: Any) -> bytes:
    """A schema as bytes, which are the same for equal ones."""
    labels = schema.labels
    if type(labels) is pd.Index:
        schema = schema._replace(labels=(list(labels), labels.dtype, labels.name))
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.fast = True  # equal names give equal bytes, be they one object or two
    pickler.dump(schema)
    return file.getvalue()


@lru_cache(maxsize=64)
def schema_of(data: bytes) -> Any:
    """What `pickled` was given."""
    schema = pickle.loads(data)  # noqa: S301  by `pickled`
    if isinstance(schema.labels, tuple):
        labels, dtype, name = schema.labels
        schema = schema._replace(labels=pd.Index(labels, dtype=dtype, name=name))
    return schema


def _frame(blocks: Sequence[tuple[Any, np.ndarray]], index: Any, labels: Any) -> pd.DataFrame:
    """A frame of (k, n) blocks, each for the k columns at some places."""
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
