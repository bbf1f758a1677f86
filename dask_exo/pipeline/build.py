"""Preparation of a run: stages, sources, runner, policy and executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.on_ray.streams import RayStreams
from dask_exo.cluster.watchdog import Watchdog
from dask_exo.config import Config
from dask_exo.pipeline.dead_letters import Rejects
from dask_exo.pipeline.operators import check_needs, code_of, stage_of, without_gpus
from dask_exo.pipeline.policies import POLICIES
from dask_exo.pipeline.run_handle import fetch_block
from dask_exo.pipeline.sources import BlockIterator, PipelineSource
from dask_exo.pipeline.stage_graph import Chain, Part, planned, sources_of
from dask_exo.pipeline.streaming.executor import Executor
from dask_exo.pipeline.streaming.runner import StreamRunner
from dask_exo.scheduler import Scheduler

MANY = 10**9  # numbers for the partitions of a source that does not say how many it has


def execute(
    ends: Sequence[Chain], memory: int | None, target: int | None
) -> tuple[Executor, Futures]:
    """Prepare a run of pipelines; common parts run once.

    Parameters
    ----------
    ends : sequence of Chain
    memory, target : int, optional
        See `of`.

    Raises
    ------
    PipelineError
        No node has the resources that a stage requests.
    """
    config, futures = Config.current(), Scheduler().cluster()
    streams = RayStreams()
    total = streams.resources()
    simulate = config.gpu_simulate and not total.get("GPU")
    parts, _ = _planned(ends, lambda _: True, simulate=simulate)
    check_needs([part.steps for part in parts], total, streams.nodes())
    store = sum(node.store for node in futures.nodes())
    memory = memory or int(config.stream_memory_fraction * store)
    target = min(target or config.stream_target, max(1, memory // 8))
    started = start_sources(sources_of(ends), config, streams.put)
    parts, sinks = _planned(ends, lambda source: started[id(source)][1], simulate=simulate)
    stages = [stage_of(part.steps)._replace(takes=part.takes) for part in parts]
    codes = [code_of(part.steps, target, part.error_policy, config) for part in parts]
    inputs = [started[id(part.source)][0] for part in parts if part.source is not None]
    runner = StreamRunner(streams, stages, codes)
    policy = POLICIES[config.stream_policy]()
    executor = Executor(
        stages,
        inputs,
        runner,
        policy,
        limit=memory,
        target=target,
        sinks=sinks,
        watchdog=Watchdog(futures, config.stall_timeout),
    )
    return executor, futures


def _planned(
    ends: Sequence[Chain], makes: Callable[[PipelineSource], bool], *, simulate: bool
) -> tuple[list[Part], list[tuple[int, ...]]]:
    """Return the result of `planned`, without requests of GPUs where these are simulated."""
    parts, sinks = planned(ends, makes)
    if simulate:
        parts = [part._replace(steps=without_gpus(part.steps)) for part in parts]
    return parts, sinks


def rejects_of(executor: Executor, futures: Futures) -> Rejects:
    """Return the dead letters of a run."""
    patience = Config.current().stall_timeout
    return Rejects(executor.rejects, partial(fetch_block, futures, patience=patience))


def start_sources(
    sources: Sequence[PipelineSource], config: Config, put: Callable[[Any], Any]
) -> dict[int, tuple[BlockIterator, bool]]:
    """Start all sources; return their partitions by id, with numbers that are unique."""
    found, first = {}, 0
    for source in sources:
        blocks, makes = source.start(config, put)
        found[id(source)] = (_numbered(blocks, first) if first else blocks, makes)
        first += MANY if source.count is None else source.count
    return found


def _numbered(blocks: BlockIterator, first: int) -> Iterator[Any]:
    """Yield blocks with numbers from ``first`` on."""
    for block in blocks:
        yield block and block._replace(place=(first + block.place[0],))
