"""Pipelines whose stages keep a model on actors, on a virtual clock.

The runner, its actors and the tasks are those that run on Ray; only time is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from dask_exo.pipeline.policies import PartitionAdmission
from dask_exo.pipeline.streaming.blocks import Block, StageSpec
from dask_exo.pipeline.streaming.executor import Executor
from dask_exo.pipeline.streaming.runner import StreamRunner
from dask_exo.pipeline.streaming.task import StageCode
from dask_exo.pipeline.streaming.transforms import RAISE, Transform
from dask_exo.testing import SimFutures

BLOCK = 100  # target bytes of a block
LIMIT = 100 * BLOCK  # bytes of blocks in memory


class Model:
    """What an actor keeps."""

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame


class ModelRun(NamedTuple):
    """A pipeline that has run: virtual seconds, and numbers of inputs in order of output."""

    seconds: float
    places: list[int]


def run_models(
    futures: SimFutures,
    stages: Sequence[StageSpec],
    inputs: int,
    runner: type[StreamRunner] = StreamRunner,
) -> ModelRun:
    """Run a pipeline to its end; each stage after the first one keeps a model.

    Raises
    ------
    TimeoutError
        Nothing finishes any more.
    """
    codes = [StageCode(stages[0].name, [], 10**6, RAISE, {})]
    for stage in stages[1:]:
        model = type(stage.name, (Model,), {})
        codes.append(StageCode(stage.name, [Transform("partitions", model)], 10**6, RAISE, {}))
    blocks = iter([Block(pd.DataFrame({"n": [i]}), 0, 1, (i,)) for i in range(inputs)])
    running = runner(futures, stages, codes)
    executor = Executor(stages, [blocks], running, PartitionAdmission(), limit=LIMIT, target=BLOCK)
    places = []
    for _ in range(100_000):
        if executor.finished:
            break
        executor.step(1.0)
        while executor.outputs:
            places.append(executor.take().place[0])
    else:
        raise TimeoutError(f"nothing finishes: {executor.view()}")
    seconds = futures.now
    executor.cancel()
    assert not futures.generators.actors
    return ModelRun(seconds, places)
