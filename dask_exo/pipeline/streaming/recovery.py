"""What is said, and set aside, where a task of a pipeline cannot be done again."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from dask_exo.errors import NonDeterminismError, ValueLostError, WorkerLostError
from dask_exo.pipeline.streaming.provenance import Origin, Rows, joined
from dask_exo.pipeline.streaming.retries import RejectReason, named
from dask_exo.pipeline.streaming.task import BlockMetadata
from dask_exo.pipeline.streaming.types import Block, Lineage
from dask_exo.remote_error import Failure


def lineage_of(inputs: Sequence[Block], number: int, digest: int) -> Lineage:
    """What an output was made of, without keeping in the store what can be made again.

    Examples
    --------
    >>> source = Block("a recipe", 0, 0, (0,), small=True)
    >>> block = Block("a ref", 9, 1, (0, 0), stage=0, made=lineage_of([source], 0, 7))
    >>> lineage_of([block], 2, 8).inputs[0].value is None
    True
    >>> lineage_of([block], 2, 8).inputs[0].made.inputs[0].value
    'a recipe'
    """
    return Lineage(tuple(map(without_value, inputs)), number, digest)


def without_value(block: Block) -> Block:
    """A block without its value, unless that is small."""
    return block if block.small else block._replace(value=None, shared=None)


def can_recompute(block: Block) -> bool:
    """Whether a block can be made again."""
    if block.made is None:
        return block.small
    return all(map(can_recompute, block.made.inputs))


def origin(block: Block) -> Origin:
    """Rows of an input; those of the source are counted where they are made."""
    return block.origin if block.origin.rows else Origin((Rows(block.place[0]),))


def origin_of(inputs: Sequence[Block]) -> Origin:
    """Rows of all inputs of a task."""
    return joined(list(map(origin, inputs)))


def given_up(
    stage: str, inputs: Sequence[Block], times: int, last: WorkerLostError
) -> WorkerLostError:
    """The error of a task that was lost too often."""
    rows = origin_of(inputs)
    if isinstance(last, ValueLostError):
        return ValueLostError(
            f"the input of stage {stage!r}, {rows}, was lost with its node, and what it was made "
            f"of is not kept: start the pipeline again. What it reads from files, or from a "
            f"dataframe without a shuffle, is made again (last: {last})"
        )
    return WorkerLostError(
        f"the workers of stage {stage!r} died {times} times on the same input, {rows}: it may need "
        f"more memory than there is. Make smaller partitions, or let the stage ask for more CPUs, "
        f"so that fewer run side by side (last: {last})"
    )


def not_given(stage: str, block: Block) -> NonDeterminismError:
    """The error of a stage that does not give a block again which was lost."""
    return NonDeterminismError(
        f"stage {stage!r} ran again on {origin(block)}, since a node was lost, and did not give "
        f"the block that it gave before: let it depend on its input only"
    )


def set_aside(stage: str, block: Block, error: Exception) -> Block:
    """An input as a block that says why it is none."""
    where = origin(block)
    failure = Failure.of(named(stage, stage, where), error)
    return block._replace(more=True, rejected=RejectReason(stage, stage, where, failure))


def compare(about: BlockMetadata, seen: int, mode: str, stage: str, origin: Origin) -> None:
    """Compare what a task says it gave before a block with what has come of it.

    Parameters
    ----------
    about : BlockMetadata
        Of the block.
    seen : int
        Digest of the blocks before it, as they came.
    mode : str
        What happens where they are others: ``"error"`` or ``"warn"``.
    stage : str
    origin : Origin
        Of the input of the task.

    Raises
    ------
    NonDeterminismError
        They are others, and this is to be an error.
    """
    if about.before == seen:
        return
    text = (
        f"stage {stage!r} ran again on {origin}, since a worker or a node was lost, and gave other "
        f"blocks than before, of which some are used already: let it depend on its input only. If "
        f"the difference does no harm, set exo.fault.nondeterminism to 'warn' or 'ignore'"
    )
    if mode == "error":
        raise NonDeterminismError(text)
    warnings.warn(text, stacklevel=2)
