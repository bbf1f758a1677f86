"""Operators that users add to a pipeline, and the graph of stages that runs them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_exo import events
from dask_exo.cluster.resources import Amounts, Resources, fits, resources_of
from dask_exo.config import Config
from dask_exo.errors import PipelineError
from dask_exo.pipeline.sources import PipelineSource, sum_of
from dask_exo.pipeline.streaming.blocks import StageSpec
from dask_exo.pipeline.streaming.task import StageCode
from dask_exo.pipeline.streaming.transforms import FORMATS, ErrorPolicy, Transform
from dask_exo.validation import concurrency, number_from

if TYPE_CHECKING:
    from dask_exo.pipeline.api import Pipeline

ONE_CPU = {"CPU": 1.0}


@dataclass(frozen=True)
class Operator:
    """A transform, its resource request, and how many of its calls run at least and at most."""

    transform: Transform
    request: Mapping[str, float]
    concurrency: tuple[int, int | None]

    def joins(self, other: Operator) -> bool:
        """Return whether ``other`` can run in the same tasks, after this one.

        Classes have actors of their own, unless both operators take frames on a device: then the
        output of one can stay there for the next one.
        """
        if (self.request, self.concurrency) != (other.request, other.concurrency):
            return False
        both = (self.transform, other.transform)
        on_device = all(transform.format == "device" for transform in both)
        return on_device or not any(transform.stateful for transform in both)


def make_operator(
    kind: str,
    func: Any,
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    default: ErrorPolicy,
    batch_size: int | None = None,
) -> Operator:
    """Return the operator of a user's arguments; ``options`` also has those of ``func``."""
    if not callable(func):
        raise PipelineError(f"{func!r} cannot be called: need a function or a class")
    kwargs = dict(options)
    batch_format = kwargs.pop("format", "pandas")
    check_format(batch_format)
    if batch_format == "device":
        kwargs.setdefault("num_gpus", Config.current().gpu_per_task)
    names = ("num_cpus", "num_gpus", "resources")
    request = resources_of({name: kwargs.pop(name) for name in names if name in kwargs})
    bounds = concurrency(kwargs.pop("concurrency", None), PipelineError)
    error_policy = parse_error_policy(
        kwargs.pop("retries", default.retries),
        kwargs.pop("on_error", "skip" if default.skip else "raise"),
    )
    transform = Transform(kind, func, args, kwargs, batch_size, batch_format, error_policy)
    return Operator(transform, request, bounds)


def parse_error_policy(retries: Any, on_error: Any) -> ErrorPolicy:
    """Return the policy of users' arguments."""
    number_from(0, "retries", retries, PipelineError)
    if on_error not in ("raise", "skip"):
        raise PipelineError(f"on_error={on_error!r}: need 'raise' or 'skip'")
    return ErrorPolicy(int(retries), on_error == "skip")


def check_format(name: Any) -> None:
    """Raise `PipelineError` if there is no such format of batches."""
    if name not in FORMATS:
        raise PipelineError(f"format={name!r}: there are {', '.join(FORMATS)}")


def check_batch_size(rows: int | None) -> None:
    """Raise `PipelineError` if a size of batches is given and is not a positive number."""
    if rows is not None:
        number_from(1, "batch_size", rows, PipelineError)


def without_gpus(steps: Sequence[Operator]) -> list[Operator]:
    """Return steps that request no GPUs, for a cluster on which GPUs are simulated.

    Examples
    --------
    >>> from dask_exo.pipeline.streaming.transforms import Transform
    >>> step = Operator(Transform("batches", len), {"GPU": 1.0}, (0, None))
    >>> without_gpus([step])[0].request
    {'CPU': 1.0}
    """
    requests = [{n: a for n, a in step.request.items() if n != "GPU"} for step in steps]
    pairs = zip(steps, requests, strict=True)
    return [replace(step, request=request or ONE_CPU) for step, request in pairs]


MAKING = Operator(Transform("partitions", None), ONE_CPU, (0, None))
"""Resource request of making a partition."""


def groups(steps: Sequence[Operator], *, makes: bool) -> list[list[Operator]]:
    """Return steps grouped into stages. If partitions have to be made, one CPU makes them."""
    groups: list[list[Operator]] = [[]] if makes else []
    for step in steps:
        last = (groups[-1] or [MAKING])[-1] if groups else None
        if last is not None and last.joins(step):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups or [[]]


def stage_of(stage: PlannedStage) -> StageSpec:
    """Return the requirements of a stage."""
    first = stage.steps[0] if stage.steps else MAKING
    rows, (low, high) = first.transform.batch_size or 0, first.concurrency
    transforms = [step.transform for step in stage.steps]
    writes = any(transform.kind == "write" for transform in transforms)
    apart = any(t.error_policy.skip or t.kind == "partitions" for t in transforms)
    name = name_of(stage.steps)
    return StageSpec(name, first.request, rows, high, low, stage.takes, writes, apart)


def code_of(
    steps: Sequence[Operator], target: int, error_policy: ErrorPolicy, config: Config
) -> StageCode:
    """Return the code of a stage; ``target`` is the bytes of its outputs."""
    transforms = [step.transform for step in steps]
    name, mode = uuid.uuid4().hex, config.nondeterminism
    settings, sampled = config.settings, events.listening()
    return StageCode(name, transforms, target, error_policy, settings, mode, sampled)


def name_of(steps: Sequence[Operator]) -> str:
    """Return the name of a stage, for messages."""
    return " > ".join(step.transform.name for step in steps) or "source"


def request_of(steps: Sequence[Operator]) -> Resources:
    """Return the resources that a task of a stage requests."""
    return steps[0].request if steps else ONE_CPU


def amounts(steps: Sequence[Operator]) -> str:
    """Return the request of a stage as text."""
    request = request_of(steps)
    return ", ".join(f"{amount:g} {name}" for name, amount in request.items()) or "nothing"


def requests_of(groups: Iterable[Sequence[Operator]]) -> list[Amounts]:
    """Return the different requests of stages, which are given by their steps."""
    requests = map(request_of, groups)
    return list(dict.fromkeys(tuple(sorted(request.items())) for request in requests))


def check_requests(
    groups: Sequence[Sequence[Operator]], total: Resources, nodes: Sequence[Resources]
) -> None:
    """Raise `PipelineError` if a task of a stage, given by its steps, does not fit any node."""
    for steps in groups:
        request = request_of(steps)
        for name, amount in request.items():
            if amount > total.get(name, 0):
                raise PipelineError(
                    f"stage {name_of(steps)} needs {amount:g} {name}, the cluster has "
                    f"{total.get(name, 0):g}: add nodes (exo.num-cpus, exo.num-gpus), or request "
                    f"less"
                )
        if not any(fits(node, request) for node in nodes):
            capacities = "; ".join(
                ", ".join(f"{node.get(name, 0):g} {name}" for name in request) for node in nodes[:4]
            )
            raise PipelineError(
                f"stage {name_of(steps)} needs {amounts(steps)} on one node, and no node has that "
                f"({len(nodes)} nodes: {capacities}{'; …' if len(nodes) > 4 else ''}): add a "
                f"larger node, or request less"
            )


class Union:
    """Output of several pipelines."""

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        self.pipelines: tuple[Pipeline, ...] = tuple(pipelines)

    @property
    def count(self) -> int | None:
        """Number of partitions of all sources, each once."""
        return sum_of([source.count for source in sources_of(self.pipelines)])


class PlannedStage(NamedTuple):
    """A stage: its operators, and the stages or the source that it takes from."""

    steps: list[Operator]
    takes: tuple[int, ...]
    source: PipelineSource | None
    error_policy: ErrorPolicy


def sources_of(pipelines: Sequence[Pipeline]) -> list[PipelineSource]:
    """Return all sources, each once."""
    sources: dict[int, PipelineSource] = {}
    for pipeline in pipelines:
        source = pipeline.source
        leaves = sources_of(source.pipelines) if isinstance(source, Union) else [source]
        for leaf in leaves:
            sources.setdefault(id(leaf), leaf)
    return list(sources.values())


def planned(
    ends: Sequence[Pipeline], makes: Callable[[PipelineSource], bool]
) -> tuple[list[PlannedStage], list[tuple[int, ...]]]:
    """Return the stages of pipelines that run together, and those that make the output of each.

    Each stage comes after those that it takes from. Pipelines that were made from the same one have
    its stages in common. Stages are cut where pipelines part, since each block goes to both.
    ``makes`` returns whether a stage has to make the partitions of a source.
    """
    planner = _Plan(ends, makes)
    return planner.stages, [planner.upto(end, len(end.steps)) for end in ends]


Key = tuple[int, ...]
"""Identities of a source, and of steps after it."""


def _key(pipeline: Pipeline, count: int) -> Key:
    return (id(pipeline.source), *map(id, pipeline.steps[:count]))


class _Plan:
    def __init__(self, ends: Sequence[Pipeline], makes: Callable[[PipelineSource], bool]) -> None:
        self.stages: list[PlannedStage] = []
        self._makes = makes
        self._last_stages: dict[Key, tuple[int, ...]] = {}
        self._successors: defaultdict[Key, set[Any]] = defaultdict(set)
        for number, end in enumerate(ends):
            self._follow(end, ("end", number))

    def _follow(self, pipeline: Pipeline, end: Any) -> None:
        """Record the successors of each step."""
        for n, step in enumerate(pipeline.steps):
            self._successors[_key(pipeline, n)].add(id(step))
        self._successors[_key(pipeline, len(pipeline.steps))].add(end)
        if isinstance(pipeline.source, Union):
            for number, branch in enumerate(pipeline.source.pipelines):
                self._follow(branch, (id(pipeline.source), number))

    def upto(self, pipeline: Pipeline, count: int) -> tuple[int, ...]:
        """Return the stages that make the output of the first ``count`` steps."""
        key = _key(pipeline, count)
        if key not in self._last_stages:
            self._last_stages[key] = self._append_upto(pipeline, count)
        return self._last_stages[key]

    def _append_upto(self, pipeline: Pipeline, count: int) -> tuple[int, ...]:
        branches = [n for n in range(count) if len(self._successors[_key(pipeline, n)]) > 1]
        if branches:
            start = branches[-1]
            before = self.upto(pipeline, start)
            return self._append(pipeline, pipeline.steps[start:count], before)
        source, steps = pipeline.source, pipeline.steps[:count]
        if isinstance(source, Union):
            takes = [i for branch in source.pipelines for i in self.upto(branch, len(branch.steps))]
            return self._append(pipeline, steps, tuple(takes))
        return self._append(pipeline, steps, (), source)

    def _append(
        self,
        pipeline: Pipeline,
        steps: Sequence[Operator],
        takes: tuple[int, ...],
        source: PipelineSource | None = None,
    ) -> tuple[int, ...]:
        """Add stages one after the other; return the last."""
        if source is None and not steps:
            return takes
        for group in groups(steps, makes=source is not None and self._makes(source)):
            self.stages.append(PlannedStage(group, takes, source, pipeline.error_policy))
            takes, source = (len(self.stages) - 1,), None
        return takes
