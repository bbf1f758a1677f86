"""A whole shuffle as one task of the graph, and what it has to know of its data."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from dask_exo.dask_adapter import Task
from dask_exo.shuffle.blocks import Mergeable
from dask_exo.shuffle.integrity import Tally


@dataclass(frozen=True, eq=False, kw_only=True)
class Partitioner(abc.ABC):
    """How parts are cut, and how an output is put together.

    Attributes
    ----------
    count : int
        Number of outputs before any selection.
    kept : tuple of int, optional
        Outputs that are asked for, each once; None means all.
    checked : bool
        Whether to add up what identifies the data, and not only how much there is of it.
    """

    count: int
    kept: tuple[int, ...] | None = None
    checked: bool = True

    @property
    def numbers(self) -> Sequence[int]:
        """(R,) number of each output among all."""
        return range(self.count) if self.kept is None else self.kept

    def select(self, used: Sequence[int]) -> Self:
        """The same, with only some of the outputs."""
        return replace(self, kept=tuple(self.numbers[j] for j in used))

    def without_checks(self) -> Self:
        """The same, without sums."""
        return replace(self, checked=False)

    def within(self, limit: int) -> Self:  # noqa: ARG002  for those that can
        """The same, to assemble larger outputs than ``limit`` bytes piece by piece, if it can."""
        return self

    @abc.abstractmethod
    def cut(
        self, parts: Sequence[Any], owned: Sequence[range]
    ) -> tuple[Sequence[Mergeable], Tally]:
        """Cut parts, and pack what goes to each node.

        Parameters
        ----------
        parts : sequence
            Consecutive ones, in their order.
        owned : (W,)
            Outputs of each node, as positions in `numbers`.

        Returns
        -------
        blocks : (W,)
        sent : Tally
        """

    @abc.abstractmethod
    def assemble(self, packed: Sequence[Any], slot: int, column: int) -> tuple[Any, Tally]:
        """Put an output together.

        Parameters
        ----------
        packed : sequence of Blocks
            In the order of the parts.
        slot : int
            Block of each that belongs to this output.
        column : int
            Position of the output in `numbers`.

        Returns
        -------
        output : object
        arrived : Tally
        """

    def __call__(self, *parts: Any) -> list[Any]:
        """Shuffle in one process: (M,) parts in, (R,) outputs out."""
        columns = range(len(self.numbers))
        (blocks,), _ = self.cut(parts, [columns])
        return [self.assemble([blocks], j, j)[0] for j in columns]


class ShuffleNode(Task):
    """The task of one whole shuffle: M parts in, a list of R outputs out.

    The driver loop runs it as an Exoshuffle. Called as a plain task, which any other scheduler
    can do, it computes the same thing. Each output is read by one task alone, made by `take`.

    Parameters
    ----------
    key : tuple
    partitioner : Partitioner
        How parts are cut.
    *parts : TaskRef
        (M,) the parts.
    """

    __slots__ = ()

    def __init__(self, key: Any, func: Partitioner, /, *parts: Any) -> None:
        super().__init__(key, func, *parts)

    @property
    def partitioner(self) -> Partitioner:
        """How parts are cut."""
        partitioner = self.func
        assert isinstance(partitioner, Partitioner)
        return partitioner


def take(outputs: list[Any], j: int) -> Any:
    """Output ``j`` of an `ShuffleNode`."""
    return outputs[j]
