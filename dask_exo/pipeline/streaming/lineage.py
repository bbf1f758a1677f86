"""What a piece was made of, in case that its node is lost.

Of the values that tasks have made, Ray itself makes again what is lost; not of those of workers
that are kept. So each piece knows the inputs of its task, and they theirs, up to the source.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_exo.pipeline.streaming.types import Made, Piece


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
