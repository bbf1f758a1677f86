"""Who sends how much to whom in a shuffle, on a grid that stays small."""

from __future__ import annotations

import numpy as np

CELLS = 64  # along each side


class Matrix:
    """Bytes from parts to outputs.

    Parameters
    ----------
    parts, outputs : int
        M and R. Where there are more than `CELLS`, neighbours share a cell.

    Attributes
    ----------
    cells : ndarray
        (min(M, CELLS), min(R, CELLS)) bytes. Parts that were mapped by one call are spread evenly
        over its rows.
    parts : int
    totals : ndarray
        (R,) bytes of each output.

    Examples
    --------
    >>> matrix = Matrix(2, 3)
    >>> matrix.add(1, 1, np.array([5.0, 0.0, 1.0]))
    >>> matrix.cells.tolist(), matrix.totals.tolist()
    ([[0.0, 0.0, 0.0], [5.0, 0.0, 1.0]], [5.0, 0.0, 1.0])
    """

    def __init__(self, parts: int, outputs: int) -> None:
        self.parts = parts
        columns = min(outputs, CELLS)
        self._starts = np.arange(columns) * outputs // columns
        self.cells = np.zeros((min(parts, CELLS), columns))
        self.totals = np.zeros(outputs)

    def add(self, start: int, count: int, sent: np.ndarray) -> None:
        """Note what ``count`` parts from ``start`` on have sent, (R,) bytes."""
        self.totals += sent
        rows = np.arange(start, start + count) * len(self.cells) // self.parts
        share = np.add.reduceat(sent, self._starts) / count
        np.add.at(self.cells, rows, share)
