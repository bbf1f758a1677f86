"""How well batches are mixed."""

from __future__ import annotations

from typing import Any

import numpy as np


def spread(positions: Any, batch_size: int) -> float:
    """How well batches are mixed: their spread over the input, relative to that of random ones.

    Parameters
    ----------
    positions : (n,)
        Of each row that comes, its place in the input.
    batch_size : int

    Returns
    -------
    float
        The mean over full batches of the standard deviation of ``positions``, over that of all.
        About 1 for a full shuffle, about the share of the input in a window for a windowed one, and
        near 0 for rows in their old order.

    Examples
    --------
    >>> spread(np.arange(1000), 10) < 0.02
    True
    >>> 0.9 < spread(np.random.default_rng(0).permutation(1000), 10) < 1.0
    True
    """
    positions = np.asarray(positions)
    full = positions[: len(positions) - len(positions) % batch_size].reshape(-1, batch_size)
    return float(full.std(axis=1).mean() / positions.std())
