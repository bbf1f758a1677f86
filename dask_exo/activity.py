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
    state : {'runs', 'waits', 'ended', 'unknown'}
        ``waits``: for its arguments or for a place. ``unknown``: the cluster does not say.
    needs : mapping
        Resources that it asks for, if those are known.
    node : str, optional
        Id of the node on which it runs.
    """

    state: Literal["runs", "waits", "ended", "unknown"]
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
    """

    tasks: Sequence[Doing]
    others: int = 0
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
