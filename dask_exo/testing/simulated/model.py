"""Description of a simulated cluster: costs, faults, trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from dask_exo.errors import ExoError


@dataclass(frozen=True, slots=True)
class Call:
    """A task at the moment it starts, as a cost model sees it.

    Attributes
    ----------
    fn : callable
        The function of the task.
    args : tuple
        Its arguments; refs as refs.
    sizes : tuple of int, (len(args),)
        Bytes behind each argument; 0 for one that is not a ref.
    count : int
        Values it makes.
    node : str
        The node it starts on.
    moved : int
        Bytes of its arguments that are not on that node.
    restored : int
        Bytes of its arguments that had to be read back from disk.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    sizes: tuple[int, ...]
    count: int
    node: str
    moved: int
    restored: int


class Cost(NamedTuple):
    """Duration and output sizes of one task.

    Attributes
    ----------
    seconds : float
        Virtual seconds for which it holds a slot, on a node of normal speed.
    sizes : int or sequence of int, (count,)
        Bytes of each value it makes; one int for values of one size.
    """

    seconds: float
    sizes: int | Sequence[int]


class Channels(NamedTuple):
    """Bandwidths of every node.

    Attributes
    ----------
    disk : float
        Bytes per second that it reads and writes, together.
    net : float
        Bytes per second that it receives, and as many that it sends meanwhile.
    """

    disk: float
    net: float


CostModel = Callable[[Call], Cost]
"""A pure function: the same call costs the same."""

Stragglers = Mapping[str, float] | Callable[[Random], float]
"""Factors of the duration of tasks: by node id, or drawn for each task."""


@dataclass(frozen=True)
class NodeDeath:
    """A node dies with its tasks and all it stores, on disk too.

    Attributes
    ----------
    at : float
        Virtual second; a task that would end then is lost.
    node : str
        Its id.
    back : float or None
        Virtual second at which an empty node of that id joins; None for never.
    """

    at: float
    node: str
    back: float | None = None

    def __post_init__(self) -> None:
        if self.at < 0 or (self.back is not None and self.back <= self.at):
            raise ValueError(f"a node dies at 0 or later and is back after that, not {self}")


@dataclass(frozen=True)
class TaskRun:
    """One stay of a task in a slot.

    Attributes
    ----------
    start, end : float
        Virtual seconds.
    node : str
        Where.
    name : str
        Of its function.
    outcome : str
        ``done``, ``failed``, ``cancelled`` or ``killed`` (by the death of the node).
    """

    start: float
    end: float
    node: str
    name: str
    outcome: str


class DeadlockError(ExoError, RuntimeError):
    """Somebody waits for a task that can never run."""


def slowness(stragglers: Stragglers | None, seed: int, ids: set[str]) -> Callable[[str], float]:
    """Make the function that says how many times longer a task takes on a node.

    Raises
    ------
    ValueError
        A factor is for a node that is not there.
    """
    if stragglers is None:
        return lambda _: 1.0
    if not isinstance(stragglers, Mapping):
        random, draw = Random(seed), stragglers
        return lambda _: draw(random)
    if not stragglers.keys() <= ids:
        raise ValueError(f"stragglers {sorted(stragglers)} among nodes {sorted(ids)}")
    factors = dict(stragglers)
    return lambda node: factors.get(node, 1.0)
