"""What is said, and set aside, where a task of a pipeline cannot be done again."""

from __future__ import annotations

from collections.abc import Sequence

from dask_exo.errors import NonDeterminismError, ValueLostError, WorkerLostError
from dask_exo.pipeline.streaming.provenance import Origin, Rows, joined
from dask_exo.pipeline.streaming.retries import Rejected, named
from dask_exo.pipeline.streaming.types import Piece
from dask_exo.remote_error import Failure


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
