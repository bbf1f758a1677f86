"""What is said, and set aside, where a task of a pipeline cannot be done again."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from dask_exo.errors import NonDeterminismError, ValueLostError, WorkerLostError
from dask_exo.pipeline.streaming.provenance import Origin, Rows, joined
from dask_exo.pipeline.streaming.retries import Rejected, named
from dask_exo.pipeline.streaming.task import About
from dask_exo.pipeline.streaming.types import Made, Piece
from dask_exo.remote_error import Failure


def made_of(inputs: Sequence[Piece], number: int, digest: int) -> Made:
    """What an output was made of, without keeping in the store what can be made again.

    Examples
    --------
    >>> source = Piece("a recipe", 0, 0, (0,), small=True)
    >>> piece = Piece("a ref", 9, 1, (0, 0), stage=0, made=made_of([source], 0, 7))
    >>> made_of([piece], 2, 8).inputs[0].value is None
    True
    >>> made_of([piece], 2, 8).inputs[0].made.inputs[0].value
    'a recipe'
    """
    return Made(tuple(map(emptied, inputs)), number, digest)


def emptied(piece: Piece) -> Piece:
    """A piece without its value, unless that is small."""
    return piece if piece.small else piece._replace(value=None, shared=None)


def again(piece: Piece) -> bool:
    """Whether a piece can be made again."""
    if piece.made is None:
        return piece.small
    return all(map(again, piece.made.inputs))


def origin(piece: Piece) -> Origin:
    """Rows of an input; those of the source are counted where they are made."""
    return piece.origin if piece.origin.rows else Origin((Rows(piece.place[0]),))


def origin_of(inputs: Sequence[Piece]) -> Origin:
    """Rows of all inputs of a task."""
    return joined(list(map(origin, inputs)))


def given_up(
    stage: str, inputs: Sequence[Piece], times: int, last: WorkerLostError
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


def not_given(stage: str, piece: Piece) -> NonDeterminismError:
    """The error of a stage that does not give a piece again which was lost."""
    return NonDeterminismError(
        f"stage {stage!r} ran again on {origin(piece)}, since a node was lost, and did not give "
        f"the piece that it gave before: let it depend on its input only"
    )


def set_aside(stage: str, piece: Piece, error: Exception) -> Piece:
    """An input as a piece that says why it is none."""
    where = origin(piece)
    failure = Failure.of(named(stage, stage, where), error)
    return piece._replace(more=True, rejected=Rejected(stage, stage, where, failure))


def compare(about: About, seen: int, mode: str, stage: str, origin: Origin) -> None:
    """Compare what a task says it gave before a piece with what has come of it.

    Parameters
    ----------
    about : About
        Of the piece.
    seen : int
        Digest of the pieces before it, as they came.
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
        f"pieces than before, of which some are used already: let it depend on its input only. If "
        f"the difference does no harm, set exo.fault.nondeterminism to 'warn' or 'ignore'"
    )
    if mode == "error":
        raise NonDeterminismError(text)
    warnings.warn(text, stacklevel=2)
