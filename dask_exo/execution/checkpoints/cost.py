"""Decisions to write checkpoints: their cost must be small compared with the work."""

from __future__ import annotations

SPEED = 250e6
"""Bytes that one task pickles, hashes and writes per second; measured on a local disk."""

FILE = 0.01
"""Seconds per file of any size; a few milliseconds on a local disk."""


def worth_checkpointing(nbytes: int, *, work: float, spent: float, share: float) -> bool:
    """Decide whether to write some more values.

    Writing stays below a share of the work that it saves from being recomputed, so that a program
    with checkpoints is never slower by more than that share.

    Parameters
    ----------
    nbytes : int
        Size of the values.
    work : float
        Seconds of all tasks of this computation so far.
    spent : float
        Estimated seconds that writing other checkpoints took so far.
    share : float
        Share of ``work`` that may be spent.

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
    """Return the task seconds that writing values takes."""
    return nbytes / SPEED


def single_write_seconds(nbytes: int, *, seconds: float, share: float) -> float | None:
    """Return the seconds that writing one value takes, or None if it is not worth them.

    Parameters
    ----------
    nbytes : int
        Size of the value.
    seconds : float
        Seconds that computing it took.
    share : float
        Share of ``seconds`` that may be spent.

    Examples
    --------
    >>> single_write_seconds(10**6, seconds=1.0, share=0.05)
    0.014
    >>> single_write_seconds(10**6, seconds=0.1, share=0.05)
    """
    spent = FILE + write_seconds(nbytes)
    return spent if spent <= share * seconds else None
