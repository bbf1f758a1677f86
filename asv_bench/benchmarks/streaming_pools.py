"""Pools of actors that keep a model, on a virtual clock: sizes by rates beside fixed ones.

``python -m asv_bench.benchmarks.streaming_pools`` prints the table. An actor takes some seconds to
load its model, and holds the resources that it requested while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import NamedTuple

from asv_bench.simulation.models import run_models
from asv_bench.simulation.pipeline import timed
from dask_exo.cluster.futures import Node
from dask_exo.pipeline.streaming.blocks import StageSpec
from dask_exo.pipeline.streaming.runner import StreamRunner
from dask_exo.pipeline.streaming.snapshot import PipelineView
from dask_exo.testing import Cost, ProcessDeath, SimFutures


class Job(NamedTuple):
    """Stages with a model after a source without one.

    Attributes
    ----------
    names : sequence of str
        Of the resource that each takes one of.
    seconds : callable
        ``seconds(stage, number)`` of the input of this number.
    """

    names: Sequence[str]
    resources: dict[str, float]
    inputs: int
    seconds: Callable[[int, int], float]
    loading: float = 5.0
    deaths: Sequence[float] = ()

    def stages(self, bounds: Sequence[tuple[int, int | None]]) -> list[StageSpec]:
        """Return the stages; all but the source have least and most actors (``bounds``)."""
        source, *models = self.names
        return [
            StageSpec("source", {source: 1.0}),
            *(
                StageSpec(f"Model{i + 1}", {name: 1.0}, limit=most, least_workers=least)
                for i, (name, (least, most)) in enumerate(zip(models, bounds, strict=True))
            ),
        ]


class Played(NamedTuple):
    """A job that has run: seconds, inputs in order of output, and where it ran."""

    seconds: float
    places: list[int]
    futures: SimFutures


class OnDemand(StreamRunner):
    """An actor for whatever waits, while resources are free; idle ones stop after half a minute."""

    def resize(self, view: PipelineView) -> bool:
        """No size is decided."""
        return False


def play(
    job: Job,
    bounds: Sequence[tuple[int, int | None]] | None = None,
    runner: type[StreamRunner] = StreamRunner,
) -> Played:
    """Run a job to its end; by default with any number of actors."""
    stages = job.stages(bounds or [(0, None)] * (len(job.names) - 1))
    numbers = {stage.name: i for i, stage in enumerate(stages)}
    futures = SimFutures(
        [Node("n", 1, 10**9, resources=job.resources)],
        lambda _: Cost(0, 0),
        work=timed(lambda name, n: job.seconds(numbers[name], n)),
        loading=job.loading,
        faults=[ProcessDeath(at, actors=True) for at in job.deaths],
    )
    return Played(*run_models(futures, stages, job.inputs, runner), futures)


def fixed(job: Job) -> tuple[Sequence[int], float]:
    """Return the best fixed numbers of actors, by trying all, and the seconds with those."""
    source, *models = job.names
    each = [range(1, int(job.resources[name]) + (name != source)) for name in models]
    runs = {}
    for some in product(*each):
        taken = dict.fromkeys(job.resources, 0)
        for name, count in zip(models, some, strict=True):
            taken[name] += count
        if all(taken[name] + (name == source) <= job.resources[name] for name in taken):
            runs[some] = play(job, [(n, n) for n in some], OnDemand).seconds
    best = min(runs, key=lambda some: runs[some])
    return best, runs[best]


JOBS = {
    "one CPU each: 1 s, 2 s": Job(["CPU", "CPU"], {"CPU": 8}, 200, lambda i, _: [1.0, 2.0][i]),
    "the same, half way 2 s, 0.5 s": Job(
        ["CPU", "CPU"], {"CPU": 8}, 300, lambda i, n: [1.0, 2.0][i] if n < 150 else [2.0, 0.5][i]
    ),
    "half way 0.5 s, 2 s": Job(
        ["CPU", "CPU"], {"CPU": 8}, 300, lambda i, n: [2.0, 0.5][i] if n < 150 else [0.5, 2.0][i]
    ),
    "GPUs that wait for CPUs: 2 s, 0.1 s": Job(
        ["CPU", "GPU"], {"CPU": 8, "GPU": 4}, 200, lambda i, _: [2.0, 0.1][i]
    ),
}


def main() -> None:
    """Run, print."""
    print("| | by rates | on demand | best fixed | actors started by rates, on demand |")
    print("|---|---|---|---|---|")
    for name, job in JOBS.items():
        ours, demand = play(job), play(job, runner=OnDemand)
        best, seconds = fixed(job)
        begun = [started(one.futures) for one in (ours, demand)]
        print(
            f"| {name} | {ours.seconds:.1f} | {demand.seconds:.1f} "
            f"| {seconds:.1f} ({'-'.join(map(str, best))}) | {begun[0]}, {begun[1]} |",
            flush=True,
        )


def started(futures: SimFutures) -> int:
    """Return the number of actors that have been started."""
    counts = [0, *(count for _, count in futures.generators.history)]
    return sum(after > before for before, after in pairwise(counts))


if __name__ == "__main__":
    main()
