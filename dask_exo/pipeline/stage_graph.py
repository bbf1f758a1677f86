"""One graph of stages for pipelines that have parts in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from dask_exo.pipeline.operators import Step, groups
from dask_exo.pipeline.sources import PipelineSource, sum_of
from dask_exo.pipeline.streaming.retries import ErrorPolicy


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
