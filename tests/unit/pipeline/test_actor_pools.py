"""How many actors each pool gets, and which share of a GPU each of them, against trying all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asv_bench.simulation.models import run_models
from asv_bench.simulation.pipeline import call_of, timed
from dask_exo.cluster.futures import Node
from dask_exo.events import ShareRaised
from dask_exo.execution.autoscaler import capacity
from dask_exo.partitions.gpu.memory import GpuMemoryUse
from dask_exo.pipeline.streaming.actor_pools import gpu_fractions, pool_sizes
from dask_exo.pipeline.streaming.blocks import StageSpec
from dask_exo.pipeline.streaming.snapshot import PipelineView, StageView
from dask_exo.report import observing
from dask_exo.report.advice import advise
from dask_exo.report.collector import Collector
from dask_exo.report.summary import Figures, GpuShare
from dask_exo.testing import Cost, ProcessDeath, SimFutures, SimOutput


def view(stages, total):
    """Stages one after the other: needs, seconds a task, and tasks side by side at most."""
    made = [
        StageView(
            queued=1,
            running=0,
            buffered=0,
            block_bytes=100,
            splits=False,
            request=needs,
            limit=most,
            seconds=seconds,
            input_bytes=100.0,
            output_bytes=100.0,
            before=(i - 1,) if i else (),
            later=tuple(range(i + 1, len(stages))),
        )
        for i, (needs, seconds, most) in enumerate(stages)
    ]
    return PipelineView(tuple(made), used=0, limit=10**6, free=total, total=total)


def alone(stages):
    return [(i,) for i, _ in enumerate(stages)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([{"CPU": 1.0}, {"CPU": 2.0}, {"GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}]),
            st.floats(0.1, 5),
            st.sampled_from([None, None, 1, 2]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_slowest_stage_is_fastest_with_fewest_actors(
    stages,
):
    total = {"CPU": 6.0, "GPU": 3.0}

    def fits(sizes):
        return all(
            sum(n * needs.get(name, 0) for n, (needs, *_) in zip(sizes, stages, strict=True))
            <= amount
            for name, amount in total.items()
        )

    def rate(sizes):
        return min(n / seconds for n, (_, seconds, _) in zip(sizes, stages, strict=True))

    found = pool_sizes(view(stages, total), alone(stages), None)
    every = product(*(range(1, (most or 6) + 1) for *_, most in stages))
    best = max((sizes for sizes in every if fits(sizes)), key=rate, default=None)
    if best is None:
        assert found is None
        return
    assert fits(found)
    assert rate(found) == pytest.approx(rate(best))
    for i, (n, (_, seconds, _)) in enumerate(zip(found, stages, strict=True)):
        assert n == 1 or (n - 1) / seconds < rate(found), i


def test_equal_requests_share_a_pool_and_ended_stages_none():
    cpu, gpu = {"CPU": 1.0}, {"GPU": 1.0}
    seen = view([(cpu, 1.0, None), (gpu, 1.0, None), (gpu, 2.0, None)], {"CPU": 8, "GPU": 6})
    assert pool_sizes(seen, [(0,), (1, 2)], None) == [2, 6]
    ended = seen.stages[0]._replace(finished=True)
    later = PipelineView((ended, *seen.stages[1:]), 0, 10**6, {}, {"CPU": 8, "GPU": 6})
    assert pool_sizes(later, [(0,), (1, 2)], None) == [0, 6]


def test_sizes_follow_changes_of_work_not_noise():
    cpu = {"CPU": 1.0}
    pools, total = [(0,), (1,)], {"CPU": 8}

    def after(first, second, sizes, total=total):
        return pool_sizes(view([(cpu, first, None), (cpu, second, None)], total), pools, sizes)

    sizes = after(1.0, 2.0, None)
    assert sizes == [3, 5]
    for noise in (0.93, 1.07):
        assert after(noise, 2.0 / noise, sizes) == sizes
    assert after(2.0, 0.5, sizes) == [6, 2]
    assert after(1.0, 2.0, sizes, {"CPU": 5}) == [2, 3]  # nodes have gone
    assert after(1.0, 2.0, sizes, {"CPU": 16}) == [5, 10]


def test_nothing_is_decided_before_all_have_been_measured():
    stages = [({"CPU": 1.0}, 1.0, None), ({"CPU": 1.0}, None, None)]
    assert pool_sizes(view(stages, {"CPU": 8}), [(0,), (1,)], None) is None


DEVICE = 1600  # bytes of a GPU


def gpu_view(*stages: tuple[float, int]) -> PipelineView:
    """Stages that ask for some share of a GPU, and have been seen to hold some bytes of it."""
    made = [
        StageView(1, 0, 0, 100, splits=False, request={"GPU": asked}, held=held, device=DEVICE)
        for asked, held in stages
    ]
    return PipelineView(tuple(made), used=0, limit=10**6, free={"GPU": 1.0}, total={"GPU": 1.0})


ASKED = st.sampled_from([0.05, 0.1, 0.2, 0.25, 1 / 3, 0.4, 0.5, 0.75])
HELD = st.integers(0, DEVICE)


@given(st.lists(st.tuples(ASKED, HELD), min_size=1, max_size=4), st.data())
def test_workers_that_a_cluster_puts_on_one_gpu_fit_its_memory(
    stages: list[tuple[float, int]], data: st.DataObject
) -> None:
    found = gpu_fractions(gpu_view(*stages), [(k,) for k, _ in enumerate(stages)])
    left, held = 1.0, 0
    for k in data.draw(st.permutations([k for k, _ in enumerate(stages)] * 20)):
        if left + 1e-9 >= found[k]:
            left -= found[k]
            held += stages[k][1]
    assert held <= DEVICE + 1  # shares are rounded by less than a byte


@given(ASKED, HELD)
def test_tasks_share_a_gpu_as_requested_and_as_fit(asked: float, held: int) -> None:
    (share,) = gpu_fractions(gpu_view((asked, held)), [(0,)])
    fitting = DEVICE // held if held else 10**6
    assert capacity({"GPU": share}, None, {"GPU": 1.0}) == max(1, min(int(1 / asked), fitting))
    assert asked <= share <= 1.0
    assert capacity({"GPU": share}, None, {"GPU": 3.0}) == 3 * capacity(
        {"GPU": share}, None, {"GPU": 1.0}
    )


def test_a_pool_takes_the_largest_share_and_whole_gpus() -> None:
    seen = gpu_view((0.25, 200), (0.25, 700), (2.0, 9000), (0.0, 900))
    assert gpu_fractions(seen, [(0, 1), (2,), (3,)]) == [0.4375, 2.0, 0.0]


class Devices(SimFutures):
    """Says what each stage holds of a GPU, and takes note of what actors request."""

    def __init__(
        self, held: Callable[[str, int], int | None], gpus: float, deaths: Any = (), **options: Any
    ) -> None:
        faults = [ProcessDeath(at, actors=True) for at in deaths]
        node = Node("n", 4, 10**9, resources={"CPU": 4.0, "GPU": gpus})
        super().__init__([node], lambda _: Cost(0, 0), work=self.work, faults=faults, **options)
        self.held, self.asked = held, list[float]()

    def actor(self, options: Any, cls: Any = None, *args: Any) -> Any:
        self.asked.append(options["num_gpus"])
        return super().actor(options, cls, *args)

    def work(self, fn: Any, args: Any) -> Iterator[SimOutput]:
        code, start, _ = call_of(args)
        held = None if code.name == "source" else self.held(code.name, start.place[0])
        use = None if held is None else GpuMemoryUse(held, DEVICE)
        for step in timed(lambda *_: 2.0)(fn, args):
            yield step._replace(metadata=step.metadata._replace(held=use))


def played(futures: Devices, asked: dict[str, float], inputs: int = 24, **options: Any) -> set[int]:
    """Run models one after the other, which ask for shares of a GPU; give the outputs."""
    stages = [StageSpec("source", {"CPU": 1.0})]
    stages += [StageSpec(name, {"GPU": share}, **options) for name, share in asked.items()]
    found = run_models(futures, stages, inputs).places
    assert len(found) == len(set(found))
    return set(found)


def workers(futures: Devices, since: float) -> int:
    """The most that there are from some time on."""
    before = [count for time, count in futures.generators.history if time <= since]
    return max([before[-1], *(count for time, count in futures.generators.history if time > since)])


@pytest.mark.parametrize(("held", "together"), [(100, 4), (400, 4), (500, 3), (700, 2), (1700, 1)])
@pytest.mark.parametrize("deaths", [(), (7.0, 19.0)])
def test_no_more_workers_are_on_a_gpu_than_fit_it(
    held: int, together: int, deaths: tuple[float, ...]
) -> None:
    futures = Devices(lambda *_: held, gpus=1.0, loading=1.0, deaths=deaths)
    seen: list[Any] = []
    with observing(seen.append):
        assert played(futures, {"model": 0.25}) == set(range(24))
    assert workers(futures, since=9.0) == together
    raised = [event for event in seen if isinstance(event, ShareRaised)]
    assert len(raised) == (together < 4)
    for event in raised:
        assert (event.name, event.before, event.held, event.device) == ("model", 0.25, held, DEVICE)
        assert capacity({"GPU": event.share}, None, {"GPU": 1.0}) == together


def test_a_single_worker_is_not_started_anew() -> None:
    futures = Devices(lambda *_: 1200, gpus=1.0)
    assert played(futures, {"model": 0.25}, limit=1) == set(range(24))
    assert futures.asked == [0.25]


def test_the_last_small_actor_ends_once_a_large_one_worked() -> None:
    futures = Devices(lambda *_: 500, gpus=2.0, loading=1.0)
    assert played(futures, {"model": 0.25}) == set(range(24))
    assert futures.asked[:4] == [0.25] * 4
    assert set(futures.asked) == {0.25, 5 / 16}
    assert workers(futures, since=9.0) == 6


def test_stages_that_do_not_fit_one_gpu_take_turns() -> None:
    futures = Devices(lambda name, _: {"one": 1000, "two": 900}[name], gpus=1.0)
    seen: list[Any] = []
    with observing(seen.append):
        assert played(futures, {"one": 0.5, "two": 0.25}, inputs=8) == set(range(8))
    raised = {event.name: event.share for event in seen if isinstance(event, ShareRaised)}
    assert raised == {"one": 0.625, "two": 0.5625}
    assert workers(futures, since=futures.now - 6) == 1


def test_what_is_held_may_grow() -> None:
    futures = Devices(lambda _, number: 500 if number < 8 else 900, gpus=1.0)
    assert played(futures, {"model": 0.25}) == set(range(24))
    assert workers(futures, since=20.0) == 1


def test_the_report_says_it_once_with_need_and_have() -> None:
    record = Collector()
    record(ShareRaised("model", 0.25, 5 / 16, 500 * 2**20, 1600 * 2**20))
    record(ShareRaised("model", 5 / 16, 0.5, 800 * 2**20, 1600 * 2**20))
    (share,) = record.figures().shares
    assert share == GpuShare("model", 0.25, 0.5, 800 * 2**20, 1600 * 2**20)
    (line,) = [one for one in advise(Figures(runs=1, shares=(share,))) if "GPU" in one]
    for part in ("800.00 MiB", "1.56 GiB", "400.00 MiB", "takes 0.5", "exo.gpu.per-task"):
        assert part in line
