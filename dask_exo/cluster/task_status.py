"""Status of tasks as a cluster reports it, and digests of what tasks return.

A cluster recomputes a task when its process has died, or the node that stored its output. The
program does not submit the second attempt and does not wait for it, so digests of its output
travel beside the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TaskStatus:
    """Status of one task.

    Attributes
    ----------
    state : {'running', 'pending', 'finished', 'spilled', 'unknown'}
        ``pending``: waits for its arguments or for a slot. ``spilled``: finished, and its output
        was written to disk. ``unknown``: the cluster does not report it.
    needs : mapping
        Resources that it requests, if known.
    node : str, optional
        Id of the node on which it runs.
    """

    state: Literal["running", "pending", "finished", "spilled", "unknown"]
    needs: Mapping[str, float] = field(default_factory=dict)
    node: str | None = None


@dataclass(frozen=True)
class Activity:
    """Status of some tasks, and of the cluster around them.

    Attributes
    ----------
    tasks : sequence of TaskStatus
        Of the tasks in question, in order.
    others : int
        Number of other running tasks, of any program.
    nodes : mapping
        Resources of each node that is alive, by its id.
    free : mapping
        Unused resources of each node, as far as known.
    """

    tasks: Sequence[TaskStatus]
    others: int = 0
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    free: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputDigest:
    """Summary of what a call has returned.

    Attributes
    ----------
    call : str
        Id of the call: equal for all its attempts, and unique among calls.
    name : str
        Name of its function.
    parts : int
        Number of partitions that it returns.
    digest : int, optional
        Digest of its output: equal for equal outputs.
    """

    call: str
    name: str
    parts: int = 1
    digest: int | None = None


@dataclass(frozen=True)
class _Call:
    id: str
    outputs: list[OutputDigest]


_running: ContextVar[_Call | None] = ContextVar("running", default=None)


def report_output(name: str, parts: int = 1, digest: int | None = None) -> OutputDigest | None:
    """Report, in a task, what it has computed; None where calls have no ids.

    Examples
    --------
    >>> with collect_outputs("call-7") as outputs:
    ...     report_output("map", 3)
    OutputDigest(call='call-7', name='map', parts=3, digest=None)
    >>> len(outputs)
    1
    """
    running = _running.get()
    if running is None:
        return None
    output = OutputDigest(running.id, name, parts, digest)
    running.outputs.append(output)
    return output


@contextmanager
def collect_outputs(call: str) -> Iterator[list[OutputDigest]]:
    """Collect what a call reports about its output; for implementations of `Futures`."""
    outputs: list[OutputDigest] = []
    token = _running.set(_Call(call, outputs))
    try:
        yield outputs
    finally:
        _running.reset(token)
