"""Workers that keep a model, on a virtual clock: how many there are, and what happens to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pytest

from dask_exo.errors import WorkerLostError
from dask_exo.stream.calls import RAISE
from dask_exo.stream.executor import Executor
from dask_exo.stream.partition_admission import PartitionAdmission
from dask_exo.stream.pieces import Piece, Stage
from dask_exo.stream.runner import StreamRunner
from dask_exo.stream.task import Code
from dask_exo.stream.transforms import Transform


class Model:
    """What a worker keeps."""

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame * 2


@dataclass(eq=False)
class Process:
    instance: Any
    dead: bool = False


@dataclass(eq=False)
class Stream:
    values: Iterator[Any]
    at: float
    seconds: float
    process: Process | None = None
    value: Any = None


@dataclass
class Streams:
    """Runs the real tasks, each piece of them in virtual seconds by stage; counts processes."""

    seconds: tuple[float, float]
    dies_at: list[float] = field(default_factory=list)
    time: float = 0.0
    processes: list[Process] = field(default_factory=list)
    counts: list[tuple[float, int]] = field(default_factory=list)

    def resources(self) -> dict[str, float]:
        return {"CPU": 4.0, "GPU": 8.0}

    def put(self, value: Any) -> Any:
        return value

    def task(self, fn: Any, *args: Any, needs: Any, seed: str) -> Stream:
        return Stream(fn(*args), self.time + self.seconds[0], self.seconds[0])

    def worker(self, cls: type, *args: Any, needs: Any) -> Process:
        self.processes.append(Process(cls(*args)))
        self.counts.append((self.time, len(self.processes)))
        return self.processes[-1]

    def start(self, worker: Process, *args: Any, seed: str) -> Stream:
        each = self.seconds[1]
        return Stream(worker.instance.run(*args), self.time + each, each, worker)

    def stop(self, worker: Process) -> None:
        self.processes.remove(worker)
        self.counts.append((self.time, len(self.processes)))

    def wait(self, streams: list[Stream], timeout: float | None) -> list[Stream]:
        end = self.time + (timeout if timeout is not None else 1e9)
        self.time = max(self.time, min(end, *[stream.at for stream in streams], end))
        while self.dies_at and self.dies_at[0] <= self.time:
            self.dies_at.pop(0)
            next(stream.process for stream in streams if stream.process).dead = True
        return [s for s in streams if s.at <= self.time or (s.process and s.process.dead)]

    def read(self, stream: Stream) -> Any:
        if stream.process is not None and stream.process.dead:
            raise WorkerLostError("a worker has died")
        stream.value = next(stream.values, None)
        return next(stream.values, None)

    def take(self, stream: Stream) -> Any:
        stream.at = self.time  # what comes then is known at once: one piece a task
        return stream.value

    def cancel(self, streams: list[Stream]) -> None:
        """Nothing runs beside us."""


def run(seconds, concurrency, inputs=24, dies_at=()):
    streams = Streams(seconds, list(dies_at))

    class Runner(StreamRunner):
        def now(self) -> float:
            return streams.time

    least, most = concurrency
    stages = [
        Stage("load", {"CPU": 1.0}),
        Stage("model", {"GPU": 1.0}, limit=most, least_workers=least),
    ]
    target = 10**6
    codes = [
        Code("load", [], target, RAISE, {}),
        Code("model", [Transform("partitions", Model)], target, RAISE, {}),
    ]
    source = iter([Piece(pd.DataFrame({"n": [i]}), 0, 1, (i,)) for i in range(inputs)])
    runner = Runner(streams, stages, codes)
    first = len(streams.processes)
    executor = Executor(stages, source, runner, PartitionAdmission(), limit=10**9, target=target)
    got = []
    for _ in range(10_000):
        if executor.finished:
            break
        executor.step(1.0)
        while executor.outputs:
            got.append(int(executor.take().value.n.iloc[0]))
    assert sorted(got) == [2 * i for i in range(inputs)]
    executor.cancel()
    assert not streams.processes
    return first, max(count for _, count in streams.counts), streams


@pytest.mark.parametrize(("least", "most"), [(0, 2), (1, 6), (3, None), (2, 2)])
def test_there_are_as_many_workers_as_there_is_work_for_within_the_bounds(least, most):
    first, peak, _ = run((1.0, 2.0), (least, most))  # four inputs a second want eight
    assert first == least
    assert peak == (most or 8)
    first, peak, _ = run((1.0, 0.1), (least, most))
    assert peak <= min(4, most or 4)


def test_a_worker_that_dies_is_replaced_and_its_input_done_once():
    _, peak, streams = run((1.0, 2.0), (1, 2), dies_at=[2.5, 4.5, 8.5])
    assert peak == 2
    assert (
        sum(
            after > before
            for (_, before), (_, after) in zip(
                [(0, 0), *streams.counts], streams.counts, strict=False
            )
        )
        == 5
    )


def test_a_worker_with_nothing_to_do_is_let_go():
    _, peak, streams = run((100.0, 1.0), (0, None), inputs=12)
    ends = [time for time, count in streams.counts if not count]
    assert len(ends) == 4  # started early in vain, after each of three waves of inputs
    assert peak == 4


def test_as_many_workers_as_a_stage_has_at_least_are_kept():
    *_, streams = run((100.0, 1.0), (2, None), inputs=12)
    assert not [time for time, count in streams.counts[2:] if count < 2 and time < streams.time]
