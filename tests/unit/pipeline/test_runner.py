"""Where tasks of a pipeline run: actors that start early or die, tasks that end early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from dask_exo.errors import WorkerLostError
from dask_exo.pipeline.streaming.blocks import RETRY, Block, StageSpec
from dask_exo.pipeline.streaming.runner import StreamRunner
from dask_exo.pipeline.streaming.task import StageCode
from dask_exo.pipeline.streaming.transforms import RAISE, Transform
from dask_exo.testing import InlineFutures
from dask_exo.testing.inline import InlineActor, InlineStream

CPU, GPU = {"CPU": 1.0}, {"GPU": 1.0}


class Futures(InlineFutures):
    """Takes note of requests; `dead` streams lose their worker."""

    def __init__(self, total):
        super().__init__()
        self.total, self.started, self.stopped, self.asked = total, 0, 0, 0
        self.dead = set()

    def resources(self, *, free=False):
        return self.total

    def generate(self, fn, *args, options=None, seed=""):
        return Stream(self, fn, args)

    def actor(self, options, cls=None, *args):
        self.started += 1
        return Actor(self, self.actors, cls(*self.values_of(args)))

    def wait(self, refs, timeout=None):
        self.asked += len(refs)
        return super().wait(refs, timeout)


class Actor(InlineActor):
    def stop(self):
        super().stop()
        self._futures.stopped += 1

    def retire(self):
        self._futures.actors.discard(self)


class Stream(InlineStream):
    def read(self):
        self._lose()
        return super().read()

    def take(self):
        self._lose()
        return super().take()

    def _lose(self):
        if self in self._futures.dead:
            raise WorkerLostError("gone")


def twice(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    yield frame
    yield frame * 10


class Model:
    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame


def code(func: Any, target: int = 1) -> StageCode:
    return StageCode(str(func), [Transform("partitions", func)], target, RAISE, {})


def runner(total, *stages) -> tuple[Futures, StreamRunner]:
    futures = Futures(total)
    made = [StageSpec(str(i), needs, limit=limit) for i, (needs, _, limit) in enumerate(stages)]
    return futures, StreamRunner(futures, made, [code(func) for _, func, _ in stages])


def piece(i: int) -> Block:
    return Block(pd.DataFrame({"n": [i]}), 8, 1, (i,))


@pytest.mark.parametrize(
    ("stage", "early"),
    [((GPU, Model, None), 3), ((GPU, len, 2), 2), ((CPU, Model, None), 0), ((CPU, len, None), 0)],
)
def test_actors_start_with_the_source_if_resources_are_free(stage, early):
    futures, made = runner({"CPU": 8.0, "GPU": 3.0}, (CPU, len, None), stage)
    for i in range(2):
        made.start(0, [piece(i)])
        assert futures.started == min(i + 1, early)
    for i in range(4):
        made.start(0, [piece(i)])
    assert futures.started == early
    assert made.idle(1) == early
    made.pools.dismiss_idle()
    made.start(0, [piece(9)])
    assert futures.started == early  # those that nobody used are not started again


def test_a_task_has_ended_as_soon_as_its_last_piece_is_known():
    futures, made = runner({"CPU": 1.0}, (CPU, Model, None))
    task = made.start(0, [piece(3)])
    assert made.wait([task], 0) == [task]
    assert task.last
    got = made.take(task)
    assert (got.value.value.n.tolist(), got.more) == ([3], False)
    asked = futures.asked
    assert made.wait([task], None) == [task]
    assert made.take(task) is None
    assert futures.asked == asked
    assert made.idle(0) == 1


def test_a_worker_that_dies_between_two_pieces_gives_none_twice():
    futures, made = runner({"CPU": 1.0}, (CPU, twice, None))
    task = made.start(0, [piece(3)])
    made.wait([task], 0)
    first = made.take(task)
    futures.dead.add(task.stream)
    assert made.wait([task], 0) == []
    made.wait([task], 0)
    futures.dead.add(task.stream)
    assert made.take(task) is RETRY
    made.wait([task], 0)
    second = made.take(task)
    assert (first.value.value.n.tolist(), second.value.value.n.tolist()) == ([3], [30])
    assert made.wait([task], 0) == [task]
    assert made.take(task) is None
    assert task.last


def test_nodes_that_come_and_go_change_what_there_is(monkeypatch):
    futures, made = runner({"CPU": 1.0}, (CPU, len, None))
    now = made.now()
    futures.total = {"CPU": 5.0}
    monkeypatch.setattr(made, "now", lambda: now + 0.1)
    assert made.total() == {"CPU": 1.0}
    monkeypatch.setattr(made, "now", lambda: now + 5)
    assert made.total() == {"CPU": 5.0}


def ran(made, *tasks) -> list[int]:
    """Numbers that single tasks gave."""
    numbers = []
    for task in tasks:
        made.wait([task], 0)
        numbers += made.take(task).value.value.n.tolist()
        assert made.wait([task], 0) == [task]
        assert made.take(task) is None
    return numbers


def test_a_short_task_waits_behind_another_one_of_its_worker():
    futures, made = runner({"CPU": 2.0, "GPU": 1.0}, (CPU, len, None), (GPU, Model, None))
    first = made.start(1, [piece(0)])
    assert made.idle(1) == 0  # nobody knows how long it takes
    assert ran(made, first) == [0]
    tasks = [made.start(1, [piece(1)]), made.start(1, [piece(2)])]
    assert tasks[0].actor is tasks[1].actor
    assert made.idle(1) == 0
    assert ran(made, *tasks) == [1, 2]
    assert (made.idle(1), futures.started) == (1, 1)


def test_tasks_queued_behind_a_killer_are_not_blamed():
    futures, made = runner({"CPU": 2.0, "GPU": 1.0}, (CPU, len, None), (GPU, Model, None))
    assert ran(made, made.start(1, [piece(0)])) == [0]
    bad, good = made.start(1, [piece(1)]), made.start(1, [piece(2)])
    for _ in range(3):
        futures.dead |= {bad.stream, good.stream}
        assert made.wait([good, bad], 0) == []
    assert (bad.losses + good.losses, futures.stopped) == (3, 3)
    assert ran(made, good) == [2]
    assert ran(made, bad) == [1]
    assert made.pools.idle_resources() == {"GPU": 1.0}


def test_a_death_after_the_last_output_costs_one_task():
    futures, made = runner({"CPU": 2.0, "GPU": 1.0}, (CPU, len, None), (GPU, Model, None))
    assert ran(made, made.start(1, [piece(0)])) == [0]
    first, second = made.start(1, [piece(1)]), made.start(1, [piece(2)])
    made.wait([first], 0)
    made.take(first)
    futures.dead.add(second.stream)
    assert made.wait([second], 0) == []
    assert made.wait([first], 0) == [first]
    assert made.take(first) is None
    assert ran(made, second) == [2]
    assert made.pools.idle_resources() == {"GPU": 1.0}


def test_no_task_waits_behind_one_that_may_wait_for_room():
    _, made = runner({"CPU": 2.0, "GPU": 1.0}, (CPU, len, None), (GPU, twice, None))
    task = made.start(1, [piece(0)])
    made.wait([task], 0)
    made.take(task)
    assert made.idle(1) == 0
