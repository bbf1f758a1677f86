"""`Pipeline`, and the functions that begin one.

References: Luan et al., "The streaming batch model for efficient and fault-tolerant heterogeneous
execution"; thesis chapter 2.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import pandas as pd
from dask.utils import parse_bytes

from dask_exo.checkpoint.atomic_io import located, remove
from dask_exo.config import Config
from dask_exo.errors import PipelineError
from dask_exo.pipeline.operators import (
    Operator,
    Union,
    amounts,
    check_batch_size,
    check_format,
    make_operator,
    name_of,
    parse_error_policy,
    planned,
)
from dask_exo.pipeline.run import PipelineRun, Rejects, execute, iter_batches
from dask_exo.pipeline.shards import SharedRun, Split
from dask_exo.pipeline.sources import (
    ChainedSources,
    PipelineSource,
    list_files,
    partition_bytes,
    paths_of,
    read,
    source_of,
)
from dask_exo.pipeline.streaming.transforms import FORMATS, RAISE, ErrorPolicy
from dask_exo.pipeline.to_dask import collect_dataframes, infer_meta, lazy_dataframe
from dask_exo.scheduler import slots
from dask_exo.validation import number_from

STAGING = "_exo-staging"  # readers of Parquet ignore it


@dataclass(frozen=True)
class Pipeline:
    """Partitions of a source and their stages; nothing runs before a result is requested.

    Each method that adds a stage returns a new pipeline. Neighbouring stages with equal resource
    requests run in the same tasks. Stages with different requests run at the same time, on
    different partitions: while one is decoded on a CPU, a model processes another one on a GPU.
    Memory is bounded: at most ``memory`` bytes of partitions are between stages.

    Examples
    --------
    >>> import pandas as pd
    >>> import dask_exo
    >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(6)}), npartitions=3)
    >>> pipeline = ddf.exo.pipeline().filter(lambda df: df.a % 2 == 0)
    >>> pipeline.map_batches(lambda df: df * 10, batch_size=2)
    Pipeline of 3 partitions: <lambda> > <lambda> (1 CPU)
    """

    source: PipelineSource | Union
    steps: tuple[Operator, ...] = ()
    memory: int | None = None
    target: int | None = None
    rows: int | None = None
    error_policy: ErrorPolicy = RAISE
    _runs: list[Rejects] = field(default_factory=list, repr=False, compare=False)

    @property
    def rejects(self) -> Rejects:
        """Inputs that the last run set aside; see ``on_error``."""
        return self._runs[-1] if self._runs else Rejects()

    def map_partitions(self, func: Any, *args: Any, **options: Any) -> Pipeline:
        """Call ``func(frame, *args, **kwargs)`` with each partition.

        Parameters
        ----------
        func : callable or class
            Returns a frame, or yields several. A class is instantiated once in each of its actors,
            with the arguments, and the instance is called with each partition: a model is loaded
            once.
        *args
        **options
            ``num_cpus`` (1), ``num_gpus`` (0) and ``resources`` of one call; ``concurrency``, how
            many calls run at once at most, or at least and at most; ``retries`` of a call that
            raises an exception, and ``on_error``, what happens then: "raise", or "skip", which
            sets its input aside (see `rejects`; by default both are those of the pipeline). All
            others go to ``func``.
        """
        return self._with("partitions", func, args, options)

    def map_batches(
        self, func: Any, *args: Any, batch_size: int | None = None, **options: Any
    ) -> Pipeline:
        """Call ``func(batch, *args, **kwargs)`` with batches of ``batch_size`` rows.

        Parameters
        ----------
        func : callable or class
            See `map_partitions`. Partitions with fewer rows are concatenated first.
        *args
        batch_size : int, optional
            Rows; the last batch of a task may have fewer.
        **options
            Those of `map_partitions`, and ``format``: "pandas" (the default), "numpy" (a dict of
            arrays), "arrow", or "device": a `DeviceFrame` in GPU memory. With that, ``num_gpus``
            is ``exo.gpu.per-task`` by default, and a `DeviceFrame` that the function returns stays
            on the GPU for the next stage with an equal request. A batch that does not fit the GPU
            is split in halves.
        """
        check_batch_size(batch_size)
        return self._with("batches", func, args, options, batch_size=batch_size)

    def filter(self, func: Any, **options: Any) -> Pipeline:
        """Keep the rows for which ``func(frame)`` is True; options as of `map_partitions`."""
        return self._with("filter", func, (), options)

    def flat_map(self, func: Any, **options: Any) -> Pipeline:
        """Call ``func(row)`` with each row as a dict; it returns or yields any number of dicts.

        Options as of `map_partitions`. With ``on_error="skip"`` single rows are set aside.
        """
        return self._with("rows", func, (), options)

    def limit(self, rows: int) -> Pipeline:
        """Stop after ``rows`` rows; the last stage of a pipeline."""
        if rows < 0:
            raise PipelineError(f"limit({rows!r}): need a number from 0")
        least = rows if self.rows is None else min(rows, self.rows)
        return replace(self, rows=least, _runs=[])

    def iter_batches(
        self,
        batch_size: int | None = None,
        *,
        format: str = "pandas",  # noqa: A002
    ) -> Generator[Any, None, None]:
        """Run, and iterate over the output in the order in which it arrives.

        Parameters
        ----------
        batch_size : int, optional
            Rows; by default partitions as they come.
        format : {"pandas", "numpy", "arrow"}
        """
        check_format(format)
        return iter_batches(self._start, batch_size, FORMATS[format])

    def iter_split(
        self,
        count: int,
        *,
        equal: bool = False,
        batch_size: int | None = None,
        format: str = "pandas",  # noqa: A002
    ) -> list[Split]:
        """Run once for several consumers, in threads or other processes; each row goes to one.

        A block goes to the first consumer that requests one. The run begins with the first request.

        Parameters
        ----------
        count : int
            Consumers.
        equal : bool
            Give all consumers the same number of rows, for training in step. Then fewer rows than
            there are consumers are left out, and one that is ahead waits for the others.
        batch_size, format
            As in `iter_batches`.

        Returns
        -------
        list of Split
            Iterators, which can be pickled before their first batch. One that ends early, is
            closed, dropped, or dies, leaves the rest to the others (the death of a process is
            detected after half a minute). The rows that it got are gone.
        """
        number_from(1, "count", count, PipelineError)
        check_batch_size(batch_size)
        check_format(format)
        shared = SharedRun(self._start, count, equal=equal)
        return [Split(shared, i, batch_size, format) for i in range(count)]

    def materialize(self) -> dd.DataFrame:
        """Run to the end; return a Dask dataframe of the output, in the order of the input.

        Its partitions stay in the object store as long as it is referenced.
        """
        return collect_dataframes(self._start())[0]

    def compute(self) -> pd.DataFrame:
        """Run, and return the output as one frame, in the order of the input."""
        frame: pd.DataFrame = self.materialize().compute()
        return frame

    def to_dask(self, *, meta: Any = None) -> dd.DataFrame:
        """Return a Dask dataframe of the output; the pipeline runs when it is first computed.

        Each partition of the source becomes one partition, which is available as soon as it is
        complete, in any order. Tasks on the Dask dataframe run at the same time. As with `persist`,
        it is computed once, and stays in the object store as long as it is referenced.

        Parameters
        ----------
        meta : pandas.DataFrame, optional
            The output without rows. By default functions are called with made-up rows to infer it,
            as Dask does. Required if a stage is a class, or the source is no Dask dataframe.

        Raises
        ------
        PipelineError
            The number of partitions or the columns cannot be known.
        """
        if self.rows is not None:
            raise PipelineError("to_dask() cannot stop after a limit(): use materialize()")
        columns = infer_meta(self.source, self.steps, meta)
        return lazy_dataframe(partial(execute, [self]), self.source.count, columns)

    def to_parquet(self, path: str, *, compute: bool = True, **options: Any) -> Any:
        """Run, and write each block to a file in a directory; return the files.

        They are staged, and moved there once all are written: a run that fails leaves none.

        Parameters
        ----------
        path : str
            Directory, or its URL; created if it does not exist.
        compute : bool
            False: do not run, but return a pipeline that writes the files, with their names in a
            column ``file``. It can run together with others, see `dask_exo.pipeline.materialize`.
            These files are not staged.
        **options
            For `pandas.DataFrame.to_parquet`.

        Returns
        -------
        list of str, or Pipeline
        """
        system, root = located(path)
        staging, folder = f"{root}/{STAGING}", str(path).rstrip("/")
        target = f"{folder}/{STAGING}" if compute else folder
        pipeline = self._with("write", _write, (target, options), {"on_error": "raise"})
        system.makedirs(staging if compute else root, exist_ok=True)
        if not compute:
            return pipeline
        pipeline = replace(pipeline, _runs=self._runs)
        try:
            batches = iter_batches(pipeline._start, None, FORMATS["pandas"])
            files = [name.rpartition("/")[2] for batch in batches for name in batch["file"]]
            for file in files:
                system.mv(f"{staging}/{file}", f"{root}/{file}", recursive=True)
        finally:
            remove(system, staging)
        return sorted(f"{folder}/{file}" for file in files)

    def _with(
        self,
        kind: str,
        func: Any,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        batch_size: int | None = None,
    ) -> Pipeline:
        if self.rows is not None:
            raise PipelineError("limit() has to be the last stage: move it behind the others")
        step = make_operator(
            kind, func, args, options, default=self.error_policy, batch_size=batch_size
        )
        return replace(self, steps=(*self.steps, step), _runs=[])

    def _start(self) -> PipelineRun:
        return PipelineRun(*execute([self]), self.rows)

    def __repr__(self) -> str:
        """Return the stages as text."""
        stages, _ = planned([self], lambda _: True)
        names = ", ".join(f"{name_of(stage.steps)} ({amounts(stage.steps)})" for stage in stages)
        end = f", {self.rows} rows" if self.rows is not None else ""
        count = self.source.count
        partitions = "partitions as they come" if count is None else f"{count} partitions"
        return f"Pipeline of {partitions}: {names}{end}"


def of(
    *sources: Any,
    memory: int | str | None = None,
    target: int | str | None = None,
    retries: int = 0,
    on_error: str = "raise",
) -> Pipeline:
    """Begin a pipeline of stages with different resource requests, such as CPUs and GPUs.

    Parameters
    ----------
    *sources : dask.dataframe.DataFrame, dask.bag.Bag, or iterable
        The elements of a bag are rows: the items of a dict are its columns, and all else is in one
        column "item". An iterable gives partitions: frames, dicts of columns, Arrow tables, or refs
        of Ray or futures of those. It is iterated in a thread, at most a few partitions ahead of
        the tasks. Several sources come one after the other.
    memory : int or str, optional
        Bytes of partitions that there may be between stages; by default
        ``exo.stream.memory-fraction`` of the object store.
    target : int or str, optional
        Bytes of a partition between stages; by default ``exo.stream.target-partition-size``,
        or an eighth of ``memory`` if that is less.
    retries : int
        How often to retry a call that raises an exception, including one that makes a partition.
    on_error : {"raise", "skip"}
        After the last retry, the exception ends the pipeline, or the input of the call is set aside
        and the rest goes on; see `Pipeline.rejects`. Stages can have their own of both.

    Raises
    ------
    PipelineError
        An argument has a value that is not allowed.

    Examples
    --------
    >>> import dask.bag as db
    >>> of(db.from_sequence([{"a": 1}, {"a": 2}], npartitions=2)).flat_map(lambda row: [row, row])
    Pipeline of 2 partitions: <lambda> (1 CPU)
    >>> of(pd.DataFrame({"a": range(n)}) for n in range(9))
    Pipeline of partitions as they come: source (1 CPU)
    """
    if not sources:
        raise PipelineError("a pipeline needs at least one source: of(ddf)")
    parts = [source_of(source) for source in sources]
    source = parts[0] if len(parts) == 1 else ChainedSources(parts)
    sizes = [None if size is None else parse_bytes(size) for size in (memory, target)]
    error_policy = parse_error_policy(retries, on_error)
    return Pipeline(source, memory=sizes[0], target=sizes[1], error_policy=error_policy)


def from_files(
    paths: str | Path | Iterable[str | Path],
    *,
    partition_size: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Pipeline:
    """Begin a pipeline with files: a row for each, with its ``path`` and its ``bytes``.

    Parameters
    ----------
    paths : path, or iterable of paths
        Or URLs; each a file, a directory (all files in it) or a pattern such as ``"img/*.png"``.
    partition_size : int or str, optional
        Bytes of files that one task reads; by default those of four tasks for each slot, but 1 MB
        to ``exo.stream.target-partition-size``.
    storage_options : mapping, optional
        For `fsspec`.
    **options
        Those of `of`. With ``on_error="skip"`` a file that cannot be read is set aside.

    Raises
    ------
    InputError
        There is no such file.
    """
    storage = dict(storage_options or {})
    files, config = list_files(paths, storage), Config.current()
    if partition_size is None:
        nbytes = sum(nbytes for _, nbytes in files)
        size = partition_bytes(nbytes, slots(config), config.stream_target)
    else:
        size = parse_bytes(partition_size)
    pipeline = of(paths_of(files, size), **options)
    return pipeline.flat_map(read, options=storage)


def union(*pipelines: Pipeline) -> Pipeline:
    """Continue with the output of several pipelines, as it arrives.

    A pipeline that several of them were made from runs once. Rows in the output of two of them are
    there twice, as in `dask.dataframe.concat`. ``memory``, ``target``, ``retries`` and ``on_error``
    are those of the first one.

    Raises
    ------
    PipelineError
        There is no pipeline, or one ends with a `Pipeline.limit`.

    Examples
    --------
    >>> import pandas as pd
    >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(6)}), npartitions=3)
    >>> read = ddf.exo.pipeline()
    >>> def small(frame):
    ...     return frame[frame.a < 3]
    >>> def large(frame):
    ...     return frame[frame.a >= 3] * 10
    >>> union(read.map_partitions(small), read.map_partitions(large))
    Pipeline of 3 partitions: source (1 CPU), small (1 CPU), large (1 CPU)
    """
    first = _checked(pipelines, "union")
    return Pipeline(
        Union(pipelines), memory=first.memory, target=first.target, error_policy=first.error_policy
    )


def materialize(*pipelines: Pipeline) -> tuple[dd.DataFrame, ...]:
    """Run several pipelines together; return a Dask dataframe of the output of each.

    A pipeline that several of them were made from runs once, and each of its blocks goes to all of
    them. So one can write files (`Pipeline.to_parquet` with ``compute=False``) and compute from the
    same rows. ``memory`` and ``target`` are those of the first one.

    Raises
    ------
    PipelineError
        There is no pipeline, or one ends with a `Pipeline.limit`.
    """
    _checked(pipelines, "materialize")
    return tuple(collect_dataframes(PipelineRun(*execute(pipelines), None), len(pipelines)))


def _checked(pipelines: tuple[Pipeline, ...], caller: str) -> Pipeline:
    """Check the arguments of `union` or `materialize`; return the first one."""
    if not pipelines:
        raise PipelineError(f"{caller}() needs at least one pipeline")
    for number, pipeline in enumerate(pipelines):
        if not isinstance(pipeline, Pipeline):
            raise PipelineError(
                f"{caller}(): argument {number} is not a pipeline but {pipeline!r}: begin one with "
                f"ddf.exo.pipeline() or dask_exo.pipeline.of()"
            )
        if pipeline.rows is not None:
            raise PipelineError(
                f"{caller}(): argument {number} ends with limit(), which has to be the end of a "
                f"run: leave it out, or materialize() that pipeline alone"
            )
    return pipelines[0]


def _write(frame: pd.DataFrame, name: str, path: str, options: Mapping[str, Any]) -> pd.DataFrame:
    """Write a file; a task that runs again writes the same file."""
    file = f"{path}/part-{name}.parquet"
    frame.to_parquet(file, **options)
    return pd.DataFrame({"file": [file]})
