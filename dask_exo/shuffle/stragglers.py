"""Stragglers: decisions which calls are late and which nodes are slow, from measured times.

A call is late when it runs several times as long as the median of its stage. The callers decide
the consequence: a speculative attempt on another node, or a merge that is cancelled.

References: Exoshuffle section 3.3.2.4; backup tasks of MapReduce (Dean and Ghemawat, OSDI 2004,
section 3.6). The cap on attempts and the slow nodes are those of LATE (Zaharia et al., OSDI 2008).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

MIN_FINISHED = 2  # finished calls, before any is late

RECENT = 200  # last durations that count


@dataclass(frozen=True)
class SpeculationPolicy:
    """Thresholds after which a call is late; see ``exo.yaml``."""

    factor: float = 2.0  # times the median duration of the finished calls
    floor: float = 2.0  # seconds before which no call is late

    def allowance(self, usual: float, size: int = 1) -> float:
        """Return the seconds that a call of ``size`` parts may run.

        ``usual`` is the median duration of one part.

        Examples
        --------
        >>> SpeculationPolicy().allowance(5.0), SpeculationPolicy().allowance(0.1, size=3)
        (10.0, 2.0)
        """
        return max(self.floor, self.factor * usual * size)


def median_duration(durations: Sequence[float]) -> float | None:
    """Return the median of the last durations, or None if there are too few.

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
    """Return the running calls that are late, ordered by the time when they became late.

    No call is late while fewer calls have finished than are running: the median means little then.
    ``running`` has start time and number of parts of each call, ``durations`` the seconds per part
    of the finished calls.

    Examples
    --------
    >>> late({"a": (0.0, 1), "b": (6.0, 1)}, [3.0, 3.5, 3.0], now=8.0, policy=SpeculationPolicy())
    ['a']
    """
    usual = median_duration(durations)
    if usual is None or len(durations) < len(running):
        return []
    due = {k: start + policy.allowance(usual, size) for k, (start, size) in running.items()}
    return sorted((key for key in due if now >= due[key]), key=lambda key: due[key])


def speculation_budget(*, slots: int, busy: int, speculative: int) -> int:
    """Return how many more speculative attempts may start.

    They get idle slots only, since first attempts are worth more, and at most half of all slots.
    Of the tasks in flight, ``busy`` could run; ``speculative`` of them are such attempts.

    Examples
    --------
    >>> speculation_budget(slots=16, busy=11, speculative=4)
    4
    >>> speculation_budget(slots=16, busy=4, speculative=0)
    8
    """
    return max(0, min(slots - busy, max(1, slots // 2) - speculative))


def slow_nodes(
    seconds: Mapping[str, Sequence[float]], nodes: Sequence[str], *, late: int, factor: float
) -> frozenset[str]:
    """Return the nodes that get no work that other nodes can do.

    A node is slow if its calls took ``factor`` times as long as on the median node (``seconds``:
    durations of finished calls by node). While calls are late, a node that has finished none is
    slow, too.

    Examples
    --------
    >>> times = {"a": [1.0, 1.1], "b": [1.0], "c": [9.0]}
    >>> sorted(slow_nodes(times, ["a", "b", "c", "d"], late=0, factor=2.0))
    ['c']
    >>> sorted(slow_nodes(times, ["a", "b", "c", "d"], late=2, factor=2.0))
    ['c', 'd']
    """
    medians = {node: median(times) for node, times in seconds.items() if times}
    if not medians:
        return frozenset()
    # the lower median: of two nodes, one can be the slow one
    middle = sorted(medians.values())[(len(medians) - 1) // 2]
    slow = {node for node, time in medians.items() if time > factor * middle}
    if late:
        slow.update(node for node in nodes if node not in medians)
    return frozenset(slow)


def least_loaded(load: Mapping[str, int], slots: Mapping[str, int]) -> str:
    """Return the node with the smallest load per slot; the first one of equals.

    Examples
    --------
    >>> least_loaded({"a": 3, "b": 4}, {"a": 2, "b": 4})
    'b'
    """
    return min(slots, key=lambda node: load.get(node, 0) / slots[node])
