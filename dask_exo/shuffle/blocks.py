"""Packed blocks: what many reducers get from one map, in one object.

There are two kinds: rows of a frame behind an offset table, and lists of values that are pickled
by themselves, so that a reducer unpickles its own only.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import cloudpickle
import numpy as np
from dask.sizeof import sizeof

from dask_exo.frame import host

B = TypeVar("B", bound="Blocks")


class Blocks(Protocol):
    """Blocks of neighbouring reducers in one object."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the object store, about."""
        ...

    def block(self, slot: int) -> Any:
        """What is in block ``slot``."""
        ...

    @classmethod
    def join(cls: type[B], packed: Sequence[B], slot: int) -> B:
        """Block ``slot`` of each of ``packed`` as one, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows for neighbouring reducers, one block after the other.

    Attributes
    ----------
    frame : DataFrame
        (n,) rows, those of the first reducer first.
    offsets : ndarray
        (k + 1,) where each of the k blocks starts.
    mark : tuple, optional
        Place and dtype of the column of partition numbers, which is the same number for all
        rows of a block and therefore not sent.
    """

    frame: Any
    offsets: np.ndarray
    mark: tuple[int, Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(sizeof(self.frame))

    def block(self, slot: int) -> Any:
        """Rows of block ``slot``, without a copy."""
        return self.frame.iloc[self.offsets[slot] : self.offsets[slot + 1]]

    @classmethod
    def join(cls, packed: Sequence[Packed], slot: int) -> Packed:
        """Block ``slot`` of each of ``packed`` as one, in their order."""
        frame = host.concat([p.block(slot) for p in packed])
        return cls(frame, np.array([0, len(frame)]), packed[0].mark)


Pickle = list[np.ndarray]
"""A list of values as bytes: the pickle first, then the buffers that it refers to."""


@dataclass(frozen=True, slots=True)
class Pickled:
    """Values for neighbouring reducers.

    Attributes
    ----------
    pickles : list
        (k,) for each of the k blocks the pickles of what is in it.

    Examples
    --------
    >>> (both,) = pickled([["a"], [], [1, 2]], [range(3)])
    >>> both.block(0), both.block(1), Pickled.join([both, both], 2).block(0)
    (['a'], [], [1, 2, 1, 2])
    """

    pickles: list[list[Pickle]]

    @property
    def nbytes(self) -> int:
        """Bytes of all pickles."""
        return sum(array.nbytes for block in self.pickles for one in block for array in one)

    def block(self, slot: int) -> list[Any]:
        """Values of block ``slot``; arrays among them are views of this object."""
        values: list[Any] = []
        for data, *buffers in self.pickles[slot]:
            values += pickle.loads(data.data, buffers=buffers)  # noqa: S301  pickled by `pickled`
        return values

    @classmethod
    def join(cls, packed: Sequence[Pickled], slot: int) -> Pickled:
        """Block ``slot`` of each of ``packed`` as one, in their order, and still pickled."""
        return cls([[one for p in packed for one in p.pickles[slot]]])


def pack(
    frame: Any,
    ids: np.ndarray,
    owned: Sequence[range],
    mark: tuple[int, Any] | None = None,
    *,
    ignore_index: bool = False,
) -> list[Packed]:
    """Sort rows by reducer and cut them at node boundaries.

    Parameters
    ----------
    frame : DataFrame
        (n,) rows.
    ids : (n,)
        Reducer of each row.
    owned : (W,)
        Contiguous reducers of each node.
    mark : tuple, optional
        See `Packed`.
    ignore_index : bool
        Whether the index need not be sent.

    Returns
    -------
    list of Packed : (W,)
    """
    rows, offsets = host.arrange(frame, ids, owned[-1].stop)
    if ignore_index:
        rows = rows.reset_index(drop=True)
    if len(owned) == 1:
        return [Packed(rows, offsets, mark)]
    return [
        Packed(
            rows.iloc[offsets[mine.start] : offsets[mine.stop]],
            offsets[mine.start : mine.stop + 1] - offsets[mine.start],
            mark,
        )
        for mine in owned
    ]


def pickled(lists: Sequence[list[Any]], owned: Sequence[range]) -> list[Pickled]:
    """Pickle what each reducer gets, and put together what the reducers of each node get.

    Parameters
    ----------
    lists : (R,)
        Values for each reducer.
    owned : (W,)
        Contiguous reducers of each node.

    Returns
    -------
    list of Pickled : (W,)
    """
    return [Pickled([[_dumps(lists[r])] if lists[r] else [] for r in mine]) for mine in owned]


def _dumps(values: list[Any]) -> Pickle:
    buffers: list[pickle.PickleBuffer] = []
    data = cloudpickle.dumps(values, protocol=5, buffer_callback=buffers.append)
    # as arrays they stay outside the pickle of the whole: who reads it copies nothing
    return [np.frombuffer(b, np.uint8) for b in (data, *(buffer.raw() for buffer in buffers))]


def merge(count: int, *packed: B) -> Iterator[B]:
    """Combine block ``i`` of every argument, for each ``i``; input order is kept."""
    for slot in range(count):
        yield type(packed[0]).join(packed, slot)
