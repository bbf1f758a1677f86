"""Which stages take what others give: a pipeline is a graph of stages, without cycles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dask_exo.pipeline.streaming.types import Stage

To = tuple[int, tuple[int, ...]]
"""Number of a stage or an end; and which of its inputs, if it has several: that becomes part of the
place of what it takes, or the same could come by two ways.
"""


class Links(NamedTuple):
    """Around one stage.

    Attributes
    ----------
    before : tuple of int
        Stages whose outputs it takes; none of a source.
    after : tuple of To
        Stages that take its outputs.
    sinks : tuple of To
        Ends of the pipeline at which they come out.
    later : tuple of int
        All stages that something of its outputs comes to.
    """

    before: tuple[int, ...]
    after: tuple[To, ...]
    sinks: tuple[To, ...]
    later: tuple[int, ...]

    @property
    def takers(self) -> int:
        """How many take each output."""
        return len(self.after) + len(self.sinks)


def links(stages: Sequence[Stage], sinks: Sequence[Sequence[int]] | None = None) -> list[Links]:
    """The links of each stage.

    Parameters
    ----------
    stages : sequence of Stage
        (S,) each after those whose outputs it takes.
    sinks : sequence of sequence of int, optional
        For each end of the pipeline the stages whose outputs come out there; by default one, of the
        last stage.

    Examples
    --------
    >>> left, right, both = (Stage("", {}, takes=some) for some in [(0,), (0,), (1, 2)])
    >>> of = links([Stage("read", {}), left, right, both])
    >>> of[0].after, of[0].later, of[2].after
    (((1, ()), (2, ())), (1, 2, 3), ((3, (1,)),))
    """
    before = [_before(i, stage) for i, stage in enumerate(stages)]
    later: list[tuple[int, ...]] = [() for _ in stages]
    for i in reversed(range(len(stages))):
        for k in before[i]:
            later[k] = tuple(sorted({*later[k], i, *later[i]}))
    ends = [(len(stages) - 1,)] if sinks is None else sinks
    return [
        Links(before[i], _takers(before, i), _takers(ends, i), later[i]) for i in range(len(stages))
    ]


def _takers(of: Sequence[Sequence[int]], i: int) -> tuple[To, ...]:
    """Those that take from ``i``, of several and what each of them takes from."""
    return tuple(
        (k, (n,) if len(some) > 1 else ())
        for k, some in enumerate(of)
        for n, b in enumerate(some)
        if b == i
    )


def _before(i: int, stage: Stage) -> tuple[int, ...]:
    if stage.takes is not None:
        return stage.takes
    return (i - 1,) if i else ()
