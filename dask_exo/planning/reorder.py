"""Expressions that reorder rows over all partitions: sort and random shuffle.

A sort passes over its input once. Each partition is sorted to a run, range bounds are chosen from
samples of all runs, and each row gets the number of its output. Each output of the shuffle is
sorted again, which is fast because it consists of sorted runs.

A random shuffle draws the output of each row from a generator that is seeded by the partition and
the seed, and permutes each output. So the same seed gives the same order on any scheduler.

Nothing is computed before the graph runs. The shuffle is Dask's own, so that any scheduler can run
it; `dask_exo.planning.rewrite` makes an Exoshuffle of it.

References: Exoshuffle section 3.3.3.2, figure 3.2d (random shuffle).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.dataframe.utils import has_known_categories

from dask_exo.dask_adapter import (
    Alias,
    CoreExpr,
    Expr,
    Projection,
    Shuffle,
    Task,
    TaskRef,
    determine_column_projection,
    new_collection,
)
from dask_exo.partitions import protocol
from dask_exo.partitions.kernels import range_partition, sort_keys
from dask_exo.partitions.kernels.range_partition import RangeBounds
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.protocol import PARTITION_COLUMN


class PartitionTasks(Expr):
    """An expression with a task for each partition of its frame, and perhaps others.

    Its metadata is the operand ``meta``, unless a subclass computes it.
    """

    @functools.cached_property
    def _meta(self) -> Any:
        return self.operand("meta")

    @property
    def _inputs(self) -> list[TaskRef]:
        """(M,) partitions of the frame."""
        return [TaskRef((self.frame._name, i)) for i in range(self.frame.npartitions)]

    def _tasks(self) -> list[Task]:
        raise NotImplementedError

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.frame.npartitions + 1)

    def _layer(self) -> dict[Any, Any]:
        return {task.key: task for task in self._tasks()}


class Reorder(Expr):
    """Rows in another order, over all partitions; lowered to several expressions.

    Operands of all: ``frame``, the first one, and ``npartitions_out``, None for as many as
    ``frame`` has.
    """

    _is_length_preserving = True

    @property
    def _count_out(self) -> int:
        return self.operand("npartitions_out") or self.frame.npartitions

    @property
    def _order_columns(self) -> list[Any]:
        """Columns that the order depends on."""
        return []

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self._count_out + 1)

    def _simplify_up(self, parent: CoreExpr, dependents: Any) -> CoreExpr | None:
        """Read only the columns that the readers need, or that the order depends on."""
        if not isinstance(parent, Projection):
            return None
        needed = determine_column_projection(
            self, parent, dependents, additional_columns=self._order_columns
        )
        needed = set(needed) if isinstance(needed, list) else {needed}
        columns = [name for name in self.frame.columns if name in needed]
        if len(columns) == len(self.frame.columns):
            return None
        narrow = type(self)(self.frame[columns], *self.operands[1:])
        return type(parent)(narrow, *parent.operands[1:])

    def _layer(self) -> dict[Any, Any]:
        """Return the lowered tasks: Dask up to 2026.1 infers the type of collection from them."""
        lowered = self.lower_completely()
        names = [((self._name, i), (lowered._name, i)) for i in range(lowered.npartitions)]
        return {**lowered.__dask_graph__(), **{name: Alias(name, to) for name, to in names}}


class SortRows(Reorder):
    """Rows in the order of some columns, over all partitions; equal rows keep their order.

    Operands: ``by``, a list of labels; ``ascending``, a list of as many; ``npartitions_out``, None
    for as many as ``frame`` has.
    """

    _parameters = [  # noqa: RUF012  as Dask's expressions have it
        *("frame", "by", "ascending", "na_position", "npartitions_out", "ignore_index")
    ]

    @functools.cached_property
    def _meta(self) -> Any:
        meta = self.frame._meta
        return meta.reset_index(drop=True) if self.ignore_index else meta

    @property
    def _order_columns(self) -> list[Any]:
        return list(self.by)

    def _keys(self) -> tuple[SortKey, ...]:
        """Return the keys as columns of a frame whose columns are numbered."""
        meta = self.frame._meta
        keys = []
        for name, ascending in zip(self.by, self.ascending, strict=True):
            is_index = name not in meta.columns
            column = None if is_index else str(meta.columns.get_loc(name))
            values = meta.index if is_index else meta[name]
            known = isinstance(values.dtype, pd.CategoricalDtype) and has_known_categories(values)
            dtype = values.dtype if known else None
            keys.append(SortKey(name, column, ascending, self.na_position == "first", dtype))
        return tuple(keys)

    def _lower(self) -> CoreExpr:
        keys, reducers = self._keys(), self._count_out
        numbered = NumberRows(self.frame, keys, reducers, self.ignore_index)
        shuffled = Shuffle(
            numbered,
            PARTITION_COLUMN,
            reducers,
            # the index is needed if rows are sorted by it
            self.ignore_index and all(key.column is not None for key in keys),
            "tasks",
            original_partitioning_index=[key.column for key in keys if key.column is not None],
        )
        return MergeRuns(shuffled, numbered if self.ignore_index else None, keys, self._meta)


class NumberRows(PartitionTasks):
    """Sorted runs with plain labels, and a column of the output number of each row."""

    _parameters = ["frame", "keys", "reducers", "with_cuts"]  # noqa: RUF012

    @functools.cached_property
    def _meta(self) -> Any:
        return _number(_plain(self.frame._meta), np.zeros(self.reducers + 1, np.int64))

    def cut_key(self, i: int) -> tuple[str, int]:
        """Return the key of the task that computes where run ``i`` is divided (``with_cuts``)."""
        return f"cut-{self._name}", i

    def _tasks(self) -> list[Task]:
        parts, reducers, name = self._inputs, self.reducers, self._name
        keys, tasks = self._known_keys(parts)
        runs = [Task((f"run-{name}", i), _sorted_run, part, keys) for i, part in enumerate(parts)]
        size = range_partition.sample_size(len(parts), reducers)
        samples = [
            Task((f"sample-{name}", i), range_partition.sample_run, run.ref(), self.keys, i, size)
            for i, run in enumerate(runs)
        ]
        sampled = [sample.ref() for sample in samples]
        bounds = Task(
            (f"bounds-{name}", 0), range_partition.choose_bounds, self.keys, reducers, *sampled
        )
        tasks += [*runs, *samples, bounds]
        for i, run in enumerate(runs):
            cut_arguments = (self.keys, i, bounds.ref(), reducers)
            if self.with_cuts:
                cut = Task(self.cut_key(i), range_partition.cut_run, run.ref(), *cut_arguments)
                tasks += [cut, Task((name, i), _number, run.ref(), cut.ref())]
            else:
                tasks.append(Task((name, i), _cut_and_number, run.ref(), *cut_arguments))
        return tasks

    def _known_keys(self, parts: Sequence[TaskRef]) -> tuple[Any, list[Task]]:
        """Return the keys with all their categories, collected from partitions if unknown."""
        values = sort_keys.columns(_plain(self.frame._meta), self.keys)
        categorical = [isinstance(column.dtype, pd.CategoricalDtype) for column in values]
        if all(k.dtype is not None for k, flag in zip(self.keys, categorical, strict=True) if flag):
            return self.keys, []
        name, tasks = self._name, []
        for i, part in enumerate(parts):
            tasks.append(Task((f"categories-{name}", i), _categories, part, self.keys))
        refs = [task.ref() for task in tasks]
        keys = Task((f"keys-{name}", 0), sort_keys.unify_categories, self.keys, *refs)
        return keys.ref(), [*tasks, keys]


class MergeRuns(PartitionTasks):
    """Outputs of the shuffle, each put in order, with a new index if ``numbered`` is its input."""

    _parameters = ["frame", "numbered", "keys", "meta"]  # noqa: RUF012

    def _tasks(self) -> list[Task]:
        labels, name, tasks = self._meta.columns, self._name, []
        starts: list[Any] = []
        if self.numbered is not None:
            cuts = [TaskRef(self.numbered.cut_key(i)) for i in range(self.numbered.npartitions)]
            tasks.append(Task((f"starts-{name}", 0), _starts, *cuts))
            starts = [tasks[0].ref()]
        for j, part in enumerate(self._inputs):
            arguments = [*starts, j] if starts else []
            tasks.append(Task((name, j), _merge, part, self.keys, labels, *arguments))
        return tasks


def _plain(frame: Any) -> Any:
    """Call the columns "0", "1", ..., so that no label of the user collides."""
    return protocol.relabel(frame, columns=[str(i) for i in range(frame.shape[1])])


def _categories(part: Any, keys: Sequence[SortKey]) -> sort_keys.Dtypes:
    return sort_keys.key_categories(_plain(part), keys)


def _sorted_run(part: Any, keys: Sequence[SortKey]) -> Any:
    kernels = protocol.kernels(part)
    return kernels.sort(kernels.recode(_plain(part), keys), keys)


def _cut_and_number(
    run: Any, keys: Sequence[SortKey], number: int, bounds: RangeBounds, reducers: int
) -> Any:
    return _number(run, range_partition.cut_run(run, keys, number, bounds, reducers))


def _number(run: Any, edges: np.ndarray) -> Any:
    """Add the column of output numbers to a run that is divided at ``edges``."""
    return run.assign(**{PARTITION_COLUMN: np.repeat(np.arange(len(edges) - 1), np.diff(edges))})


def _starts(*edges: np.ndarray) -> np.ndarray:
    """(R,) rows before each output."""
    return np.sum(edges, axis=0)[:-1]


def _merge(
    part: Any,
    keys: Sequence[SortKey],
    labels: pd.Index,
    starts: np.ndarray | None = None,
    j: int = 0,
) -> Any:
    """Merge the sorted runs of one output, under the user's labels."""
    rows = part.drop(columns=PARTITION_COLUMN)
    merged = protocol.kernels(part).sort(rows, keys)
    numbers = None if starts is None else pd.RangeIndex(starts[j], starts[j] + len(merged))
    return protocol.relabel(merged, columns=labels, index=numbers)


class ShuffleRows(Reorder):
    """Rows in random order over all partitions; a seed (a tuple of numbers) determines it."""

    _parameters = ["frame", "seed", "npartitions_out"]  # noqa: RUF012  as Dask's expressions have it

    @functools.cached_property
    def _meta(self) -> Any:
        return self.frame._meta

    def _lower(self) -> CoreExpr:
        drawn = DrawNumbers(self.frame, self.seed, self._count_out)
        shuffled = Shuffle(drawn, PARTITION_COLUMN, self._count_out, False, "tasks")  # noqa: FBT003
        return MixRows(shuffled, self.seed, self._meta)


def shuffle_windows(
    frame: dd.DataFrame, seed: int, window: int | None, npartitions: int
) -> Iterator[dd.DataFrame]:
    """Yield the windows of a frame, each with its rows in random order.

    See ``ddf.exo.random_shuffle``. ``npartitions`` is the number of output partitions in all; each
    window has its share of them, at least one.
    """
    if window is None or window >= frame.npartitions:
        yield new_collection(ShuffleRows(frame, (seed,), npartitions))
        return
    for a in range(0, frame.npartitions, window):
        part = frame.partitions[a : a + window]
        share = max(1, round(npartitions * part.npartitions / frame.npartitions))
        yield new_collection(ShuffleRows(part, (seed, a), share))


class DrawNumbers(PartitionTasks):
    """Rows with plain labels, and a column of the output number of each."""

    _parameters = ["frame", "seed", "reducers"]  # noqa: RUF012

    @functools.cached_property
    def _meta(self) -> Any:
        return _draw(self.frame._meta, self.seed, 0, self.reducers)

    def _tasks(self) -> list[Task]:
        return [
            Task((self._name, i), _draw, part, self.seed, i, self.reducers)
            for i, part in enumerate(self._inputs)
        ]


class MixRows(PartitionTasks):
    """Outputs of a shuffle by drawn numbers, each in random order."""

    _parameters = ["frame", "seed", "meta"]  # noqa: RUF012

    def _tasks(self) -> list[Task]:
        return [
            Task((self._name, j), _mix, part, self.seed, j, self._meta.columns)
            for j, part in enumerate(self._inputs)
        ]


def _draw(part: Any, seed: tuple[int, ...], i: int, reducers: int) -> Any:
    numbers = np.random.default_rng([*seed, 0, i]).integers(0, reducers, len(part))
    return _plain(part).assign(**{PARTITION_COLUMN: numbers})


def _mix(part: Any, seed: tuple[int, ...], j: int, labels: Any) -> Any:
    order = np.random.default_rng([*seed, 1, j]).permutation(len(part))
    mixed = part.drop(columns=PARTITION_COLUMN).take(order)
    return protocol.relabel(mixed, columns=labels)
