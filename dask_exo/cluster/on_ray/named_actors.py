"""Objects that all processes of one program share by name: Ray's actors."""

from __future__ import annotations

import contextlib
from typing import Any

import ray
import ray.exceptions

from dask_exo.cluster.on_ray.ray_errors import translated
from dask_exo.errors import ClusterError, WorkerLostError

MOST_CALLS = 10_000  # that wait at the same time


class Service:
    """An object in a process of its own, which takes no slot; see `service`."""

    def __init__(self, name: str, cls: type, args: tuple[Any, ...]) -> None:
        self._name, self._cls, self._args = name, cls, args

    def start(self) -> Any:
        """Make sure that it exists.

        Raises
        ------
        ClusterError
            This process is not connected to Ray.
        """
        if not ray.is_initialized():  # else Ray would start a cluster by itself
            raise ClusterError(
                f"{self._name} needs a Ray cluster: create a dask_exo.Client, or call "
                f"dask_exo.enable(), before"
            )
        context = ray.get_runtime_context()
        place = (context.gcs_address, context.get_job_id(), self._name)
        if place not in _handles:
            # of this program only; it ends with it, or with the task that was the first to ask
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
        """Call a method and wait for what it returns; meanwhile a task gives its slot away.

        Raises
        ------
        TimeoutError
            It has not returned after ``timeout`` seconds.
        WorkerLostError
            The process of the object has died, with all that it held. The next call starts anew.
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
                f"the process that keeps {self._name} has died, and what it held is lost: create "
                f"a new one"
            ) from error
        except KeyboardInterrupt:
            _cancel(ref)
            raise


_handles: dict[tuple[str, str, str], Any] = {}


def service(name: str, cls: type, *args: Any) -> Service:
    """An object that all processes of this program share.

    Parameters
    ----------
    name : str
    cls : type
        Its methods are coroutines; calls of many processes run at the same time.
    *args
        Of ``cls``, where the object does not exist yet.
    """
    return Service(name, cls, args)


def _cancel(ref: Any) -> None:
    with contextlib.suppress(Exception):  # finished or gone
        ray.cancel(ref)
