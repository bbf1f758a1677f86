"""What a generator of Ray gives, two objects at a time: a value, and what is to be known of it.

A generator that may be two objects ahead gives a pair and stops. What it says of the value is read
without taking it, so that the generator goes on only when the pair is taken.
"""

from __future__ import annotations

import contextlib
from typing import Any

import ray
import ray.exceptions

_BOTH = hasattr(ray.ObjectRefGenerator, "_get_next_ref_n")  # Ray 2.60; before, one at a time
AHEAD = 2 if _BOTH else 1
"""Objects that a generator may be ahead of whoever takes them."""


class Pairs:
    """Pairs of objects that a generator gives.

    Parameters
    ----------
    generator : ray.ObjectRefGenerator
        Stops after each `AHEAD` objects that nobody has taken.
    """

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self._next: list[Any] = []

    @property
    def coming(self) -> Any:
        """A ref that is there as soon as `about` is, or the end."""
        if not self._next:
            self._next = self._refs(2 if _BOTH else 1)
        return self._next[-1]

    @property
    def task(self) -> bytes:
        """Id of its task."""
        task: bytes = self.generator._generator_ref.task_id().binary()
        return task

    def about(self) -> Any:
        """What is known of the next value, once `coming` is there; None at the end."""
        try:
            return self._about()
        except Exception:
            for ref in (*self._next, self.generator._generator_ref):
                with contextlib.suppress(Exception):  # else Ray prints an error that nobody read
                    ray.get(ref, timeout=0)
            raise

    def _about(self) -> Any:
        with contextlib.suppress(ray.exceptions.ObjectRefStreamEndOfStreamError):
            if not _BOTH:
                value = next(self.generator, None)  # only now the generator says something of it
                if value is None:
                    return None
                if value == self.generator._generator_ref:  # the task has failed
                    ray.get(value)
                self._next = [value, *self._refs(1)]
            return ray.get(self._next[-1])
        with contextlib.suppress(ray.exceptions.ObjectRefStreamEndOfStreamError):
            ray.get(self._next[0])  # of a value that comes alone, which is why the task failed
        return None

    def take(self) -> Any:
        """The ref of the value that `about` was of; the generator goes on."""
        (value, _), self._next = self._next, []
        if _BOTH:
            self.generator._consume_next_ref_n(2)
        else:
            next(self.generator)
        return value

    def _refs(self, count: int) -> list[Any]:
        """The next refs; they are not taken."""
        if _BOTH:
            refs: list[Any] = self.generator._get_next_ref_n(count)
            return refs
        core = self.generator.worker.core_worker
        return [core.peek_object_ref_stream(self.generator._generator_ref)[0]]
