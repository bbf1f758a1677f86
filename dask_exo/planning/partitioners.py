"""Partitioners: how a map divides a partition into blocks, and a reducer assembles them.

A shuffle algorithm moves blocks without looking into them. A `Partitioner` makes and reads them:
`RowPartitioner` for frames, `ChunkPartitioner` for arrays, `ItemPartitioner` for bags. A
`ShuffleNode` is a whole shuffle as one node of a graph.
"""

from __future__ import annotations

import abc
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
from dask.tokenize import tokenize
from tlz import groupby, partition_all

from dask_exo.dask_adapter import Task, concatenate3
from dask_exo.errors import IntegrityError
from dask_exo.partitions import protocol
from dask_exo.partitions.kernels.kway_merge import merge_sorted_tables
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.wire_format import WireRows, frame_of, is_pandas, same_schema
from dask_exo.shuffle.blocks import Blocks, HeterogeneousBlocks, Packed, Pickled, pack, pickled
from dask_exo.shuffle.choose import LARGEST_BATCH
from dask_exo.shuffle.key_filters import JoinSide
from dask_exo.shuffle.spec import Tally, tally


@dataclass(frozen=True, eq=False, kw_only=True)
class Partitioner(abc.ABC):
    """Divides inputs into blocks, and assembles outputs from them."""

    count: int  # outputs before any selection
    selected: tuple[int, ...] | None = None  # requested outputs, each once; None means all
    checked: bool = True  # add up key hashes, and not only counts
    limit: int | None = None  # bytes above which an output is assembled a chunk at a time
    join: JoinSide | None = None  # if a join reads the outputs, and one side may filter the other
    keep: Callable[[Any], np.ndarray] | None = None  # (n,) which rows of a frame are sent

    @property
    def numbers(self) -> Sequence[int]:
        """(R,) number of each output among all."""
        return range(self.count) if self.selected is None else self.selected

    def select(self, used: Sequence[int]) -> Self:
        """Return a partitioner with only some of the outputs."""
        return replace(self, selected=tuple(self.numbers[j] for j in used))

    @abc.abstractmethod
    def cut(self, parts: Sequence[Any], owned: Sequence[range]) -> tuple[Sequence[Blocks], Tally]:
        """Divide consecutive inputs; return the packed blocks for each of W nodes, and their tally.

        ``owned`` has the outputs of each node, as positions in `numbers`.
        """

    @abc.abstractmethod
    def assemble(self, packed: Sequence[Any], slot: int, column: int) -> tuple[Any, Tally]:
        """Assemble the output at position ``column`` in `numbers`; return it and its tally.

        Block ``slot`` of each of ``packed``, in the order of the inputs, belongs to this output.
        """

    def __call__(self, *parts: Any) -> list[Any]:
        """Shuffle in one process: (M,) inputs in, (R,) outputs out."""
        columns = range(len(self.numbers))
        (blocks,), _ = self.cut(parts, [columns])
        return [self.assemble([blocks], j, j)[0] for j in columns]


class ShuffleNode(Task):
    """The node of one whole shuffle: M inputs, a list of R outputs.

    The driver loop runs it as an Exoshuffle. Any other scheduler can call it as a plain task with
    the same result. Each output is read by exactly one task, which calls `take`.
    """

    __slots__ = ()

    @property
    def partitioner(self) -> Partitioner:
        """Divides the inputs."""
        assert isinstance(self.func, Partitioner)
        return self.func


def take(outputs: list[Any], j: int) -> Any:
    """Return output ``j`` of a `ShuffleNode`."""
    return outputs[j]


CHUNKS = 8  # at least, of an output that is merged by chunks; two more are in memory meanwhile


@dataclass(frozen=True, eq=False, kw_only=True)
class RowPartitioner(Partitioner):
    """Partitioner of rows by a column of partition numbers, or by a hash.

    Sorted runs of more than ``limit`` bytes are merged a chunk at a time, if their columns are
    plain arrays; smaller ones are concatenated, which is faster.
    """

    column: Any  # label of the partition numbers, or labels to hash
    keys: tuple[Any, ...] = ()  # labels that the numbers come from, for the integrity check
    ignore_index: bool = False  # outputs get a new index
    drop: bool = False  # outputs lack the column of partition numbers
    runs: tuple[SortKey, ...] | None = None  # keys by which the rows of each input are sorted

    def cut(self, parts: Sequence[Any], owned: Sequence[range]) -> tuple[list[Packed], Tally]:
        """See `Partitioner.cut`."""
        frame = protocol.concat(parts)
        kernels = protocol.kernels(frame)
        ids = kernels.partition_ids(frame, self.column, self.count)
        partition_column = kernels.partition_column(frame, self.column, ids)
        if partition_column is not None:
            frame = frame.drop(columns=protocol.PARTITION_COLUMN)
        elif self.drop:
            frame = frame.drop(columns=self.column)
        outside = len(self.numbers)  # for rows that are left out
        if self.selected is not None:
            places = np.full(self.count, outside, np.min_scalar_type(outside))
            places[list(self.selected)] = np.arange(outside)
            ids = kernels.array(frame, places)[ids]
        if self.keep is not None:
            ids = np.where(self.keep(frame), ids.astype(np.min_scalar_type(outside)), outside)
        blocks = pack(frame, ids, owned, partition_column, ignore_index=self.ignore_index)
        counts = np.concatenate([np.diff(block.offsets) for block in blocks])
        if counts.sum() < len(frame):
            frame = frame[[key for key in self.keys if key in frame.columns]][ids < outside]
        return blocks, self._tally(frame, counts)

    def assemble(
        self, packed: Sequence[Packed | HeterogeneousBlocks], slot: int, column: int
    ) -> tuple[Any, Tally]:
        """See `Partitioner.assemble`."""
        frame = self._frame_of([p.part(slot) for p in packed])
        arrived = self._tally(frame, np.array([len(frame)]), column)
        partition_column = packed[0].partition_column
        if partition_column is not None and not self.drop:
            place, dtype = partition_column
            numbers = np.full(len(frame), self.numbers[column], dtype)
            frame = frame.copy(deep=False)
            frame.insert(place, protocol.PARTITION_COLUMN, numbers)
        return frame, arrived

    def _frame_of(self, tables: Sequence[WireRows]) -> Any:
        if self.runs and self.limit is not None:
            large = sum(table.nbytes for table in tables) > self.limit
            if large and same_schema(tables) and is_pandas(tables[0]):
                chunk = min(self.limit // CHUNKS, LARGEST_BATCH)
                return merge_sorted_tables(tables, self.runs, chunk).to_frame()
        return frame_of(tables, ignore_index=self.ignore_index)

    def _tally(self, frame: Any, counts: np.ndarray, first: int = 0) -> Tally:
        dtypes, keys = protocol.kernels(frame).checksum(frame, self.keys if self.checked else ())
        return tally(counts, first, dtypes=dtypes, keys=keys)


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemPartitioner(Partitioner):
    """Partitioner of items by a function of the user's groups.

    ``place(part, count) -> {number: items}`` returns the items of an input for each output.
    """

    place: Callable[[Iterable[Any], int], Mapping[int, Sequence[Any]]]

    def cut(
        self, parts: Sequence[Iterable[Any]], owned: Sequence[range]
    ) -> tuple[list[Pickled], Tally]:
        """See `Partitioner.cut`."""
        slots = {number: slot for slot, number in enumerate(self.numbers)}
        lists: list[list[Any]] = [[] for _ in slots]
        for part in parts:
            for number, items in self.place(part, self.count).items():
                if number in slots:
                    lists[slots[number]].extend(items)
        return pickled(lists, owned), tally(np.array([len(items) for items in lists]))

    def assemble(self, packed: Sequence[Pickled], slot: int, column: int) -> tuple[Any, Tally]:
        """See `Partitioner.assemble`."""
        items = [item for p in packed for item in p.block(slot)]
        return items, tally(np.array([len(items)]), column)


def by_hash(pairs: Iterable[tuple[int, Any]], count: int) -> dict[int, list[Any]]:
    """Place pairs of a hash and an item as ``Bag.groupby(shuffle="tasks")`` does.

    Examples
    --------
    >>> by_hash([(7, "a"), (5, "b"), (3, "c")], 4)
    {3: [(7, 'a'), (3, 'c')], 1: [(5, 'b')]}
    """
    outputs: dict[int, list[Any]] = defaultdict(list)
    for pair in pairs:
        outputs[int(pair[0] % count)].append(pair)
    return dict(outputs)


def by_group(
    items: Iterable[Any], count: int, *, grouper: Callable[[Any], Any], batch_size: int
) -> dict[int, list[Any]]:
    """Place items as ``Bag.groupby(shuffle="disk")`` does.

    ``batch_size`` items are grouped at a time. The first of equal keys among them, such as 1, 1.0
    and True, determines the output.
    """
    outputs: dict[int, list[Any]] = defaultdict(list)
    for batch in partition_all(batch_size, items):
        for key, group in groupby(grouper, batch).items():
            outputs[int(tokenize(key), 16) % count].extend(group)
    return dict(outputs)


Index = tuple[int, ...]
"""(ndim,) position in a grid."""


class Chunk(NamedTuple):
    """One input: a chunk, and its position in the grid of old chunks."""

    position: Index
    data: Any


class ChunkSlice(NamedTuple):
    """Along one axis: the slice ``region`` of an old chunk that becomes part of a new one."""

    chunk: int
    place: int  # among the slices of the new chunk
    region: slice


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkPartitioner(Partitioner):
    """Partitioner of the chunks of an array by another grid.

    ``slices`` has, for each axis, the slices that each old chunk along it is divided into; ``grid``
    the number of slices that each new chunk along it consists of.

    Examples
    --------
    >>> recipes = [[[(0, slice(0, 3))], [(0, slice(3, 4)), (1, slice(0, 2))]]]
    >>> halves = ChunkPartitioner.of(recipes, [(4, 2)], [(0,), (1,)])
    >>> halves(Chunk((0,), np.arange(4)), Chunk((1,), np.arange(4, 6)))
    [array([0, 1, 2]), array([3, 4, 5])]
    """

    slices: Sequence[Sequence[Sequence[ChunkSlice]]]
    grid: Sequence[Sequence[int]]

    @classmethod
    def of(
        cls,
        recipes: Sequence[Sequence[Sequence[tuple[int, slice]]]],
        old: Sequence[Sequence[float]],
        selected: Sequence[Index],
    ) -> ChunkPartitioner:
        """Follow Dask's recipes.

        These have, for each axis and each new chunk along it, old chunks and slices of them;
        ``old`` has the sizes of the old chunks. ``selected`` has the requested new chunks.
        """
        slices: list[list[list[ChunkSlice]]] = [[[] for _ in axis] for axis in old]
        for axis_slices, axis in zip(slices, recipes, strict=True):
            for chunk, recipe in enumerate(axis):
                for place, (source, region) in enumerate(recipe):
                    axis_slices[source].append(ChunkSlice(chunk, place, region))
        grid = [[len(recipe) for recipe in axis] for axis in recipes]
        shape = [len(axis) for axis in grid]
        numbers = tuple(int(np.ravel_multi_index(index, shape)) for index in selected)
        return cls(count=math.prod(shape), selected=numbers, slices=slices, grid=grid)

    def cut(self, parts: Sequence[Chunk], owned: Sequence[range]) -> tuple[list[Pickled], Tally]:
        """See `Partitioner.cut`."""
        shape = [len(axis) for axis in self.grid]
        slots = {number: slot for slot, number in enumerate(self.numbers)}
        lists: list[list[Any]] = [[] for _ in slots]
        counts = np.zeros(len(slots), np.int64)
        for index, data in parts:
            for crossing in product(*(axis[i] for axis, i in zip(self.slices, index, strict=True))):
                chunk, place, region = zip(*crossing, strict=True)
                slot = slots.get(int(np.ravel_multi_index(chunk, shape)))
                if slot is not None:
                    piece = _compact(data[region])
                    lists[slot].append((place, piece))
                    counts[slot] += piece.size
        return pickled(lists, owned), tally(counts)

    def assemble(self, packed: Sequence[Pickled], slot: int, column: int) -> tuple[Any, Tally]:
        """See `Partitioner.assemble`."""
        lengths = [len(axis) for axis in self.grid]
        position = tuple(map(int, np.unravel_index(self.numbers[column], lengths)))
        shape = tuple(axis[i] for axis, i in zip(self.grid, position, strict=True))
        blocks = [piece for p in packed for piece in p.block(slot)]
        if len(blocks) != math.prod(shape):
            raise IntegrityError(
                f"chunk {position} of an array needs {math.prod(shape)} blocks, and {len(blocks)} "
                f"arrived; no result is returned: compute again"
            )
        nested = np.empty(shape, dtype=object)
        for place, piece in blocks:
            nested[place] = piece
        size = sum(piece.size for _, piece in blocks)
        return concatenate3(nested.tolist()), tally(np.array([size]), column)


def _compact(piece: Any) -> Any:
    """Make elements contiguous, so that their bytes are copied only once."""
    if type(piece) is np.ndarray and not (piece.flags.c_contiguous or piece.flags.f_contiguous):
        return piece.copy()
    return piece
