"""Items of bags, by group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.tokenize import tokenize
from tlz import groupby, partition_all

from dask_exo.planning.partitioners.exchange import Partitioner
from dask_exo.shuffle.blocks import Pickled, pickled
from dask_exo.shuffle.integrity import Tally, tally


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemPartitioner(Partitioner):
    """Partitioner of items by a function of the user's groups.

    Attributes
    ----------
    place : callable
        ``place(part, count) -> {number: items}``: the items of a part that go to each output.
    """

    place: Callable[[Iterable[Any], int], Mapping[int, Sequence[Any]]]

    def cut(
        self, parts: Sequence[Iterable[Any]], owned: Sequence[range]
    ) -> tuple[list[Pickled], Tally]:
        """Divide the items of some inputs by output."""
        slots = {number: slot for slot, number in enumerate(self.numbers)}
        lists: list[list[Any]] = [[] for _ in slots]
        for part in parts:
            for number, items in self.place(part, self.count).items():
                if number in slots:
                    lists[slots[number]].extend(items)
        return pickled(lists, owned), tally(np.array([len(items) for items in lists]))

    def assemble(self, packed: Sequence[Pickled], slot: int, column: int) -> tuple[Any, Tally]:
        """Assemble the items of one output, in the order of the inputs."""
        items = [item for p in packed for item in p.block(slot)]
        return items, tally(np.array([len(items)]), column)


def by_hash(pairs: Iterable[tuple[int, Any]], count: int) -> dict[int, list[Any]]:
    """Place pairs of a hash and an item as ``Bag.groupby(shuffle="tasks")`` does.

    Examples
    --------
    >>> by_hash([(7, "a"), (5, "b"), (3, "c")], 4)
    {3: [(7, 'a'), (3, 'c')], 1: [(5, 'b')]}
    """
    found: dict[int, list[Any]] = defaultdict(list)
    for pair in pairs:
        found[int(pair[0] % count)].append(pair)
    return dict(found)


def by_group(
    items: Iterable[Any], count: int, *, grouper: Callable[[Any], Any], together: int
) -> dict[int, list[Any]]:
    """Place items as ``Bag.groupby(shuffle="disk")`` does.

    Parameters
    ----------
    items : iterable
    count : int
        Number of outputs.
    grouper : callable
        Gives the key of an item's group.
    together : int
        Items that are grouped at a time. The first of equal keys among them, such as 1, 1.0 and
        True, determines the output.
    """
    found: dict[int, list[Any]] = defaultdict(list)
    for some in partition_all(together, items):
        for key, group in groupby(grouper, some).items():
            found[int(tokenize(key), 16) % count].extend(group)
    return dict(found)
