"""Streaming generators of tasks and actors, read as pairs of a value and its metadata.

A generator stops when it is one pair ahead of its reader. The metadata of a value is read without
taking the pair, so the generator continues only when the pair is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import ray
import ray.exceptions

from dask_exo.cluster.on_ray.connection import alive
from dask_exo.cluster.on_ray.ray_errors import lost, translated
from dask_exo.cluster.on_ray.serialization import sealed
from dask_exo.cluster.on_ray.task_attempt import begin
from dask_exo.cluster.on_ray.task_events import activity
from dask_exo.cluster.resources import submit_options
from dask_exo.cluster.task_status import Activity

_BOTH = hasattr(ray.ObjectRefGenerator, "_get_next_ref_n")  # Ray 2.60; before, one at a time
AHEAD = 2 if _BOTH else 1
"""Objects that a generator may be ahead of its reader."""


class PairReader:
    """Reads pairs of objects from a streaming generator.

    Parameters
    ----------
    generator : ray.ObjectRefGenerator
        Stops when `AHEAD` objects have not been taken.
    """

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self._next: list[Any] = []

    @property
    def coming(self) -> Any:
        """Ref that is ready when `about` is, or at the end."""
        if not self._next:
            self._next = self._refs(2 if _BOTH else 1)
        return self._next[-1]

    @property
    def task(self) -> bytes:
        """Id of the task."""
        task: bytes = self.generator._generator_ref.task_id().binary()
        return task

    def about(self) -> Any:
        """Return the metadata of the next value, once `coming` is ready; None at the end."""
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
        """Take the ref of the value that `about` describes; the generator continues."""
        (value, _), self._next = self._next, []
        if _BOTH:
            self.generator._consume_next_ref_n(2)
        else:
            next(self.generator)
        return value

    def _refs(self, count: int) -> list[Any]:
        """Return the next refs without taking them."""
        if _BOTH:
            refs: list[Any] = self.generator._get_next_ref_n(count)
            return refs
        core = self.generator.worker.core_worker
        return [core.peek_object_ref_stream(self.generator._generator_ref)[0]]


def _start(seed: str, fn: Any, *args: Any) -> Iterator[Any]:
    begin("stage", seed)
    for value in fn(*args):
        yield sealed(value)


class _Worker:
    """Actor with an instance of a class."""

    def __init__(self, cls: type, *args: Any) -> None:
        self._instance = cls(*args)

    def run(self, seed: str, *args: Any) -> Iterator[Any]:
        begin("stage", seed)
        for value in self._instance.run(*args):
            yield sealed(value)


_remote_start = ray.remote(_start)
_remote_worker = ray.remote(_Worker)


class RayStreams:
    """See `dask_exo.pipeline.streaming.waist.Streams`."""

    def resources(self) -> dict[str, float]:
        """Return the resources of the whole cluster."""
        found: dict[str, float] = ray.cluster_resources()
        return {name: amount for name, amount in found.items() if not name.startswith("node:")}

    def free(self) -> dict[str, float]:
        """Return the free resources of the whole cluster."""
        found: dict[str, float] = ray.available_resources()
        return found

    def there(self, values: Collection[Any]) -> bool:
        """Return whether all values exist: none is lost, or being recomputed."""
        refs = [value for value in values if isinstance(value, ray.ObjectRef)]
        if not refs:
            return True
        with translated():
            _, lacking = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        return not lacking

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node."""
        return [dict(node["Resources"]) for node in alive()]

    def put(self, value: Any) -> Any:
        """Store a value, unless it is a ref."""
        if isinstance(value, ray.ObjectRef):
            return value
        with translated():
            return ray.put(sealed(value))

    def task(self, fn: Any, *args: Any, needs: Mapping[str, float], seed: str) -> Any:
        """Start a task."""
        with translated():
            task = _remote_start.options(
                **submit_options(needs),
                num_returns="streaming",
                _generator_backpressure_num_objects=AHEAD,
                name=fn.__name__,
            )
            return PairReader(task.remote(seed, fn, *map(sealed, args)))

    def worker(self, cls: type, *args: Any, needs: Mapping[str, float]) -> Any:
        """Start an actor with an instance of a class."""
        with translated():
            return _remote_worker.options(**submit_options(needs)).remote(cls, *map(sealed, args))

    def start(self, worker: Any, *args: Any, seed: str) -> Any:
        """Call the method ``run`` of an actor."""
        with translated():
            call = worker.run.options(
                num_returns="streaming", _generator_backpressure_num_objects=AHEAD
            )
            return PairReader(call.remote(seed, *map(sealed, args)))

    def stop(self, worker: Any) -> None:
        """Stop an actor at once."""
        with contextlib.suppress(Exception):  # it has died
            ray.kill(worker)

    def dismiss(self, worker: Any) -> None:
        """Stop an actor after its calls.

        One whose last value has come may not have ended yet: if its process were killed, that value
        would be lost.
        """
        with contextlib.suppress(Exception):  # it has died
            worker.__ray_terminate__.remote()

    def wait(self, streams: Collection[Any], timeout: float | None) -> list[Any]:
        """Wait until one of the streams has a value; return those that have."""
        coming = {stream.coming: stream for stream in streams}
        with translated():
            done, pending = ray.wait(list(coming), timeout=timeout, fetch_local=False)
            if pending and done:
                more, _ = ray.wait(pending, num_returns=len(pending), timeout=0, fetch_local=False)
                done += more
        return [coming[ref] for ref in done]

    def read(self, stream: Any) -> Any:
        """Return the metadata of the next value; None at the end."""
        with lost():
            return stream.about()

    def take(self, stream: Any) -> Any:
        """Take the ref of that value."""
        with lost():
            return stream.take()

    def cancel(self, streams: Collection[Any]) -> None:
        """Cancel the tasks of streams."""
        for stream in streams:
            with contextlib.suppress(Exception):  # it has ended
                ray.cancel(stream.generator)

    def activity(self, streams: Collection[Any]) -> Activity:
        """Return the status of the tasks of streams."""
        return activity([stream.task for stream in streams])
