"""Functions that begin a pipeline, and functions of several pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import dask.dataframe as dd
from dask.utils import parse_bytes

from dask_exo.config import Config
from dask_exo.errors import PipelineError
from dask_exo.pipeline.api import Pipeline
from dask_exo.pipeline.build import execute, rejects_of
from dask_exo.pipeline.file_source import list_files, paths_of, read
from dask_exo.pipeline.operators import parse_error_policy
from dask_exo.pipeline.run_handle import PipelineRun
from dask_exo.pipeline.sources import ChainedSources, source_of
from dask_exo.pipeline.stage_graph import Union
from dask_exo.pipeline.to_dask import collect_dataframes


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
        of Ray or futures of those. It is iterated in a thread, no more than a few partitions ahead
        of the tasks. ChainedSources sources come one after the other.
    memory : int or str, optional
        Bytes of partitions that there may be between stages; by default
        ``exo.stream.memory-fraction`` of the object store.
    target : int or str, optional
        Bytes of a partition between stages; by default ``exo.stream.target-partition-size``,
        or an eighth of ``memory`` if that is less.
    retries : int
        How often a call that raises an exception is tried again, also one that makes a partition.
    on_error : {"raise", "skip"}
        What happens then: the exception ends the pipeline, or the input of the call is set aside,
        and the rest goes on; see `Pipeline.rejects`. Stages can have their own of both.

    Raises
    ------
    PipelineError
        An argument is not one that it can have.

    Examples
    --------
    >>> import dask.bag as db
    >>> of(db.from_sequence([{"a": 1}, {"a": 2}], npartitions=2)).flat_map(lambda row: [row, row])
    Pipeline of 2 partitions: <lambda> (1 CPU)
    >>> of(pd.DataFrame({"a": range(n)}) for n in range(9))
    Pipeline of partitions as they come: source (1 CPU)
    """
    if not sources:
        raise PipelineError("a pipeline needs a source, or several: of(ddf)")
    found = [source_of(source) for source in sources]
    source = found[0] if len(found) == 1 else ChainedSources(found)
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
        Bytes of files that one task reads; by default ``exo.stream.target-partition-size``.
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
    target = (
        Config.current().stream_target if partition_size is None else parse_bytes(partition_size)
    )
    pipeline = of(paths_of(list_files(paths, storage), target), **options)
    return pipeline.flat_map(read, options=storage)


def union(*pipelines: Pipeline) -> Pipeline:
    """Continue with the output of several pipelines, as it arrives.

    Where they have been made from the same pipeline, that runs once. Rows that come out of two of
    them are there twice, as in `dask.dataframe.concat`.

    Parameters
    ----------
    *pipelines : Pipeline
        With ``memory``, ``target``, ``retries`` and ``on_error`` of the first one from here on.

    Raises
    ------
    PipelineError
        There is none, or one ends with a `Pipeline.limit`.

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

    Where they have been made from the same pipeline, that runs once, and each of its blocks goes to
    all of them. So one can write files, see `Pipeline.to_parquet` with ``compute=False``, of what
    the others go on with.

    Parameters
    ----------
    *pipelines : Pipeline
        With ``memory`` and ``target`` of the first one, for all.

    Raises
    ------
    PipelineError
        There is none, or one ends with a `Pipeline.limit`.
    """
    first = _checked(pipelines, "materialize")
    executor, futures = execute(pipelines, first.memory, first.target)
    rejects = rejects_of(executor, futures)
    for pipeline in pipelines:
        pipeline._runs[:] = [rejects]
    return tuple(collect_dataframes(PipelineRun(executor, futures, None), len(pipelines)))


def _checked(pipelines: tuple[Pipeline, ...], what: str) -> Pipeline:
    if not pipelines:
        raise PipelineError(f"{what}() needs a pipeline, or several")
    for number, one in enumerate(pipelines):
        if not isinstance(one, Pipeline):
            raise PipelineError(f"{what}(): argument {number} is no pipeline but {one!r}")
        if one.rows is not None:
            raise PipelineError(
                f"{what}(): argument {number} ends with limit(), which has to be the end of a run: "
                f"leave it out, or materialize() that pipeline alone"
            )
    return pipelines[0]
