"""A whole shuffle as one node of the graph, and the interface of its partitioner."""

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
    """Divides inputs into blocks, and assembles outputs from them.

    Attributes
    ----------
    count : int
        Number of outputs before any selection.
    kept : tuple of int, optional
        Requested outputs, each once; None means all.
    checked : bool
        Whether to add up key hashes, and not only counts.
    """

    count: int
    kept: tuple[int, ...] | None = None
    checked: bool = True

    @property
    def numbers(self) -> Sequence[int]:
        """(R,) number of each output among all."""
        return range(self.count) if self.kept is None else self.kept

    def select(self, used: Sequence[int]) -> Self:
        """Return a partitioner with only some of the outputs."""
        return replace(self, kept=tuple(self.numbers[j] for j in used))

    def without_checks(self) -> Self:
        """Return a partitioner that does not add up key hashes."""
        return replace(self, checked=False)

    def with_merge_limit(self, limit: int) -> Self:  # noqa: ARG002  for those that can
        """Return a partitioner that assembles outputs above ``limit`` bytes a chunk at a time."""
        return self

    @abc.abstractmethod
    def cut(
        self, parts: Sequence[Any], owned: Sequence[range]
    ) -> tuple[Sequence[Mergeable], Tally]:
        """Divide inputs, and pack the blocks for each node.

        Parameters
        ----------
        parts : sequence
            Consecutive inputs, in their order.
        owned : (W,)
            Outputs of each node, as positions in `numbers`.

        Returns
        -------
        blocks : (W,)
        sent : Tally
        """

    @abc.abstractmethod
    def assemble(self, packed: Sequence[Any], slot: int, column: int) -> tuple[Any, Tally]:
        """Assemble an output.

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
    """The node of one whole shuffle: M inputs, a list of R outputs.

    The driver loop runs it as an Exoshuffle. Any other scheduler can call it as a plain task with
    the same result. Each output is read by exactly one task, which calls `take`.

    Parameters
    ----------
    key : tuple
    partitioner : Partitioner
        Divides the inputs.
    *parts : TaskRef
        (M,) the parts.
    """

    __slots__ = ()

    def __init__(self, key: Any, func: Partitioner, /, *parts: Any) -> None:
        super().__init__(key, func, *parts)

    @property
    def partitioner(self) -> Partitioner:
        """The node's partitioner."""
        partitioner = self.func
        assert isinstance(partitioner, Partitioner)
        return partitioner


def take(outputs: list[Any], j: int) -> Any:
    """Return output ``j`` of a `ShuffleNode`."""
    return outputs[j]
