"""Which calls are late, which nodes are slow: decisions from times that others have measured.

A call is late when it has run several times as long as most calls of its kind did. What is
done about it (a second copy elsewhere, a merge that is given up) is up to those who ask.

References: Exoshuffle section 3.3.2.4; backup tasks of MapReduce (Dean and Ghemawat, OSDI 2004,
section 3.6); a cap on copies and nodes known to be slow are from LATE (Zaharia et al., OSDI 2008).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

MIN_FINISHED = 2  # finished calls, before any is late

RECENT = 200  # durations that count


@dataclass(frozen=True)
class SpeculationPolicy:
    """When to stop waiting; see ``exo.yaml``.

    Attributes
    ----------
    factor : float
        A call is late after so many times the median duration of those that have finished.
    floor : float
        Seconds for which no call is late.
    """

    factor: float = 2.0
    floor: float = 2.0

    def allowance(self, usual: float, size: int = 1) -> float:
        """Seconds that a call of ``size`` parts may run, where a part usually takes so long.

        Examples
        --------
        >>> SpeculationPolicy().allowance(5.0), SpeculationPolicy().allowance(0.1, size=3)
        (10.0, 2.0)
        """
        return max(self.floor, self.factor * usual * size)


def median_duration(durations: Sequence[float]) -> float | None:
    """Median of the last durations; None where there are too few.

    Examples
    --------
    >>> median_duration([4.0, 5.0, 90.0]), median_duration([4.0])
    (5.0, None)
    """
    return median(durations[-RECENT:]) if len(durations) >= MIN_FINISHED else None


def late(
    running: Mapping[K, tuple[float, int]],
    durations: Sequence[float],
    *,
    now: float,
    policy: SpeculationPolicy,
) -> list[K]:
    """Running calls that are late, the one that should have ended first before the others.

    None are as long as more calls are running than have finished: then nobody knows yet what is
    usual.

    Parameters
    ----------
    running : mapping
        When each call began, and its parts.
    durations : sequence of float
        Seconds for a part, of the calls that have finished.
    now : float
        Of the same clock.
    policy : SpeculationPolicy

    Examples
    --------
    >>> late({"a": (0.0, 1), "b": (6.0, 1)}, [3.0, 3.5, 3.0], now=8.0, policy=SpeculationPolicy())
    ['a']
    """
    each = median_duration(durations)
    if each is None or len(durations) < len(running):
        return []
    due = {k: began + policy.allowance(each, size) for k, (began, size) in running.items()}
    return sorted((key for key in due if now >= due[key]), key=lambda key: due[key])


def speculation_budget(*, slots: int, busy: int, speculative: int) -> int:
    """How many more copies may be made.

    They get idle slots only, since first calls of other parts are worth more, and half of all.

    Parameters
    ----------
    slots : int
        Tasks that run side by side.
    busy : int
        Tasks in flight that could run.
    speculative : int
        Speculative attempts among them.

    Examples
    --------
    >>> (
    ...     speculation_budget(slots=16, busy=11, speculative=4),
    ...     speculation_budget(slots=16, busy=4, speculative=0),
    ... )
    (4, 8)
    """
    return max(0, min(slots - busy, max(1, slots // 2) - speculative))


def slow_nodes(
    seconds: Mapping[str, Sequence[float]], nodes: Sequence[str], *, late: int, factor: float
) -> frozenset[str]:
    """Nodes that shall get no work that others can do.

    Those whose calls took ``factor`` times as long as on the usual node; and, where calls are
    late, those that have finished none.

    Parameters
    ----------
    seconds : mapping
        (n,) times of finished calls by node.
    nodes : sequence of str
        All of them.
    late : int
        Calls that are late.
    factor : float

    Examples
    --------
    >>> times = {"a": [1.0, 1.1], "b": [1.0], "c": [9.0]}
    >>> sorted(slow_nodes(times, ["a", "b", "c", "d"], late=0, factor=2.0))
    ['c']
    >>> sorted(slow_nodes(times, ["a", "b", "c", "d"], late=2, factor=2.0))
    ['c', 'd']
    """
    usual = {node: median(times) for node, times in seconds.items() if times}
    if not usual:
        return frozenset()
    # of an even number the quicker one of the middle: one of two nodes can be the slow one
    middle = sorted(usual.values())[(len(usual) - 1) // 2]
    found = {node for node, time in usual.items() if time > factor * middle}
    if late:
        found.update(node for node in nodes if node not in usual)
    return frozenset(found)


def least_loaded(load: Mapping[str, int], slots: Mapping[str, int]) -> str:
    """The node whose slots have the least to do; the first one of equals.

    Examples
    --------
    >>> least_loaded({"a": 3, "b": 4}, {"a": 2, "b": 4})
    'b'
    """
    return min(slots, key=lambda node: load.get(node, 0) / slots[node])
