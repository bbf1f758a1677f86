"""Operators that users add to a pipeline, and the stages that run them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from dask_exo.cluster.resources import Resources, fits
from dask_exo.config import Config
from dask_exo.errors import PipelineError
from dask_exo.pipeline.sources import PipelineSource, sum_of
from dask_exo.pipeline.streaming.blocks import StageSpec
from dask_exo.pipeline.streaming.task import StageCode
from dask_exo.pipeline.streaming.transforms import FORMATS, ErrorPolicy, Transform
from dask_exo.validation import number_from

ONE_CPU = {"CPU": 1.0}


@dataclass(frozen=True)
class Step:
    """A transform and its resource request."""

    transform: Transform
    needs: Mapping[str, float]
    concurrency: tuple[int, int | None]

    def joins(self, other: Step) -> bool:
        """Return whether ``other`` can run in the same tasks, after this one.

        Classes have workers of their own, unless both take frames on a device: what one has made
        there need not leave it for the next one.
        """
        alike = (self.needs, self.concurrency) == (other.needs, other.concurrency)
        both = (self.transform, other.transform)
        on_device = all(transform.format == "device" for transform in both)
        return alike and (on_device or not any(transform.stateful for transform in both))


def without_gpus(steps: Sequence[Step]) -> list[Step]:
    """Return steps that request no GPUs, for a cluster on which GPUs are simulated.

    Examples
    --------
    >>> from dask_exo.pipeline.streaming.transforms import Transform
    >>> step = Step(Transform("batches", len), {"GPU": 1.0}, (0, None))
    >>> without_gpus([step])[0].needs
    {'CPU': 1.0}
    """
    rest = [{n: a for n, a in step.needs.items() if n != "GPU"} for step in steps]
    return [replace(step, needs=needs or ONE_CPU) for step, needs in zip(steps, rest, strict=True)]


MAKING = Step(Transform("partitions", None), ONE_CPU, (0, None))
"""Resource request of making a partition."""


def groups(steps: Sequence[Step], *, makes: bool) -> list[list[Step]]:
    """Return steps grouped into stages. If partitions have to be made, one CPU makes them."""
    groups: list[list[Step]] = [[]] if makes else []
    for step in steps:
        last = groups[-1] if groups else None
        if last is None or (last and not last[-1].joins(step)):
            groups.append([step])
        elif last or step.joins(MAKING):
            last.append(step)
        else:
            groups.append([step])
    return groups or [[]]


def stage_of(steps: Sequence[Step]) -> StageSpec:
    """Return the requirements of a stage."""
    if not steps:
        return StageSpec(name_of(steps), ONE_CPU)
    least = max((step.transform.batch_size or 0) for step in steps[:1])
    low, high = steps[0].concurrency
    return StageSpec(name_of(steps), steps[0].needs, least, high, low)


def code_of(
    steps: Sequence[Step], target: int, error_policy: ErrorPolicy, config: Config
) -> StageCode:
    """Return the code of a stage; ``target`` is the bytes of its outputs."""
    transforms = [step.transform for step in steps]
    name, mode = uuid.uuid4().hex, config.nondeterminism
    return StageCode(name, transforms, target, error_policy, config.settings, mode)


def parse_error_policy(retries: Any, on_error: Any) -> ErrorPolicy:
    """Return the policy of users' arguments."""
    number_from(0, "retries", retries, PipelineError)
    if on_error not in ("raise", "skip"):
        raise PipelineError(f"on_error={on_error!r}: need 'raise' or 'skip'")
    return ErrorPolicy(int(retries), on_error == "skip")


def name_of(steps: Sequence[Step]) -> str:
    """Return the name of a stage, for messages."""
    return " > ".join(step.transform.name for step in steps) or "source"


def amounts(steps: Sequence[Step]) -> str:
    """Return the request of a stage as text."""
    needs = steps[0].needs if steps else ONE_CPU
    return ", ".join(f"{amount:g} {name}" for name, amount in needs.items()) or "nothing"


def check_format(name: Any) -> None:
    """Raise `PipelineError` if there is no such format of batches."""
    if name not in FORMATS:
        raise PipelineError(f"format={name!r}: there are {', '.join(FORMATS)}")


def check_needs(
    groups: Sequence[Sequence[Step]],
    total: Resources,
    nodes: Sequence[Resources],
) -> None:
    """Raise `PipelineError` if a task of a stage does not fit any node.

    Parameters
    ----------
    groups : sequence of sequence of Step
        Steps of each stage.
    total : mapping
        Resources of the cluster.
    nodes : sequence of mapping
        Resources of each node.
    """
    for steps in groups:
        needs = steps[0].needs if steps else ONE_CPU
        for name, amount in needs.items():
            if amount > total.get(name, 0):
                raise PipelineError(
                    f"stage {name_of(steps)} needs {amount:g} {name}, the cluster has "
                    f"{total.get(name, 0):g}: add nodes (exo.num-cpus, exo.num-gpus), or request "
                    f"less"
                )
        if not any(fits(node, needs) for node in nodes):
            there = "; ".join(
                ", ".join(f"{node.get(name, 0):g} {name}" for name in needs) for node in nodes[:4]
            )
            raise PipelineError(
                f"stage {name_of(steps)} needs {amounts(steps)} on one node, and no node has that "
                f"({len(nodes)} nodes: {there}{'; …' if len(nodes) > 4 else ''}): add a larger "
                f"node, or request less"
            )


class Chain(Protocol):
    """Steps after a source, which may be a `Union` of chains; see `Pipeline`."""

    @property
    def source(self) -> PipelineSource | Union:
        """Source, or union of pipelines, with which it begins."""
        ...

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps after the source."""
        ...

    @property
    def error_policy(self) -> ErrorPolicy:
        """Reaction to exceptions where partitions are made."""
        ...


class Union:
    """Output of several pipelines."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = tuple(chains)

    @property
    def count(self) -> int | None:
        """Number of partitions of all sources, each once."""
        return sum_of([source.count for source in sources_of(self.chains)])


class Part(NamedTuple):
    """A stage: its steps, and the stages or the source that it takes from."""

    steps: list[Step]
    takes: tuple[int, ...]
    source: PipelineSource | None
    error_policy: ErrorPolicy


def sources_of(chains: Sequence[Chain]) -> list[PipelineSource]:
    """Return all sources, each once, in the order in which they are met."""
    found: dict[int, PipelineSource] = {}
    for chain in chains:
        source = chain.source
        some = sources_of(source.chains) if isinstance(source, Union) else [source]
        found.update({id(one): one for one in some if id(one) not in found})
    return list(found.values())


def planned(
    ends: Sequence[Chain], makes: Callable[[PipelineSource], bool]
) -> tuple[list[Part], list[tuple[int, ...]]]:
    """Return the stages of pipelines that run together; common parts are there once.

    Two have the same beginning where they have been made from the same pipeline. There the stages
    are cut, as each block goes to both.

    Parameters
    ----------
    ends : sequence of Chain
    makes : callable
        Whether a stage has to make the partitions of a source.

    Returns
    -------
    parts : list of Part
        (S,) each after those that it takes from.
    sinks : list of tuple of int
        Stages that give what comes out of each of ``ends``.
    """
    plan = _Plan(ends, makes)
    return plan.parts, [plan.upto(chain, len(chain.steps)) for chain in ends]


Key = tuple[int, ...]
"""Which source, and which steps: the same ones, and not equal ones."""


def _key(chain: Chain, count: int) -> Key:
    return (id(chain.source), *map(id, chain.steps[:count]))


class _Plan:
    def __init__(self, ends: Sequence[Chain], makes: Callable[[PipelineSource], bool]) -> None:
        self.parts: list[Part] = []
        self._makes = makes
        self._found: dict[Key, tuple[int, ...]] = {}
        self._goes_on: defaultdict[Key, set[Any]] = defaultdict(set)
        for number, chain in enumerate(ends):
            self._follow(chain, ("end", number))

    def _follow(self, chain: Chain, end: Any) -> None:
        """Record the successors of each step."""
        for n, step in enumerate(chain.steps):
            self._goes_on[_key(chain, n)].add(id(step))
        self._goes_on[_key(chain, len(chain.steps))].add(end)
        if isinstance(chain.source, Union):
            for number, one in enumerate(chain.source.chains):
                self._follow(one, (id(chain.source), number))

    def upto(self, chain: Chain, count: int) -> tuple[int, ...]:
        """Return the stages that make the output of the first ``count`` steps."""
        key = _key(chain, count)
        if key not in self._found:
            branches = [n for n in range(count) if len(self._goes_on[_key(chain, n)]) > 1]
            source, start = chain.source, max(branches, default=0)
            if branches:
                stages = self._append(chain, chain.steps[start:count], self.upto(chain, start))
            elif isinstance(source, Union):
                takes = [i for one in source.chains for i in self.upto(one, len(one.steps))]
                stages = self._append(chain, chain.steps[:count], tuple(takes))
            else:
                stages = self._append(chain, chain.steps[:count], (), source)
            self._found[key] = stages
        return self._found[key]

    def _append(
        self,
        chain: Chain,
        steps: Sequence[Step],
        takes: tuple[int, ...],
        source: PipelineSource | None = None,
    ) -> tuple[int, ...]:
        """Add stages one after the other."""
        if source is None and not steps:
            return takes
        for some in groups(steps, makes=source is not None and self._makes(source)):
            self.parts.append(Part(some, takes, source, chain.error_policy))
            takes, source = (len(self.parts) - 1,), None
        return takes
