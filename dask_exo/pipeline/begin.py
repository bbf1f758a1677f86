"""Where pipelines begin."""

from __future__ import annotations

from typing import Any

from dask.utils import parse_bytes

from dask_exo.pipeline.pipeline import Pipeline
from dask_exo.pipeline.steps import trouble_of


def of(
    source: Any,
    *,
    memory: int | str | None = None,
    target: int | str | None = None,
    retries: int = 0,
    on_error: str = "raise",
) -> Pipeline:
    """Begin a pipeline of stages that ask for different things, such as CPUs and GPUs.

    Parameters
    ----------
    source : dask.dataframe.DataFrame
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
    """
    sizes = [None if size is None else parse_bytes(size) for size in (memory, target)]
    trouble = trouble_of(retries, on_error)
    return Pipeline(source, memory=sizes[0], target=sizes[1], trouble=trouble)
