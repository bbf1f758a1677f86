"""Packed blocks: blocks of one map for several reducers, in one object.

There are two kinds: rows of a frame with a table of offsets, and lists of values. Each list is
pickled by itself, so that a reducer unpickles only its own. A slot is the number of a reducer.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeVar

import cloudpickle
import numpy as np

from dask_exo.cluster.failpoints import reach
from dask_exo.partitions import protocol
from dask_exo.partitions.kernels import argsort
from dask_exo.partitions.wire_format import WireRows, concat, concat_same_schema, same_schema

B = TypeVar("B", bound="Blocks")


class Blocks(Protocol):
    """Blocks of neighbouring reducers in one object."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """Approximate bytes in the object store."""
        ...

    def block(self, slot: int) -> Any:
        """Return the block of reducer ``slot``."""
        ...

    @classmethod
    def join(cls: type[B], packed: Sequence[B], slots: range) -> Blocks:
        """Concatenate each of the blocks ``slots`` of all of ``packed``, in their order."""
        ...

    @classmethod
    def collect(cls: type[B], packed: Sequence[B], slots: Sequence[int]) -> B | None:  # noqa: ARG003
        """Join blocks ``slots``, in ascending order, of all of ``packed``, if that saves work.

        The result counts slots from 0.
        """
        return None


@dataclass(frozen=True, slots=True)
class Packed(Blocks):
    """Rows for neighbouring reducers, one block after the other.

    The column of partition numbers is not sent: it is the same number for all rows of a block.
    """

    rows: WireRows  # (n,) those of the first reducer first
    offsets: np.ndarray  # (k + 1,) start of each of the k blocks, and the end
    partition_column: tuple[int, Any] | None = None  # place and dtype
    first: int = 0  # number of the first reducer

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.rows.nbytes

    @property
    def sizes(self) -> np.ndarray:
        """Estimated bytes of each of the k blocks, as if all rows had the same size."""
        rows = np.diff(self.offsets)
        return rows * (self.nbytes / max(int(rows.sum()), 1))

    def digested(self) -> Iterator[Any]:
        """See `dask_exo.partitions.digest.Digestible`."""
        yield self.rows
        yield self.offsets

    def tables(self) -> list[WireRows]:
        """Return all rows, in tables of one schema."""
        return [self.rows]

    def part(self, slot: int) -> WireRows:
        """Return the rows of block ``slot``, without a copy."""
        place = slot - self.first
        return self.rows.slice(self.offsets[place], self.offsets[place + 1])

    def block(self, slot: int) -> Any:
        """Return the frame of block ``slot``, without a copy."""
        return self.part(slot).to_frame()

    @classmethod
    def join(
        cls, packed: Sequence[Packed | HeterogeneousBlocks], slots: range
    ) -> Packed | HeterogeneousBlocks:
        """See `Blocks`."""
        if len(slots) > 1:
            collected = cls.collect(packed, slots)
            if collected is not None:
                return replace(collected, first=slots.start)
            return HeterogeneousBlocks([cls._joined(packed, slot) for slot in slots], slots.start)
        return cls._joined(packed, slots.start)

    @classmethod
    def _joined(cls, packed: Sequence[Packed | HeterogeneousBlocks], slot: int) -> Packed:
        rows = concat([p.part(slot) for p in packed])
        return cls(rows, np.array([0, rows.length]), packed[0].partition_column, slot)

    @classmethod
    def collect(
        cls, packed: Sequence[Packed | HeterogeneousBlocks], slots: Sequence[int]
    ) -> Packed | None:
        """Blocks ``slots`` of each of ``packed`` joined, if the rows are alike.

        With many reducers that get a few rows of each map, joining them for one reducer at a time
        would take most of the time of a shuffle. Large pieces may be on a GPU, and are left there.
        """
        uniform = [p for p in packed if isinstance(p, cls)]
        rows = [p.rows for p in uniform]
        if len(rows) < len(packed) or not same_schema(rows):
            return None
        if not all(r.joins(len(p.offsets) - 1) for p, r in zip(uniform, rows, strict=True)):
            return None
        runs = [np.array(run) for run in np.split(slots, np.flatnonzero(np.diff(slots) > 1) + 1)]
        parts, ids = [], []
        for p, source in zip(uniform, rows, strict=True):
            for run in runs:
                local = run - p.first
                parts.append(source.slice(p.offsets[local[0]], p.offsets[local[-1] + 1]))
                ids.append(np.repeat(run, p.offsets[local + 1] - p.offsets[local]))
        slot_numbers = np.zeros(slots[-1] + 1, np.min_scalar_type(len(slots)))
        slot_numbers[list(slots)] = np.arange(len(slots))
        order, offsets = argsort.counting_argsort(slot_numbers[np.concatenate(ids)], len(slots))
        return cls(concat_same_schema(parts).take(order), offsets, packed[0].partition_column)


@dataclass(frozen=True, slots=True)
class HeterogeneousBlocks(Blocks):
    """Merged rows for neighbouring reducers that differ in their dtypes, or are large on a GPU.

    Each of the (k,) ``blocks`` has those of one reducer, beginning with number ``first``.
    """

    blocks: list[Packed]
    first: int = 0

    @property
    def partition_column(self) -> tuple[int, Any] | None:
        """See `Packed`."""
        return self.blocks[0].partition_column

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self.blocks)

    def digested(self) -> Iterator[Any]:
        """See `dask_exo.partitions.digest.Digestible`."""
        yield from self.blocks

    def tables(self) -> list[WireRows]:
        """Return all rows, in tables of one schema."""
        return [block.rows for block in self.blocks]

    def part(self, slot: int) -> WireRows:
        """Return the rows of block ``slot``, without a copy."""
        return self.blocks[slot - self.first].part(slot)

    def block(self, slot: int) -> Any:
        """Return the frame of block ``slot``, without a copy."""
        return self.part(slot).to_frame()

    @classmethod
    def join(
        cls, packed: Sequence[Packed | HeterogeneousBlocks], slots: range
    ) -> Packed | HeterogeneousBlocks:
        """See `Blocks`."""
        return Packed.join(packed, slots)


class Share(NamedTuple):
    """Share ``k`` of the rows in ``total`` blocks of a reducer, of as many shares as ``of`` says.

    All blocks count the same, so that a share reads few of them.

    Examples
    --------
    >>> [Share(k, 3, total=2).blocks for k in range(3)]
    [range(0, 1), range(0, 2), range(1, 2)]
    >>> [Share(1, 3, total=2).rows(block, 9) for block in range(2)]
    [(6, 9), (0, 3)]
    """

    k: int
    of: int
    total: int

    @property
    def blocks(self) -> range:
        """Indices of the blocks that have rows of this share."""
        return range(self.k * self.total // self.of, -(-(self.k + 1) * self.total // self.of))

    def rows(self, block: int, length: int) -> tuple[int, int]:
        """Return where its rows of a block begin and end."""
        start, stop = (
            min(max(edge * self.total - block * self.of, 0), self.of) * length // self.of
            for edge in (self.k, self.k + 1)
        )
        return start, stop

    def cut(self, packed: Sequence[Packed | HeterogeneousBlocks]) -> list[SharedBlocks]:
        """Return its rows of the objects that hold its blocks."""
        return [SharedBlocks(p, self, i) for i, p in zip(self.blocks, packed, strict=True)]


class SharedBlocks(NamedTuple):
    """Packed blocks of which only the rows of a share are read; ``number`` is that of the block."""

    packed: Packed | HeterogeneousBlocks
    share: Share
    number: int

    @property
    def partition_column(self) -> tuple[int, Any] | None:
        """See `Packed`."""
        return self.packed.partition_column

    def part(self, slot: int) -> WireRows:
        """Return the rows of block ``slot``, without a copy."""
        rows = self.packed.part(slot)
        return rows.slice(*self.share.rows(self.number, rows.length))


Pickle = list[np.ndarray]
"""A list of values as bytes: the pickle first, then the buffers that it refers to."""


@dataclass(frozen=True, slots=True)
class Pickled(Blocks):
    """Values for neighbouring reducers, beginning with number ``first``.

    Examples
    --------
    >>> (both,) = pickled([["a"], [], [1, 2]], [range(3)])
    >>> both.block(0), both.block(1), Pickled.join([both, both], range(2, 3)).block(2)
    (['a'], [], [1, 2, 1, 2])
    """

    pickles: list[list[Pickle]]  # of each of the k blocks
    first: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all pickles."""
        return sum(array.nbytes for block in self.pickles for arrays in block for array in arrays)

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each of the k blocks."""
        sizes = [sum(a.nbytes for arrays in block for a in arrays) for block in self.pickles]
        return np.array(sizes, float)

    def digested(self) -> Iterator[Any]:
        """Buffers, for `dask_exo.partitions.digest`: equal values may differ as pickles."""
        for block in self.pickles:
            for _, *raw in block:
                yield raw

    def block(self, slot: int) -> list[Any]:
        """Return the values of block ``slot``; arrays among them are views of this object."""
        values: list[Any] = []
        for data, *buffers in self.pickles[slot - self.first]:
            values += pickle.loads(data.data, buffers=buffers)  # noqa: S301  pickled by `pickled`
        return values

    @classmethod
    def join(cls, packed: Sequence[Pickled], slots: range) -> Pickled:
        """See `Blocks`; the values stay pickled."""
        return cls(
            [[arrays for p in packed for arrays in p.pickles[slot - p.first]] for slot in slots],
            slots.start,
        )


def pack(
    frame: Any,
    ids: np.ndarray,
    owned: Sequence[range],
    partition_column: tuple[int, Any] | None = None,
    *,
    ignore_index: bool = False,
) -> list[Packed]:
    """Sort (n,) rows by their reducers ``ids``; return (W,) blocks packed for the nodes' reducers.

    Rows with the number after that of the last reducer are left out. With ``ignore_index`` the
    index is dropped.
    """
    kernels = protocol.kernels(frame)
    order, offsets = kernels.counting_argsort(ids, owned[-1].stop + 1)
    order = order[: offsets[-2]]
    rows = kernels.to_wire(frame, order, ignore_index=ignore_index)
    return [
        Packed(
            rows.slice(offsets[slots.start], offsets[slots.stop]),
            offsets[slots.start : slots.stop + 1] - offsets[slots.start],
            partition_column,
            slots.start,
        )
        for slots in owned
    ]


def pickled(
    lists: Sequence[list[Any]] | Mapping[int, list[Any]], owned: Sequence[range]
) -> list[Pickled]:
    """Pickle the values of each reducer, by its number; pack those of the reducers of each node."""
    return [
        Pickled([[_dumps(lists[r])] if lists[r] else [] for r in slots], slots.start)
        for slots in owned
    ]


def _dumps(values: list[Any]) -> Pickle:
    buffers: list[pickle.PickleBuffer] = []
    data = cloudpickle.dumps(values, protocol=5, buffer_callback=buffers.append)
    # as arrays they stay outside the pickle of the whole object: a reader copies nothing
    return [np.frombuffer(b, np.uint8) for b in (data, *(buffer.raw() for buffer in buffers))]


def merge(owned: Sequence[range], *packed: B) -> Iterator[Blocks]:
    """Combine blocks of all arguments, for each range of slots, in input order."""
    for slots in owned:
        reach("merge")
        yield type(packed[0]).join(packed, slots)
