"""Shuffles of any parts and any blocks by any algorithm, also for programs without Dask.

>>> from dask_exo.testing import InlineFutures
>>> def by_length(words):
...     return [[w for w in words if len(w) % 2 == r] for r in range(2)]
>>> def join(*lists):
...     return sorted(sum(lists, []))
>>> f = InlineFutures()
>>> out = run([["a", "bb"], ["cc", "d"]], Program(2, by_length, join), futures=f)
>>> f.get(out)
[['bb', 'cc'], ['a', 'd']]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_exo.cluster.futures import Futures, Node, Ref, default
from dask_exo.cluster.waiting import Watchdog, drive
from dask_exo.config import Config
from dask_exo.errors import ShuffleArgumentError
from dask_exo.partitions.kernels.kway_merge import merge_runs
from dask_exo.shuffle import algorithms
from dask_exo.shuffle.algorithms import names, register
from dask_exo.shuffle.algorithms.streaming import ReducerStates
from dask_exo.shuffle.blocks import Pickled, merge, pickled
from dask_exo.shuffle.map_stage import MapStage, Refs
from dask_exo.shuffle.run_shuffle import limits_of, run_shuffle
from dask_exo.shuffle.spec import Receipt, ReducerInput, Spec, tally

__all__ = ["PartialResult", "Program", "merge_runs", "names", "register", "run", "stream"]


@dataclass(frozen=True)
class Program:
    """Functions that a shuffle applies to data.

    Attributes
    ----------
    reducers : int
        R.
    map : callable
        ``map(part)`` returns (R,) blocks: any values that can be pickled. Arrays and frames in them
        are not copied.
    reduce : callable
        ``reduce(*blocks)`` returns an output; blocks are in the order of the parts.
    combine : callable, optional
        ``combine(*blocks)`` returns one block, for algorithms that merge. It must be associative.
        By default merged blocks stay separate, in lists.
    """

    reducers: int
    map: Callable[[Any], Sequence[Any]]
    reduce: Callable[..., Any]
    combine: Callable[..., Any] | None = None

    def cut(self, owned: Sequence[range], *parts: Any) -> list[Any]:
        """Map parts; see `Spec`."""
        start = time.perf_counter()
        lists: list[list[Any]] = [[] for _ in range(self.reducers)]
        for part in parts:
            blocks = self.map(part)
            if len(blocks) != self.reducers:
                raise ValueError(
                    f"map returned {len(blocks)} blocks; there are {self.reducers} reducers"
                )
            for collected, block in zip(lists, blocks, strict=True):
                collected.append(block)
        packed = pickled(lists, owned)
        sent = tally(np.array([len(collected) for collected in lists]))
        sizes = tuple(block.nbytes for block in packed)
        return [*packed, Receipt(sent, sum(sizes), time.perf_counter() - start, sizes=sizes)]

    def merge(self, slots: Sequence[range], *packed: Pickled) -> Iterator[Any]:
        """Combine blocks; see `Spec`."""
        if self.combine is None:
            yield from merge(slots, *packed)
            return
        for reducers in slots:
            blocks = {slot: [self.combine(*_values(packed, slot))] for slot in reducers}
            yield from pickled(blocks, [reducers])

    def on(self, nodes: Sequence[Node]) -> Spec:
        """Return the shuffle of this program on the given nodes."""
        return Spec(
            self.reducers, tuple(nodes), self.cut, self.merge, combines=self.combine is not None
        )

    def output(self, slot: int, *packed: Pickled) -> Any:
        """Reduce the blocks of reducer ``slot``."""
        return self.reduce(*_values(packed, slot))


def run(
    parts: Sequence[Any],
    program: Program,
    algorithm: str = "auto",
    *,
    futures: Futures | None = None,
) -> list[Ref]:
    """Shuffle parts, and return (R,) refs of the outputs while the reducers still run.

    Parameters
    ----------
    parts : (M,)
        Values, or refs of them (on Ray an ``ObjectRef``).
    program : Program
    algorithm : str
        One of `names`, or ``'auto'``: by the measured size of the first maps.
    futures : Futures, optional
        The cluster; by default the one that runs Dask's code. It is started if necessary.
    """
    algorithms.check(algorithm)
    if not parts:
        raise ValueError("there are no parts to shuffle")
    futures = futures or default()
    limits = replace(limits_of(Config.current()), algorithm=algorithm)
    spec = program.on(futures.nodes())
    watchdog = Watchdog(futures, Config.current().stall_timeout)
    shuffled = drive(futures, run_shuffle(futures, Refs(parts), spec, limits), watchdog.wait)
    return _outputs(futures, program, shuffled.inputs)


@dataclass(frozen=True)
class PartialResult:
    """Result of a shuffle after some of its parts: (R,) refs of the outputs for those parts.

    ``share`` is that of all parts, up to 1.
    """

    outputs: list[Ref]
    parts: int
    share: float


def stream(
    parts: Sequence[Any],
    program: Program,
    *,
    every: int | None = None,
    futures: Futures | None = None,
) -> Iterator[PartialResult]:
    """Shuffle parts by `streaming`, and yield the outputs so far after each round.

    The first maps of the next round run at the same time. If the program can ``combine``, a reducer
    holds one combined block, and a late round costs no more than an early one.

    Parameters
    ----------
    parts, program, futures
        See `run`; the parts are mapped in this order.
    every : int, optional
        Parts of a round; by default a twentieth of all.

    Yields
    ------
    PartialResult
        The last one covers all parts: its outputs equal those of `run`.

    Examples
    --------
    >>> from dask_exo.testing import InlineFutures
    >>> count = Program(1, lambda word: [len(word)], lambda *n: sum(n), combine=lambda *n: sum(n))
    >>> words = ["to", "be", "or", "not", "to", "be"]
    >>> f = InlineFutures()
    >>> [f.get(seen.outputs) for seen in stream(words, count, every=2, futures=f)]
    [[4], [9], [13]]
    """
    if not parts:
        raise ValueError("there are no parts to shuffle")
    every = max(1, len(parts) // 20) if every is None else every
    if every < 1:
        raise ShuffleArgumentError(f"every={every!r}: need a number of parts, from 1 on")
    return _stream(parts, program, every, futures or default())


def _stream(
    parts: Sequence[Any], program: Program, every: int, futures: Futures
) -> Iterator[PartialResult]:
    limits, spec = limits_of(Config.current()), program.on(futures.nodes())
    window = spec.slots * limits.tasks_per_slot
    maps = MapStage(futures, Refs(parts), spec, window=window, target=limits.bundle_target)
    # enough states to give every slot some to read
    states = ReducerStates(futures, maps, spec, -(-spec.reducers // (4 * spec.slots)))
    wait = Watchdog(futures, Config.current().stall_timeout).wait
    for stop in range(every, len(parts) + every, every):
        count = min(stop, len(parts))
        outputs = _outputs(futures, program, drive(futures, states.round(every), wait))
        drive(futures, states.start_maps(min(every, spec.slots)) if maps else states.finish(), wait)
        yield PartialResult(outputs, count, count / len(parts))


def _outputs(futures: Futures, program: Program, inputs: Sequence[ReducerInput]) -> list[Ref]:
    return [
        futures.submit(program.output, blocks.slot, *blocks.refs, node=blocks.node)
        for blocks in inputs
    ]


def _values(packed: Sequence[Pickled], slot: int) -> list[Any]:
    return [value for blocks in packed for value in blocks.block(slot)]
