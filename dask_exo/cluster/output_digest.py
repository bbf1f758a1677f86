"""Calls that run again, and what they say of what they have made.

A cluster runs a call again where its process has died, or the node with what it had made. Nobody
asks for that and nobody waits for it, so what is to be known of it comes beside the results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Made:
    """What a call has made, in short.

    Attributes
    ----------
    call : str
        Which call this was: the same each time it runs, and another for each other call.
    name : str
        Of what it does.
    parts : int
        How many partitions it makes.
    digest : int, optional
        Of what it has made: the same wherever that is the same.
    """

    call: str
    name: str
    parts: int = 1
    digest: int | None = None


@dataclass(frozen=True)
class _Call:
    id: str
    heard: list[Made]


_running: ContextVar[_Call | None] = ContextVar("running", default=None)


def say(name: str, parts: int = 1, digest: int | None = None) -> Made | None:
    """In a task: say what it has made; None where calls have no names.

    Examples
    --------
    >>> with hearing("call-7") as heard:
    ...     say("map", 3)
    Made(call='call-7', name='map', parts=3, digest=None)
    >>> len(heard)
    1
    """
    running = _running.get()
    if running is None:
        return None
    made = Made(running.id, name, parts, digest)
    running.heard.append(made)
    return made


@contextmanager
def hearing(call: str) -> Iterator[list[Made]]:
    """Run a call, and hear what it says; for implementations of `Futures`."""
    heard: list[Made] = []
    token = _running.set(_Call(call, heard))
    try:
        yield heard
    finally:
        _running.reset(token)
