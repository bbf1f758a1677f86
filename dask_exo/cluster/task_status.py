"""What tasks do at the moment, as a cluster says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Doing:
    """What one task does.

    Attributes
    ----------
    state : {'runs', 'waits', 'ended', 'spilled', 'unknown'}
        ``waits``: for its arguments or for a place. ``spilled``: it has ended, and what it returned
        was written to disk. ``unknown``: the cluster does not say.
    needs : mapping
        Resources that it asks for, if those are known.
    node : str, optional
        Id of the node on which it runs.
    """

    state: Literal["runs", "waits", "ended", "spilled", "unknown"]
    needs: Mapping[str, float] = field(default_factory=dict)
    node: str | None = None


@dataclass(frozen=True)
class Activity:
    """What some tasks do, and whether others keep the cluster busy.

    Attributes
    ----------
    tasks : sequence of Doing
        Those that were asked about, in their order.
    others : int
        Other tasks that run, of any program.
    nodes : mapping
        Resources of each node that is alive, by its id.
    free : mapping
        What nobody holds of them, as far as that is known.
    """

    tasks: Sequence[Doing]
    others: int = 0
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    free: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
