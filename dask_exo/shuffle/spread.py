"""Divide the large reducers of a join: deal out the rows of one side, copy those of the other.

A reducer with a frequent key would run long after all others, and may not fit into memory. When
both sides of a join are shuffled, the bytes of each reducer are known. Then other reducers take
equal shares of the rows of one side, along with all rows of the other side, and join these beside
their own. Neither keys nor the number of outputs change. This is for joins whose readers do not
rely on where the rows of a key are.

Reference: Exoshuffle, Listing 5, which divides a reducer that is too large for a task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dask_exo.shuffle.blocks import Share
from dask_exo.shuffle.spec import ReducerInput

LARGE = 2  # times the mean bytes has a reducer that is divided
SHARE = 0.5  # of the mean has a share, at most
SMALL = 4 * 2**20  # bytes; to divide fewer is not worth a task's while


class Division(NamedTuple):
    """A reducer whose rows of one side are dealt out, to itself and to others, in equal shares."""

    reducer: int
    side: int  # 0 for left, 1 for right
    others: tuple[int, ...]


class Piece(NamedTuple):
    """Rows that a task assembles: those of reducer ``number``, a share of them, or a copy."""

    number: int
    column: ReducerInput
    share: Share | None = None
    is_copy: bool = False


def divide(nbytes: np.ndarray, dealt: Sequence[bool]) -> list[Division]:
    """Divide the large reducers of a join, the largest first, among those with the least bytes.

    ``nbytes`` is (2, R), and ``dealt`` says of each side whether its rows may be dealt out.

    Examples
    --------
    >>> divide(np.array([[90, 2, 4, 4], [1, 1, 1, 1]]) * 10**6, dealt=(True, False))
    [Division(reducer=0, side=0, others=(1, 2, 3))]
    >>> divide(np.array([[90, 2, 4, 4], [1, 1, 1, 1]]) * 10**6, dealt=(False, True))
    []
    """
    loads, reducers = nbytes.sum(axis=0, dtype=float), nbytes.shape[1]
    mean = loads.mean() if reducers else 0.0
    large = np.flatnonzero(loads > max(LARGE * mean, SMALL))
    divisions = []
    for i in map(int, large[np.argsort(-loads[large], kind="stable")]):
        side = max((s for s in (0, 1) if dealt[s]), key=lambda s: nbytes[s, i])
        rows, copied = float(nbytes[side, i]), float(nbytes[1 - side, i])
        shares = min(reducers, math.ceil(rows / (SHARE * mean)), 1 + int(rows // max(copied, 1)))
        if shares > 1:
            least = np.argsort(loads, kind="stable")
            others = least[least != i][: shares - 1]
            loads[i] = rows / shares + copied
            loads[others] += rows / shares + copied
            divisions.append(Division(i, side, tuple(others.tolist())))
    return divisions


def pieces(
    inputs: Sequence[ReducerInput], side: int, divisions: Sequence[Division]
) -> list[list[Piece]]:
    """Return what each of the (R,) reducers assembles of one side of a join, its own rows first."""
    found = [[Piece(number, column)] for number, column in enumerate(inputs)]
    for number, dealt, others in divisions:
        column, shares = inputs[number], len(others) + 1
        if side != dealt:
            for other in others:
                found[other].append(Piece(number, column, is_copy=True))
            continue
        for k, taker in enumerate((number, *others)):
            share = Share(k, shares, len(column.refs))
            blocks = share.blocks
            part = replace(column, refs=column.refs[blocks.start : blocks.stop])
            piece = Piece(number, part, share)
            if taker == number:
                found[number][0] = piece
            else:
                found[taker].append(piece)
    return found


def piece_bytes(pieces: Sequence[Piece], nbytes: np.ndarray) -> int:
    """Return the bytes of pieces, by the (R,) bytes of all reducers of their side."""
    return sum(int(nbytes[p.number]) // (1 if p.share is None else p.share.of) for p in pieces)
