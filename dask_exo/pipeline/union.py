"""Pipelines that meet, and pipelines that run together."""

from __future__ import annotations

import dask.dataframe as dd

from dask_exo.errors import PipelineError
from dask_exo.pipeline.api import Pipeline
from dask_exo.pipeline.build import execute, rejects_of
from dask_exo.pipeline.run_handle import Running
from dask_exo.pipeline.stage_graph import Union
from dask_exo.pipeline.to_dask import materialized


def union(*pipelines: Pipeline) -> Pipeline:
    """Go on with all that comes out of several pipelines, as it comes.

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
        Union(pipelines), memory=first.memory, target=first.target, trouble=first.trouble
    )


def materialize(*pipelines: Pipeline) -> tuple[dd.DataFrame, ...]:
    """Run several pipelines together; return a Dask dataframe of what came out of each.

    Where they have been made from the same pipeline, that runs once, and each of its pieces goes to
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
    return tuple(materialized(Running(executor, futures, None), len(pipelines)))


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
