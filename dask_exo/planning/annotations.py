"""Options of tasks: resources, retries and priorities, by ``dask.annotate`` and keywords."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from dask_exo.cluster.futures import SubmitOptions
from dask_exo.cluster.resources import ONE_CPU, ResourceRequest, combine_requests
from dask_exo.dask_adapter import CoreExpr, GraphNode, Task
from dask_exo.errors import ConfigError
from dask_exo.execution.requests import ResourceBoundFunction

Key = Any

SEMANTICS = {"checkpoint", "deterministic", "external", "rollback"}
KNOWN = {"num_cpus", "num_gpus", "priority", "ray_remote_args", "resources", "retries", *SEMANTICS}


@dataclass(frozen=True, slots=True)
class Rollback:
    """Annotation ``rollback`` of a task: a function that removes its external output.

    The function gets the arguments of the task, and may be called several times. It is wrapped,
    because Dask calls functions in annotations with the keys of tasks.

    Examples
    --------
    >>> import dask
    >>> def refund(account, amount): ...
    >>> with dask.annotate(rollback=Rollback(refund)):
    ...     paid = dask.delayed(lambda account, amount: amount)("a", 5)
    """

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Semantics:
    """Properties of a task that recovery depends on; see `dask_exo.planning.workflow`."""

    deterministic: bool = True  # running again, it returns an equal value
    checkpoint: bool = False  # its value is stored
    external: bool = False  # it has an output outside of the graph; running again adds none
    rollback: Rollback | None = None  # removes this output

    @property
    def has_output(self) -> bool:
        """True if it has an external output."""
        return self.external or self.rollback is not None

    @property
    def may_change(self) -> bool:
        """True if running again changes its value, or removes its external output meanwhile."""
        return not self.deterministic or self.rollback is not None

    @property
    def is_stored(self) -> bool:
        """True if its value, or its beginning, is stored."""
        return self.checkpoint or self.rollback is not None


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of a task."""

    needs: SubmitOptions = field(default_factory=dict)  # as `Futures.submit` takes them
    retries: int = 0  # after an exception
    priority: float = 0  # a ready task with a higher one runs first
    in_driver: bool = False  # it must run in the driver, because it changes a value there
    request: ResourceRequest | None = None  # of the functions in it; ``needs`` are the same
    device: bool = False  # it requests a GPU only because its partitions are on one
    compares: bool = False  # before it runs, digests of values of tasks that ran again

    @property
    def pool(self) -> ResourceRequest | None:
        """Actor pool that it runs on, if any."""
        return self.request if self.request is not None and self.request.on_actors else None

    @property
    def gpus(self) -> float:
        """GPUs that it requests, or share of one."""
        return float(self.needs.get("num_gpus") or 0)


NO_OPTIONS = TaskOptions()


def annotations_of(dsk: Any) -> Mapping[str, Mapping[Key, Any]]:
    """Return the annotations of each task, by name and key.

    Warn of annotations that Dask's own optimization has dropped.
    """
    if not isinstance(dsk, CoreExpr):
        return {}
    by_task: Mapping[str, Mapping[Key, Any]] = dsk.__dask_annotations__()
    _warn_of_dropped(dsk, by_task)
    return by_task


def semantics_of(
    by_task: Mapping[str, Mapping[Key, Any]],
    graph: Mapping[Key, GraphNode],
    shared: Mapping[str, Any],
) -> dict[Key, Semantics]:
    """Return the semantics of annotated tasks; annotations ``shared`` hold for all tasks."""
    if SEMANTICS.isdisjoint([*by_task, *shared]):
        return {}
    semantics = {}
    for key in graph:
        own = {name: by_task[name][key] for name in SEMANTICS if key in by_task.get(name, ())}
        given = {name: value for name, value in {**shared, **own}.items() if name in SEMANTICS}
        if given:
            semantics[key] = _checked(key, Semantics(**given))
    return semantics


def _checked(key: Key, semantics: Semantics) -> Semantics:
    flags = semantics.deterministic, semantics.checkpoint, semantics.external
    if not all(isinstance(flag, bool) for flag in flags):
        raise ConfigError(
            f"annotations of {key!r}: deterministic, checkpoint and external are {flags}: give "
            f"each as True or False"
        )
    if not isinstance(semantics.rollback, Rollback | None):
        raise ConfigError(
            f"annotations of {key!r}: rollback={semantics.rollback!r} is no dask_exo.Rollback: "
            f"give dask_exo.Rollback(function), since Dask calls functions in annotations with keys"
        )
    return semantics


def options_of(
    by_task: Mapping[str, Mapping[Key, Any]],
    graph: Mapping[Key, GraphNode],
    shared: Mapping[str, Any],
    gpus: Set[Key] = frozenset(),
    share: float = 1.0,
) -> dict[Key, TaskOptions]:
    """Return the options of each task that has any.

    Annotations around the call and its keywords, ``shared``, hold for all tasks. Resources that a
    function requests by `dask_exo.options` replace those of annotations, whose ``retries`` and
    ``priority`` still hold. Each of the tasks ``gpus``, whose partitions are on a GPU, requests a
    ``share`` of one by default. Warn of annotations that are not supported.
    """
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
