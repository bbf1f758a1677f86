"""Named actors that all processes of a program share, and counters for Prometheus."""

from __future__ import annotations

import contextlib
from functools import lru_cache
from typing import Any

import ray
import ray.exceptions
from ray.util import metrics

from dask_exo import events
from dask_exo.cluster.on_ray.translation import translated
from dask_exo.errors import ClusterError, WorkerLostError

MOST_CALLS = 10_000  # that run or wait at the same time


def on_head(name: str, namespace: str) -> dict[str, Any]:
    """Return the options of an actor on the head node that outlives its program."""
    return {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "num_cpus": 0,
        "resources": {"node:__internal_head__": 0.001},
    }


class Service:
    """An object of a class that all processes of this program share, in an actor without a slot.

    Methods of ``cls`` are coroutines; calls run concurrently. ``args`` are used if the object does
    not exist yet.
    """

    def __init__(self, name: str, cls: type, *args: Any) -> None:
        self._name, self._cls, self._args = name, cls, args

    def start(self) -> Any:
        """Start the actor unless it exists."""
        if not ray.is_initialized():  # else Ray would start a cluster by itself
            raise ClusterError(
                f"{self._name} needs a Ray cluster: create a dask_exo.Client, or call "
                f"dask_exo.enable(), first"
            )
        context = ray.get_runtime_context()
        place = (context.gcs_address, context.get_job_id(), self._name)
        if place not in _handles:
            # for this program; it ends with the program, or with the task that started it
            options = {
                "name": self._name,
                "namespace": f"dask_exo-{context.get_job_id()}",
                "get_if_exists": True,
                "num_cpus": 0,
                "max_concurrency": MOST_CALLS,
            }
            with translated():
                _handles[place] = ray.remote(self._cls).options(**options).remote(*self._args)
        return _handles[place]

    def call(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        """Call a method and wait for its result; a calling task releases its slot meanwhile.

        Raises
        ------
        TimeoutError
            The method has not returned after ``timeout`` seconds.
        WorkerLostError
            The actor has died with its state. The next call starts a new one.
        """
        ref = getattr(self.start(), method).remote(*args)
        try:
            with translated():
                return ray.get(ref, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            _cancel(ref)
            raise TimeoutError(f"{self._name}.{method} has not returned in {timeout} s") from None
        except ray.exceptions.RayActorError as error:
            _handles.clear()
            raise WorkerLostError(
                f"the actor of {self._name} has died with its state: create a new one"
            ) from error
        except KeyboardInterrupt:
            _cancel(ref)
            raise


_handles: dict[tuple[str, str, str], Any] = {}


def _cancel(ref: Any) -> None:
    with contextlib.suppress(Exception):  # finished or gone
        ray.cancel(ref)


_exporting = False


def export(*, on: bool) -> None:
    """Start or stop counting events."""
    global _exporting  # noqa: PLW0603  there is one connection to Ray, and it has one such switch
    if on and not _exporting:
        _subscribe()
    _exporting = on


@lru_cache(1)
def _subscribe() -> None:
    events.subscribe(_count)


@lru_cache(20)
def _counter(name: str, description: str, tags: tuple[str, ...] = ()) -> metrics.Counter:
    return metrics.Counter(f"dask_exo_{name}", description=description, tag_keys=tags)


def _count(event: events.Event) -> None:
    if not _exporting:
        return
    if isinstance(event, events.TasksFinished):
        _add("tasks_total", "Tasks of graphs, and parts of shuffles.", event.count)
        _add("task_seconds_total", "Seconds of their work.", event.seconds)
    elif isinstance(event, events.ShuffleFinished):
        tags = {"algorithm": event.algorithm}
        _add("shuffles_total", "Shuffles finished.", 1, tags)
        _add("shuffled_bytes_total", "Bytes that maps of shuffles made.", event.nbytes, tags)
    elif isinstance(event, events.RunFinished):
        _add("runs_total", "Computations.", 1, {"failed": str(event.failed).lower()})
        _add("spilled_bytes_total", "Bytes spilled while computations ran.", event.spilled)
        _add("restored_bytes_total", "Bytes read back meanwhile.", event.restored)
    elif isinstance(event, events.Recovered):
        _count_recovered(event.what, event.count)
    elif isinstance(event, events.CallsRepeated):
        _count_recovered("made again, since it was lost", sum(event.groups.values()))
    elif isinstance(event, events.GaveWay):
        _count_recovered("with fewer neighbours, as memory ran out", 1)


def _count_recovered(what: str, count: int) -> None:
    _add("recovered_total", "Work that was repeated.", count, {"what": what})


def _add(name: str, description: str, amount: float, tags: dict[str, str] | None = None) -> None:
    """Add to a counter; Ray refuses to add zero."""
    if amount > 0:
        _counter(name, description, tuple(tags or ())).inc(amount, tags or {})
