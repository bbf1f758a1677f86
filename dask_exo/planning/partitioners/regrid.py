"""Chunks of arrays, by their place in the array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dask_exo.dask_adapter import concatenate3
from dask_exo.errors import IntegrityError
from dask_exo.planning.partitioners.exchange import Partitioner
from dask_exo.shuffle.blocks import Pickled, pickled
from dask_exo.shuffle.integrity import Tally, tally

Index = tuple[int, ...]
"""(ndim,) position in a grid."""


class Chunk(NamedTuple):
    """One input: a chunk, and its position in the grid of old chunks."""

    at: Index
    data: Any


class ChunkSlice(NamedTuple):
    """Along one axis: the slice of an old chunk that a new one gets.

    Attributes
    ----------
    chunk : int
        The new chunk.
    place : int
        Position of this slice among those of the new chunk.
    where : slice
        Slice of the old chunk.
    """

    chunk: int
    place: int
    where: slice


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkPartitioner(Partitioner):
    """Partitioner of the chunks of an array by another grid.

    Attributes
    ----------
    pieces : list
        (ndim, old chunks along the axis) the slices that each old chunk is divided into.
    grid : list
        (ndim, new chunks along the axis) number of slices that each new chunk consists of.

    Examples
    --------
    >>> halves = ChunkPartitioner.of(
    ...     [[[(0, slice(0, 3))], [(0, slice(3, 4)), (1, slice(0, 2))]]], [(4, 2)]
    ... )
    >>> halves(Chunk((0,), np.arange(4)), Chunk((1,), np.arange(4, 6)))
    [array([0, 1, 2]), array([3, 4, 5])]
    """

    pieces: Sequence[Sequence[Sequence[ChunkSlice]]]
    grid: Sequence[Sequence[int]]

    @classmethod
    def of(
        cls,
        recipes: Sequence[Sequence[Sequence[tuple[int, slice]]]],
        old: Sequence[Sequence[float]],
        kept: Sequence[Index] | None = None,
    ) -> ChunkPartitioner:
        """Follow Dask's recipes.

        Parameters
        ----------
        recipes : list
            (ndim, new chunks along the axis) old chunks, and the slices of them.
        old : sequence
            (ndim, old chunks along the axis) sizes of the old chunks.
        kept : sequence of tuple of int, optional
            Requested new chunks; None means all.
        """
        pieces: list[list[list[ChunkSlice]]] = [[[] for _ in axis] for axis in old]
        for mine, axis in zip(pieces, recipes, strict=True):
            for chunk, recipe in enumerate(axis):
                for place, (source, where) in enumerate(recipe):
                    mine[source].append(ChunkSlice(chunk, place, where))
        grid = [[len(recipe) for recipe in axis] for axis in recipes]
        shape = [len(axis) for axis in grid]
        numbers = None if kept is None else tuple(_number(index, shape) for index in kept)
        return cls(count=math.prod(shape), kept=numbers, pieces=pieces, grid=grid)

    def cut(self, parts: Sequence[Chunk], owned: Sequence[range]) -> tuple[list[Pickled], Tally]:
        """Divide some chunks along the new grid."""
        shape = [len(axis) for axis in self.grid]
        slots = {number: slot for slot, number in enumerate(self.numbers)}
        lists: list[list[Any]] = [[] for _ in slots]
        counts = np.zeros(len(slots), np.int64)
        for at, data in parts:
            for crossing in product(*(axis[i] for axis, i in zip(self.pieces, at, strict=True))):
                chunk, place, where = zip(*crossing, strict=True)
                slot = slots.get(_number(chunk, shape))
                if slot is not None:
                    piece = _compact(data[where])
                    lists[slot].append((place, piece))
                    counts[slot] += piece.size
        return pickled(lists, owned), tally(counts)

    def assemble(self, packed: Sequence[Pickled], slot: int, column: int) -> tuple[Any, Tally]:
        """Assemble one new chunk."""
        lengths = [len(axis) for axis in self.grid]
        at = tuple(map(int, np.unravel_index(self.numbers[column], lengths)))
        shape = tuple(axis[i] for axis, i in zip(self.grid, at, strict=True))
        placed = [piece for p in packed for piece in p.block(slot)]
        if len(placed) != math.prod(shape):
            raise IntegrityError(
                f"chunk {at} of an array needs {math.prod(shape)} blocks, and {len(placed)} "
                f"arrived; no result is returned: compute again"
            )
        nested = np.empty(shape, dtype=object)
        for place, piece in placed:
            nested[place] = piece
        size = sum(piece.size for _, piece in placed)
        return concatenate3(nested.tolist()), tally(np.array([size]), column)


def _number(index: Sequence[int], shape: Sequence[int]) -> int:
    """Return the position of a new chunk among all; the last axis varies fastest."""
    number = 0
    for i, n in zip(index, shape, strict=True):
        number = number * n + i
    return number


def _compact(piece: Any) -> Any:
    """Make elements contiguous, so that their bytes are copied only once."""
    if type(piece) is np.ndarray and not (piece.flags.c_contiguous or piece.flags.f_contiguous):
        return piece.copy()
    return piece
