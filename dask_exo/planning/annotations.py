"""Options of tasks: resources, retries and priorities, by ``dask.annotate`` and keywords."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from dask_exo.cluster.futures import SubmitOptions
from dask_exo.cluster.resources import ONE_CPU, ResourceRequest, combine_requests
from dask_exo.dask_adapter import CoreExpr, GraphNode, Task
from dask_exo.errors import ConfigError
from dask_exo.execution.requests import ResourceBoundFunction

Key = Any

KNOWN = {"num_cpus", "num_gpus", "priority", "ray_remote_args", "resources", "retries"}


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of a task."""

    needs: SubmitOptions = field(default_factory=dict)  # as `Futures.submit` takes them
    retries: int = 0  # after an exception
    priority: float = 0  # a ready task with a higher one runs first
    in_driver: bool = False  # it must run in the driver, because it changes a value there
    request: ResourceRequest | None = None  # of the functions in it; ``needs`` are the same
    device: bool = False  # it requests a GPU only because its partitions are on one

    @property
    def pool(self) -> ResourceRequest | None:
        """Actor pool that it runs on, if any."""
        return self.request if self.request is not None and self.request.on_actors else None

    @property
    def gpus(self) -> float:
        """GPUs that it requests, or share of one."""
        return float(self.needs.get("num_gpus") or 0)


NO_OPTIONS = TaskOptions()


def options_of(
    dsk: Any,
    graph: Mapping[Key, GraphNode],
    shared: Mapping[str, Any],
    gpus: Set[Key] = frozenset(),
    share: float = 1.0,
) -> dict[Key, TaskOptions]:
    """Return the options of each task that has any.

    Annotations around the call and its keywords, ``shared``, hold for all tasks. Resources that a
    function requests by `dask_exo.options` replace those of annotations, whose ``retries`` and
    ``priority`` still hold. Each of the tasks ``gpus``, whose partitions are on a GPU, requests a
    ``share`` of one by default. Warn of annotations that are not supported, or that Dask's own
    optimization has dropped.
    """
    by_task: Mapping[str, Mapping[Key, Any]] = {}
    if isinstance(dsk, CoreExpr):
        by_task = dsk.__dask_annotations__()
        _warn_of_dropped(dsk, by_task)
    unknown = sorted((by_task.keys() | shared.keys()) - KNOWN)
    if unknown:
        warnings.warn(
            f"annotations {unknown} are ignored: dask_exo supports {sorted(KNOWN)}", stacklevel=4
        )
    if not by_task and not shared and not ResourceBoundFunction.used and not gpus:
        return {}
    shared_options = options_from(shared)
    options = {}
    for key, node in graph.items():
        annotations = {name: values[key] for name, values in by_task.items() if key in values}
        own = options_from({**shared, **annotations}) if annotations else shared_options
        if (request := request_of(node)) is not None:
            if request == ONE_CPU:
                own = replace(own, needs={}, request=None)
            else:
                own = replace(own, needs=request.needs, request=request)
        if key in gpus:
            own = _on_gpu(own, share)
        if own != NO_OPTIONS:
            options[key] = own
    return options


def _on_gpu(options: TaskOptions, share: float) -> TaskOptions:
    """Add a request for an actor with a share of a GPU, unless it requests GPUs itself."""
    needs = options.needs
    amounts = {"CPU": needs.get("num_cpus", 0), **(needs.get("resources") or {})}
    amounts["GPU"] = needs.get("num_gpus") or share
    gpu_request = ResourceRequest(
        tuple(sorted((n, float(a)) for n, a in amounts.items() if a)), on_actors=True
    )
    request = (
        gpu_request if options.request is None else combine_requests([options.request, gpu_request])
    )
    return replace(options, needs={**needs, **request.needs}, request=request, device=True)


def request_of(node: object) -> ResourceRequest | None:
    """Return the request of the functions that a task calls, if they have one."""
    if not ResourceBoundFunction.used:
        return None
    requests = [function.request for function in bound_functions(node)]
    return combine_requests(requests) if requests else None


def bound_functions(value: object) -> Iterator[ResourceBoundFunction]:
    """Yield wrapped functions in a task: its function, and those among its arguments."""
    if isinstance(value, ResourceBoundFunction):
        yield value
    elif isinstance(value, (functools.partial, Task)):
        keywords = value.kwargs if isinstance(value, Task) else value.keywords
        for inner in (value.func, *value.args, *keywords.values()):
            yield from bound_functions(inner)


def options_from(annotations: Mapping[str, Any]) -> TaskOptions:
    """Return the options that a task's annotations set."""
    needs: dict[str, Any] = {}
    resources = dict(annotations.get("resources") or {})
    for name, option in (("CPU", "num_cpus"), ("GPU", "num_gpus"), ("MEMORY", "memory")):
        if name in resources:
            needs[option] = resources.pop(name)
    if resources:
        needs["resources"] = resources
    needs.update({n: annotations[n] for n in ("num_cpus", "num_gpus") if n in annotations})
    ray_options = annotations.get("ray_remote_args") or {}
    if not isinstance(ray_options, Mapping):
        raise ConfigError(
            f"ray_remote_args={ray_options!r} is not a dictionary of Ray's task options: need for "
            f"example {{'num_cpus': 2}}"
        )
    needs.update(ray_options)
    return TaskOptions(needs, annotations.get("retries", 0), annotations.get("priority", 0))


def _warn_of_dropped(dsk: CoreExpr, by_task: Mapping[str, Any]) -> None:
    """Warn of annotations that Dask's optimization of bags and legacy arrays has dropped."""
    names = {
        name
        for expr in dsk.walk()
        if hasattr(type(expr), "hlg")  # not of the object: a dataframe would look for a column
        for layer in getattr(expr.hlg, "layers", {}).values()
        for name in layer.annotations or ()
    }
    dropped = sorted(name for name in names if not by_task.get(name))
    if dropped:
        warnings.warn(
            f"Dask's optimization has dropped the annotations {dropped} of this collection: "
            f"compute it with optimize_graph=False, or put dask.annotate around the call of "
            f"compute()",
            stacklevel=5,
        )
