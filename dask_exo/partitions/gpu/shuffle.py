"""Shuffle kernels of GPU frames.

Rows are hashed, sorted by reducer and gathered on the GPU, and copied to the host once, as
`WireColumns`. Their schema is a `Layout`, which restores a GPU frame. While there is room, the
gathered rows also stay on the GPU: a reducer that reaches it does not copy them from the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.dask_adapter import concat_partitions
from dask_exo.partitions import protocol
from dask_exo.partitions.gpu import arrays, memory
from dask_exo.partitions.gpu.resident import LEAST, Resident, Residents
from dask_exo.partitions.gpu_frames import interop, sort_keys
from dask_exo.partitions.gpu_frames.column import TEXT, Column
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex, numbered
from dask_exo.partitions.gpu_frames.interop import encode, look_up
from dask_exo.partitions.kernels.hash_partition import combine
from dask_exo.partitions.kernels.sort_keys import SortKey, pack
from dask_exo.partitions.protocol import JOIN_PARTITION_COLUMN, PARTITION_COLUMN
from dask_exo.partitions.wire_format import WireColumns, dump_schema, load_schema

partition_column = protocol.partition_column


class PackedFrame(NamedTuple):
    """GPU frame as one buffer in host memory.

    Attributes
    ----------
    buffer : (b,) bytes
    places : tuple of Place
        Positions of the values of all columns, and then of their masks.
    columns : tuple of Column
        (c,) columns of the frame and then of the index, without rows.
    masked : tuple of int
        Numbers of the columns that have a mask.
    labels : Index
        (c,) labels of the columns.
    rows : tuple
        Names of the levels of the index, and its range if it is one.
    module : str
        Array module of the frame: numpy or cupy.
    resident : Resident, optional
        Name of the same buffer on the GPU of the process that made it.
    """

    buffer: np.ndarray
    places: tuple[memory.Place, ...]
    columns: tuple[Column, ...]
    masked: tuple[int, ...]
    labels: pd.Index
    rows: tuple[Any, ...]
    module: str
    resident: Resident | None = None

    def frame(self, module: str) -> DeviceFrame:
        """Restore the frame on a GPU, or on the host as arrays of numpy."""
        buffer: Any = self.buffer
        if module == self.module:
            buffer = memory.residents(module).get(self.resident)
            if buffer is None:
                buffer = memory.to_device(self.buffer, arrays.module(module))
        return self.of_buffer(buffer, module)

    def of_buffer(self, buffer: Any, module: str) -> DeviceFrame:
        """Restore the frame from a copy of the buffer, whose memory it uses."""
        values = memory.unpack(buffer, self.places)
        masks = dict(zip(self.masked, values[len(self.columns) :], strict=True))
        columns = [
            replace(column, values=values[i], valid=masks.get(i))
            for i, column in enumerate(self.columns)
        ]
        count, (names, numbers) = len(self.labels), self.rows
        levels = None if numbers is not None else columns[count:]
        index = DeviceIndex.of(levels, names, numbers, module)
        return DeviceFrame.of(columns[:count], self.labels, index)


def start_copy(
    frame: DeviceFrame, *, stay: bool = False, pinned: bool = False
) -> Callable[[], PackedFrame]:
    """Start to copy a frame to the host; return a function that waits for the copy.

    With ``stay`` a copy stays on the GPU, for later tasks of this process. One of a frame on the
    host is ``pinned`` if that is asked for.
    """
    levels, names, numbers, module = frame.index.parts
    columns = [*frame.arrays, *(levels if numbers is None and levels else ())]
    masked = tuple(i for i, column in enumerate(columns) if column.valid is not None)
    values = [column.values for column in columns] + [columns[i].valid for i in masked]
    buffer, name = memory.pack_on_gpu(values) if stay else (None, None)
    if buffer is None:
        wait, places = memory.pack(values, pinned=pinned)
    else:
        wait, places = memory.to_host(buffer), memory.places_of(values)[0]
    no_values = np.empty(0, np.int8)
    empty = tuple(replace(column, values=no_values, valid=None) for column in columns)
    rows = names, numbers
    return lambda: PackedFrame(wait(), places, empty, masked, frame.labels, rows, module, name)


def start_to_gpu(frame: pd.DataFrame, module: str) -> Callable[[], DeviceFrame]:
    """Start to copy a frame of pandas to the GPU; return a function that must be called."""
    on_host = DeviceFrame.from_pandas(frame, arrays.HOST)
    packed = start_copy(on_host, pinned=True)()
    wait = memory.start_to_device(packed.buffer, arrays.module(module))
    return lambda: packed.of_buffer(wait(), module)


class Layout(NamedTuple):
    """Schema of a GPU frame in the wire format.

    Attributes
    ----------
    labels : Index
        (c,) labels of the columns.
    places : tuple
        For each array its columns: numbers of those of the frame and then of the index; ``~i``
        is the mask of column i.
    dtypes : tuple
        Of all columns.
    names : tuple
        Names of the levels of the index; empty for a range index.
    module : str
        Array module of the frame: numpy or cupy.
    """

    labels: Any
    places: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    names: tuple[Any, ...]
    module: str

    def to_frame(self, length: int, blocks: list[Any]) -> DeviceFrame:
        """Copy arrays to the GPU, and make a frame of them."""
        return self.frame_of([WireColumns(length, blocks, b"")])

    def frame_of(self, tables: Sequence[WireColumns]) -> DeviceFrame:
        """Make a frame of the rows of all tables; those on its GPU are not copied from the host."""
        xp = arrays.module(self.module)
        values: dict[int, Any] = {}
        columns_by_number: dict[int, Column] = {}
        for i, (block, places) in enumerate(zip(tables[0].arrays, self.places, strict=True)):
            if isinstance(block, pa.Array):
                text = pa.concat_arrays([table.arrays[i] for table in tables])
                columns_by_number[places[0]] = encode(text, self.dtypes[places[0]], xp)
            else:
                values.update(zip(places, self._concat_on_gpu(tables, i), strict=True))
        for i, dtype in enumerate(self.dtypes):
            if i not in columns_by_number:
                columns_by_number[i] = Column(values[i], dtype, values.get(~i))
        columns = [columns_by_number[i] for i in range(len(self.dtypes))]
        count = len(self.labels)
        index = numbered(sum(table.length for table in tables), self.module)
        if self.names:
            index = DeviceIndex.of(columns[count:], self.names)
        return DeviceFrame.of(columns[:count], self.labels, index)

    def _concat_on_gpu(self, tables: Sequence[WireColumns], i: int) -> Any:
        """Concatenate array ``i`` of all tables; neighbours on the host are copied at once."""
        xp, residents = arrays.module(self.module), memory.residents(self.module)
        near = [isinstance(t, ResidentColumns) and residents.reaches(t.names[i]) for t in tables]
        if not any(near):
            return memory.to_device(_joined(tables, i), xp)
        first, start = tables[0].arrays[i], 0
        whole = xp.empty((len(first), sum(table.length for table in tables)), first.dtype)
        for is_near, pairs in groupby(zip(near, tables, strict=True), itemgetter(0)):
            run = [table for _, table in pairs]
            for part in [[table] for table in run] if is_near else [run]:
                stop = start + sum(table.length for table in part)
                out = whole[:, start:stop]
                one = part[0] if is_near else None
                if not (isinstance(one, ResidentColumns) and one.copy_to(out, i, residents)):
                    out[...] = memory.to_device(_joined(part, i), xp)
                start = stop
        return whole

    def concat(self, tables: Sequence[WireColumns], *, ignore_index: bool) -> WireColumns:
        """Concatenate rows whose layouts differ, for instance in their dtypes.

        Rows stay on the host: a node that merges blocks need not have a GPU.
        """
        layouts = [load_schema(table.schema)._replace(module=arrays.HOST) for table in tables]
        frames = [
            layout.to_frame(table.length, table.arrays)
            for layout, table in zip(layouts, tables, strict=True)
        ]
        frame = concat_partitions(frames, ignore_index)
        order = np.arange(len(frame))
        return to_wire(frame, order, ignore_index=ignore_index, module=self.module)


def _joined(tables: Sequence[WireColumns], i: int) -> np.ndarray:
    on_host = [table.arrays[i] for table in tables]
    return np.concatenate(on_host, axis=1) if len(on_host) > 1 else on_host[0]


@dataclass(frozen=True, slots=True)
class ResidentColumns(WireColumns):
    """Rows that are also on the GPU of the process that encoded them."""

    names: tuple[Resident | None, ...]  # of each array, if it is on the GPU
    first: int = 0  # place of the first row in these arrays

    def joins(self, pieces: int) -> bool:
        """Return whether pieces are so small that copies of each would take longer."""
        return self.nbytes < pieces * LEAST

    def copy_to(self, out: Any, i: int, residents: Residents) -> bool:
        """Copy array ``i`` from the GPU that has it; return False if it is not there any more."""
        name = self.names[i]
        return name is not None and residents.copy(name, out, self.first, self.first + self.length)

    def slice(self, start: int, stop: int) -> ResidentColumns:
        """Return rows ``start`` to ``stop``, without a copy."""
        rows, first = WireColumns.slice(self, start, stop), self.first + start
        return ResidentColumns(rows.length, rows.arrays, self.schema, self.names, first)

    def __reduce__(self) -> tuple[Any, ...]:
        load, columns = WireColumns.__reduce__(self)
        return load, (*columns, ResidentColumns, self.names, self.first)


def to_wire(
    frame: DeviceFrame, order: Any, *, ignore_index: bool = False, module: str | None = None
) -> WireColumns:
    """Copy rows of a frame in a new order of positions on the GPU to host memory.

    ``module`` is the array module of the restored frame, by default that of the frame.
    """
    index = [] if ignore_index else list(frame.index.levels)
    columns = [*frame.arrays, *index]
    blocks: list[Any] = []
    names: list[Resident | None] = []  # of the blocks that stay on the GPU
    places: list[tuple[int, ...]] = []
    kinds = defaultdict[Any, list[tuple[int, Any]]](list)
    for i, column in enumerate(columns):
        if column.kind == TEXT:
            blocks.append(interop.to_arrow(column.take(order)))
            names.append(None)
            places.append((i,))
            continue
        kinds[column.values.dtype.str].append((i, column.values))
        if column.nullable:  # also without nulls, so that all parts have the same layout
            kinds["mask"].append((~i, ~column.nulls()))
    for members in kinds.values():
        first, shape = members[0][1], (len(members), len(order))
        xp, dtype = arrays.of(first), first.dtype
        stays = memory.allocate_resident(shape, dtype, first) if module is None else None
        block, stay = stays or (xp.empty(shape, dtype), None)
        for row, (_, values) in zip(block, members, strict=True):
            xp.take(values, order, out=row)
        blocks.append(memory.to_host(block))
        names.append(stay and stay())
        places.append(tuple(i for i, _ in members))
    levels = () if ignore_index else frame.index.names
    dtypes = tuple(column.dtype for column in columns)
    layout = Layout(frame.labels, tuple(places), dtypes, levels, module or frame.module)
    rows = [block() if callable(block) else block for block in blocks]
    if not any(names):
        return WireColumns(len(order), rows, dump_schema(layout))
    return ResidentColumns(len(order), rows, dump_schema(layout), tuple(names))


def partition_ids(frame: DeviceFrame, column: Any, npartitions: int) -> Any:
    """Implement `dask_exo.partitions.protocol.partition_ids`, with one kernel for each column."""
    columns = [column] if isinstance(column, str) else list(column)
    if columns and columns[0] in (PARTITION_COLUMN, JOIN_PARTITION_COLUMN):
        return protocol.partition_ids(frame, column, npartitions)
    hashed = [hash_column(each) for each in (frame[columns] if columns else frame).arrays]
    ids = _spread(np.uint64(npartitions), *hashed)
    return ids.astype(np.min_scalar_type(max(npartitions - 1, 0)))


@arrays.fused
def _spread(npartitions: Any, *hashed: Any) -> Any:
    return combine(hashed) % npartitions


def counting_argsort(ids: Any, count: int) -> tuple[Any, np.ndarray]:
    """Implement `dask_exo.partitions.kernels.argsort.counting_argsort`, on the GPU."""
    xp = arrays.of(ids)
    order = ids.argsort(kind="stable")
    bounds = xp.searchsorted(ids[order], xp.arange(count + 1))
    return order, arrays.host(bounds).astype(np.int64)


def checksum(frame: DeviceFrame, columns: Any) -> tuple[tuple[str, ...], int]:
    """Implement `dask_exo.partitions.protocol.checksum`, over columns of plain numbers."""
    total = 0
    dtypes = []
    for name in columns:
        if name not in frame.columns:
            continue
        column = frame[name].column
        dtypes.append(str(column.dtype))
        if column.kind == TEXT or column.nullable:
            continue
        words = column.values.view(f"u{column.values.dtype.itemsize}").astype(np.uint64)
        total += int(words.sum(dtype=np.uint64)) + 3 * int((words * words).sum(dtype=np.uint64))
    return tuple(dtypes), total % 2**64


def recode(frame: DeviceFrame, _: Sequence[SortKey]) -> DeviceFrame:
    """Return the frame: no column of a GPU is categorical."""
    return frame


def sort(frame: DeviceFrame, keys: Sequence[SortKey]) -> DeviceFrame:
    """Sort a frame by the keys; return the frame itself if it is sorted."""
    encoded = []
    for key in keys:
        column = frame.index.column if key.column is None else frame[key.column].column
        order = {"descending": not key.ascending, "nulls_first": key.nulls_first}
        encoded.append(sort_keys.encode(column, **order))
    codes = pack(encoded)
    if bool((codes[1:] >= codes[:-1]).all()):
        return frame
    return frame.take_rows(arrays.argsort(codes))


def array(frame: DeviceFrame, values: np.ndarray) -> Any:
    """Copy an array of the host to the GPU."""
    return arrays.module(frame.module).asarray(values)


_NULL = np.uint64(np.iinfo(np.uint64).max)
_MASK = 2**64 - 1


def hash_column(column: Column) -> Any:
    """Compute (n,) uint64 hashes, as `pandas.util.hash_array`."""
    if column.kind == TEXT:
        words = pd.util.hash_array(column.words.array, categorize=False)
        return look_up(column, np.append(words.astype(np.uint64), _NULL))
    values = column.values
    if column.kind == "f":  # all NaN have one hash, and so have both zeros
        values = column.xp.where(column.xp.isnan(values), values.dtype.type(np.nan), values + 0)
    if column.kind != "b":
        values = values.view(f"u{values.dtype.itemsize}")
    hashes = _mix_bits(values)
    if column.nullable and column.valid is not None:
        return column.xp.where(column.valid, hashes, np.uint64(hash(pd.NA) & _MASK))
    return hashes


@arrays.fused
def _mix_bits(words: Any) -> Any:
    words = words.astype(np.uint64)
    words = words ^ (words >> np.uint64(30))
    words = words * np.uint64(0xBF58476D1CE4E5B9)
    words = words ^ (words >> np.uint64(27))
    words = words * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
