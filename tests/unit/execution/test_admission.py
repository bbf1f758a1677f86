"""Memory that runs out: fewer tasks before, and fewer neighbours after."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace

import dask
import dask.dataframe as dd
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo import Scheduler
from dask_exo.cluster import waiting
from dask_exo.cluster.futures import Node
from dask_exo.cluster.resources import next_cpu_request
from dask_exo.cluster.spilling import used_share
from dask_exo.cluster.waiting import widen_request
from dask_exo.errors import (
    ExoError,
    OutOfMemoryError,
    OwnerUnreachableError,
    WorkerLostError,
)
from dask_exo.execution.accounting import INTERVAL, MemoryPressure
from dask_exo.execution.admission import LoopState, bottleneck
from dask_exo.execution.persisted import Remote
from dask_exo.execution.ready_queue import HeldValues
from dask_exo.report import recording
from dask_exo.testing import InlineFutures

NODES = [Node("small", 2, 10**9), Node("large", 8, 10**9, resources={"CPU": 8, "memory": 4e9})]


@given(st.integers(1, 200))
def test_a_task_is_alone_after_two_deaths_at_most(most: int) -> None:
    had, steps = 1.0, []
    while (more := next_cpu_request(had, most)) is not None:
        assert had < more <= most
        steps.append(more)
        had = more
    assert had == most
    assert len(steps) <= 2


def test_where_memory_is_tight_nothing_starts_beside_what_runs() -> None:
    def view(in_flight: int, *, tight: bool) -> LoopState:
        return LoopState(in_flight, 4, stored_bytes=0, in_flight_bytes=0, next_bytes=0, tight=tight)

    limits = {"tasks_per_slot": 3, "budget": 100}
    waits = [bottleneck(view(n, tight=True), **limits) for n in range(4)]
    assert waits == ["", *["the machine's memory"] * 3]
    assert not bottleneck(view(3, tight=False), **limits)


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, ""),
        ({"in_flight": 12}, "slots"),
        ({"next_bytes": 90}, "memory"),
        ({"next_bytes": 101, "stored_bytes": 0}, "slots"),  # nothing to be freed
        ({"next_bytes": 90, "in_flight": 3}, ""),  # a slot is free
        ({"next_bytes": 90, "in_flight": 3, "behind": True}, "memory"),
        ({"probing": True}, "the first measurement"),
        ({"probing": True, "in_flight": 12}, "slots"),
        ({"probing": True, "in_flight": 3}, ""),
        ({"slots": 0}, "an actor"),
    ],
)
def test_what_a_task_waits_for_is_what_it_is_not_admitted_for(changes, waits) -> None:
    view = LoopState(in_flight=4, slots=4, stored_bytes=10, in_flight_bytes=5, next_bytes=5)
    assert bottleneck(replace(view, **changes), tasks_per_slot=3, budget=100) == waits


def test_a_task_that_ran_out_of_memory_gets_half_a_node_then_all() -> None:
    assert [next_cpu_request(n, 8) for n in (1, 4, 8)] == [4, 8, None]
    assert [next_cpu_request(1, n) for n in (2, 1)] == [2, None]


class Full(InlineFutures):
    """A machine whose memory is as full as is said, and which knows the time."""

    used, clock, asked = 0.0, 0.0, 0

    @property
    def now(self) -> float:
        return self.clock

    def memory(self) -> float:
        self.asked += 1
        return self.used


def test_memory_is_looked_at_once_a_second() -> None:
    futures = Full(NODES)
    pressure = MemoryPressure(futures)
    assert not any(pressure.tight for _ in range(100))
    futures.used = 0.93
    assert not pressure.tight
    futures.clock += INTERVAL
    assert pressure.tight
    assert futures.asked == 2


def test_the_last_error_names_the_node_and_the_remedy() -> None:
    error = OutOfMemoryError("killed at 0.95")
    needs = widen_request(None, NODES, "task 'x'", error)
    assert needs == {"num_cpus": 4}
    needs = widen_request({"num_gpus": 1, **needs}, NODES, "task 'x'", error)
    assert needs == {"num_gpus": 1, "num_cpus": 8}
    said = r"task 'x' .*3\.73 GiB for tasks.*npartitions=.*killed at 0\.95"
    with pytest.raises(OutOfMemoryError, match=said) as caught:
        widen_request(needs, NODES, "task 'x'", error)
    assert isinstance(caught.value, (MemoryError, ExoError))
    assert isinstance(caught.value, WorkerLostError)


class Hungry(InlineFutures):
    """Tasks that put outputs together die of lack of memory unless they have enough slots."""

    def __init__(self, enough: int) -> None:
        super().__init__(NODES[1:])
        self.enough, self.deaths = enough, []

    def call(self, produce, count, fn, args, **more):
        slots = int((more["options"] or {}).get("num_cpus") or 1)
        heavy = fn.__name__ == "run_bundles"
        if not heavy or slots >= self.enough:
            return super().call(produce, count, fn, args, **more)
        self.deaths.append(slots)

        def die(*args):
            raise OutOfMemoryError("the node is full")

        return super().call(produce, count, die, args, **more)


class Unknown(InlineFutures):
    """A cluster whose nodes take the program for dead, so many times for each call."""

    def __init__(self, times: int) -> None:
        super().__init__(NODES[1:])
        self.times, self.failed = times, Counter()

    def call(self, produce, count, fn, args, **more):
        key = fn.__name__, str(args)
        if fn.__name__ not in ("run_bundles", "run_map") or self.failed[key] >= self.times:
            return super().call(produce, count, fn, args, **more)
        self.failed[key] += 1

        def die(*args):
            raise OwnerUnreachableError("the program is dead")

        return super().call(produce, count, die, args, **more)


@pytest.mark.parametrize("algorithm", ["simple", "push"])
@pytest.mark.parametrize("times", [1, 3, 9])
def test_a_task_runs_again_if_its_node_takes_the_program_for_dead(
    times, algorithm, monkeypatch
) -> None:
    monkeypatch.setattr(waiting, "REACHABLE", 0)
    df = pd.DataFrame({"k": range(300), "v": 1.5})
    futures = Unknown(times)
    settings = {"exo.scheduler.bundle-target": 0, "exo.shuffle.algorithm": algorithm}
    with dask.config.set(settings):
        ddf = dd.from_pandas(df, npartitions=6).shuffle("k", npartitions=4)
        ddf = ddf.map_partitions(lambda part: part + 0)
        if times > waiting.MOST_ATTEMPTS:
            with pytest.raises(OwnerUnreachableError):
                ddf.compute(scheduler=Scheduler(futures))
            return
        got = ddf.compute(scheduler=Scheduler(futures))
    pd.testing.assert_frame_equal(got.sort_values("k").reset_index(drop=True), df)
    assert {name for name, _ in futures.failed} == {"run_bundles", "run_map"}


@pytest.mark.parametrize(("enough", "deaths"), [(1, set()), (3, {1}), (8, {1, 4})])
def test_a_task_without_memory_runs_again_with_fewer_neighbours(enough, deaths) -> None:
    df = pd.DataFrame({"k": range(300), "v": 1.5})
    futures = Hungry(enough)
    with recording() as stats, dask.config.set({"exo.scheduler.bundle-target": 0}):
        ddf = dd.from_pandas(df, npartitions=6).shuffle("k", npartitions=4)
        got = ddf.map_partitions(lambda part: part + 0).compute(scheduler=Scheduler(futures))
    pd.testing.assert_frame_equal(got.sort_values("k").reset_index(drop=True), df)
    assert set(futures.deaths) == deaths
    assert {one.slots for one in stats.gave_way} == {4, 8} - ({8} if enough <= 4 else set()) - (
        {4} if enough == 1 else set()
    )
    del got
    gc.collect()  # stored exceptions hold the frames of their tracebacks
    assert futures.live == 0


def test_a_task_that_has_no_memory_alone_is_an_error() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"k": range(30)}), npartitions=3).shuffle("k")
    futures = Hungry(99)
    with pytest.raises(OutOfMemoryError, match="even with no other task beside it"):
        ddf.compute(scheduler=Scheduler(futures))
    assert futures.deaths[-1] == 8


def test_a_container_that_is_full_counts(tmp_path) -> None:
    machine = used_share(tmp_path)  # there are no files of a container
    assert 0 < machine < 1
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("950\n")
    assert used_share(tmp_path) == pytest.approx(machine, abs=0.2)
    (tmp_path / "memory.max").write_text("1000\n")
    assert used_share(tmp_path) == pytest.approx(max(0.95, machine), abs=0.05)
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 900\n")
    assert used_share(tmp_path) == pytest.approx(machine, abs=0.2)


class Ref:
    """What a driver holds of a value."""


def test_a_value_is_let_go_when_its_last_reader_takes_it() -> None:
    values, ref = HeldValues({}, put=None), Ref()
    seen = weakref.ref(ref)
    values.add_readers(["x", "x"])
    values.add("x", Remote(ref, 10))
    del ref
    for left in (True, False):
        values.take("x")
        assert (seen() is not None) is left
    assert values.nbytes == 0


@pytest.mark.parametrize(("memory", "fits"), [(10_000, False), (30_000, True), (None, True)])
def test_outputs_that_fit_no_node_are_refused_early(memory, fits) -> None:
    resources = None if memory is None else {"CPU": 2, "memory": memory}
    futures = InlineFutures([Node("n", 2, 10**9, resources=resources)])
    df = pd.DataFrame({"k": range(6000)})  # 48 kB and their index, to two outputs
    ddf = dd.from_pandas(df, npartitions=6).shuffle("k", npartitions=2)
    if fits:
        assert len(ddf.compute(scheduler=Scheduler(futures))) == 6000
        return
    with pytest.raises(OutOfMemoryError, match=r"each of the 2 outputs .*9.77 kiB.* npartitions="):
        ddf.compute(scheduler=Scheduler(futures))
