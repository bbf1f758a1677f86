"""Shuffles for programs that are not Dask's: any parts, any blocks, any algorithm.

>>> from dask_exo.testing import InlineFutures
>>> def by_length(words):
...     return [[w for w in words if len(w) % 2 == r] for r in range(2)]
>>> def join(*lists):
...     return sorted(sum(lists, []))
>>> f = InlineFutures()
>>> out = run([["a", "bb"], ["cc", "d"]], Program(2, by_length, join), futures=f)
>>> f.get(out)
[['bb', 'cc'], ['a', 'd']]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_exo.config import Config
from dask_exo.futures import Futures, Ref, default, drive
from dask_exo.shuffle import algorithms
from dask_exo.shuffle.blocks import Pickled, merge, pickled
from dask_exo.shuffle.exchange import exchange, limits_of
from dask_exo.shuffle.integrity import tally
from dask_exo.shuffle.maps import Refs
from dask_exo.shuffle.spec import Receipt, Spec


@dataclass(frozen=True)
class Program:
    """What a shuffle does to data.

    Attributes
    ----------
    reducers : int
        R.
    map : callable
        ``map(part)``: (R,) blocks, which may be anything that can be pickled; arrays and frames in
        them are not copied.
    reduce : callable
        ``reduce(*blocks)``: an output, of the blocks of all parts in the order of the parts.
    combine : callable, optional
        ``combine(*blocks)``: one block that stands for some, for algorithms that merge. It must be
        associative. By default merged blocks stay side by side.
    """

    reducers: int
    map: Callable[[Any], Sequence[Any]]
    reduce: Callable[..., Any]
    combine: Callable[..., Any] | None = None

    def cut(self, owned: Sequence[range], *parts: Any) -> list[Any]:
        """Map parts; see `Spec`."""
        start = time.perf_counter()
        lists: list[list[Any]] = [[] for _ in range(self.reducers)]
        for part in parts:
            blocks = self.map(part)
            if len(blocks) != self.reducers:
                raise ValueError(
                    f"map returned {len(blocks)} blocks; there are {self.reducers} reducers"
                )
            for mine, block in zip(lists, blocks, strict=True):
                mine.append(block)
        packed = pickled(lists, owned)
        sent = tally(np.array([len(mine) for mine in lists]))
        nbytes = sum(one.nbytes for one in packed)
        return [*packed, Receipt(sent, nbytes, time.perf_counter() - start)]

    def merge(self, slots: Sequence[range], *packed: Pickled) -> Iterator[Any]:
        """Combine blocks; see `Spec`."""
        if self.combine is None:
            yield from merge(slots, *packed)
            return
        for mine in slots:
            blocks = {slot: [self.combine(*_values(packed, slot))] for slot in mine}
            yield from pickled(blocks, [mine])

    def output(self, slot: int, *packed: Pickled) -> Any:
        """Reduce block ``slot`` of each."""
        return self.reduce(*_values(packed, slot))


def run(
    parts: Sequence[Any],
    program: Program,
    algorithm: str = "auto",
    *,
    futures: Futures | None = None,
) -> list[Ref]:
    """Shuffle parts.

    Parameters
    ----------
    parts : (M,)
        Values, or refs of them (on Ray an ``ObjectRef``).
    program : Program
    algorithm : str
        One of `names`, or ``'auto'``: by the measured size of the first maps.
    futures : Futures, optional
        The cluster; by default that which Dask's code runs on, which is started if need be.

    Returns
    -------
    list : (R,)
        Refs of the outputs (``ray.get`` brings them); the reducers are still running.

    Raises
    ------
    ConfigError
        There is no such algorithm.
    ValueError
        There are no parts.
    """
    algorithms.check(algorithm)
    if not parts:
        raise ValueError("there are no parts to shuffle")
    futures = futures or default()
    limits = replace(limits_of(Config.current()), algorithm=algorithm)
    spec = Spec(program.reducers, tuple(futures.nodes()), program.cut, program.merge)
    shuffled = drive(futures, exchange(futures, Refs(parts), spec, limits))
    return [
        futures.submit(program.output, column.slot, *column.refs, node=column.node)
        for column in shuffled.columns
    ]


def _values(packed: Sequence[Pickled], slot: int) -> list[Any]:
    return [value for one in packed for value in one.block(slot)]
