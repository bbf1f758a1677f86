"""Whether to keep parts or outputs of a shuffle: what that costs must be little beside the work."""

from __future__ import annotations

SPEED = 250e6
"""Bytes that one task pickles, hashes and writes in a second; measured, on a local disk."""

FILE = 0.01
"""Seconds that a file takes, however short; on a local disk a few milliseconds."""


def worth_checkpointing(nbytes: int, *, work: float, spent: float, share: float) -> bool:
    """Decide whether to keep some more values.

    What has been written stays below a share of the work that would have to be done again without
    it, so that a program which writes checkpoints is never slower by more than that.

    Parameters
    ----------
    nbytes : int
        Of the values.
    work : float
        Seconds of all tasks of this computation so far.
    spent : float
        Seconds of it that it has taken to keep others, by this estimate.
    share : float
        Of ``work``, that may be spent so.

    Examples
    --------
    A gigabyte that took two minutes of work, and one that took a second:

    >>> worth_checkpointing(10**9, work=120.0, spent=0.0, share=0.05)
    True
    >>> worth_checkpointing(10**9, work=1.0, spent=0.0, share=0.05)
    False
    """
    return spent + write_seconds(nbytes) <= share * work


def write_seconds(nbytes: int) -> float:
    """Seconds of tasks that it takes to keep values."""
    return nbytes / SPEED


def single_write_seconds(nbytes: int, *, seconds: float, share: float) -> float | None:
    """Seconds that it takes to keep one value by itself, or None if it is not worth that.

    Parameters
    ----------
    nbytes : int
        Of the value.
    seconds : float
        That it took to make it.
    share : float
        Of ``seconds``, that may be spent.

    Examples
    --------
    >>> single_write_seconds(10**6, seconds=1.0, share=0.05)
    0.014
    >>> single_write_seconds(10**6, seconds=0.1, share=0.05)
    """
    spent = FILE + write_seconds(nbytes)
    return spent if spent <= share * seconds else None
