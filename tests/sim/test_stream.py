"""Pipelines on a virtual clock: policies, memory, and that everything comes out once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
from random import Random
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asv_bench.simulation.pipeline import Outcome, Piece, SimPipeline, simulate
from asv_bench.simulation.static_policy import Static
from dask_exo.pipeline.policies import Adaptive, Conservative, PartitionAdmission, StagedPolicy
from dask_exo.pipeline.streaming.blocks import StageSpec

POLICIES = {
    "partition admission": PartitionAdmission,
    "conservative": Conservative,
    "adaptive": Adaptive,
    "staged": StagedPolicy,
    "static": lambda: Static([5, 3, 4]),
}


def run(stages, work, inputs, policy, *, limit, target, resources, faults=()) -> Outcome:
    runner = SimPipeline(stages, resources, work, faults)
    return simulate(runner, inputs, policy, limit=limit, target=target)


def inference(policy, limit, noise=0.0, call=0.0):
    """Thesis section 2.5.3.1: 160 loads of 5 s and five pieces each; 8 CPUs and 4 GPUs."""
    rng = Random(0)

    def work(stage: int, inputs: Sequence[Piece]) -> list[tuple[float, int]]:
        def seconds(mean: float) -> float:
            return mean * rng.uniform(1 - noise, 1 + noise) + call

        return [(seconds(1.0), 100)] * 5 if stage == 0 else [(seconds(0.5), 100)]

    stages = [
        StageSpec("load", {"CPU": 1}),
        StageSpec("transform", {"CPU": 1}),
        StageSpec("infer", {"GPU": 1}),
    ]
    return run(stages, work, 160, policy, limit=limit, target=100, resources={"CPU": 8, "GPU": 4})


@pytest.mark.parametrize("name", POLICIES)
def test_every_piece_comes_out_once(name) -> None:
    out = inference(POLICIES[name](), 2000, noise=0.3)
    assert sorted(out.places) == [(i, j, 0, 0) for i in range(160) for j in range(5)]
    assert out.left == 0


def bound(limit):
    """150 s of CPU. And a source makes a piece a second, which then stays for a second."""
    return max(150, 800 / (limit / 200))


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("limit", [600, 800, 1000, 1500, 2000, 4000, 16_000])
def test_partition_admission_is_near_the_bound_at_every_limit(limit, noise) -> None:
    out = inference(PartitionAdmission(), limit, noise)
    assert out.peak <= limit
    assert out.seconds <= (1.3 if noise else 1.22) * bound(limit)


@pytest.mark.parametrize("limit", [600, 1000])
def test_what_calls_take_costs_no_more_than_itself(limit) -> None:
    """Each output takes a tenth of a work longer, which makes one source less fit, or does not."""
    out = inference(PartitionAdmission(), limit, 0.02, call=0.05)
    assert out.peak <= limit
    assert out.seconds <= 1.2 * bound(limit)


def test_the_others_need_more_memory_or_more_time() -> None:
    ours = inference(PartitionAdmission(), 2000)
    assert inference(Conservative(), 2000).seconds > 1.1 * ours.seconds
    assert inference(Adaptive(), 2000).seconds > 1.2 * ours.seconds
    staged = inference(StagedPolicy(), 2000)
    assert staged.seconds > 1.5 * ours.seconds
    assert staged.first > 50 * ours.first
    assert staged.peak > 30 * 2000


@pytest.mark.parametrize("inputs", [16, 64, 160])
def test_two_stages_find_their_share_of_the_slots(inputs) -> None:
    """Thesis figure 2.15: stages of 1 and 2 s on 8 slots, beside half of the slots for each."""

    def work(stage: int, inputs: Sequence[Piece]) -> list[tuple[float, int]]:
        return [(1.0 + stage, 100)]

    stages = [StageSpec("one", {"CPU": 1}), StageSpec("two", {"CPU": 1})]
    shape = {"limit": 10_000, "target": 100, "resources": {"CPU": 8}}
    ours = run(stages, work, inputs, PartitionAdmission(), **shape).seconds
    halves = run(stages, work, inputs, Static([4, 4]), **shape).seconds
    best = min(run(stages, work, inputs, Static([n, 8 - n]), **shape).seconds for n in range(1, 8))
    assert ours <= 0.81 * halves
    assert ours <= best / 0.95


@st.composite
def pipelines(draw):
    count = draw(st.integers(1, 4))
    resources = {"CPU": draw(st.integers(1, 8)), "GPU": draw(st.integers(1, 4))}
    stages, spec = [], []
    for i in range(count):
        name = draw(st.sampled_from(["CPU", "CPU", "GPU"])) if i else "CPU"
        stages.append(
            StageSpec(f"s{i}", {name: 1.0}, least=draw(st.sampled_from([0, 0, 3])) if i else 0)
        )
        seconds, outputs = draw(st.floats(0.05, 5)), draw(st.sampled_from([1, 1, 2, 5]))
        spec.append((seconds, outputs, draw(st.sampled_from([10, 50, 100]))))
    return stages, spec, resources, draw(st.integers(0, 25)), draw(st.integers(0, 2**20))


@given(pipelines(), st.sampled_from([0.2, 1, 2, 8]), st.sampled_from(sorted(POLICIES)[:-1]))
def test_any_pipeline_ends_with_everything_once(pipeline, room, policy) -> None:
    stages, spec, resources, inputs, seed = pipeline
    rng, busy = Random(seed), dict.fromkeys(resources, 0.0)

    def work(stage: int, inputs: Sequence[Piece]) -> list[tuple[float, int]]:
        seconds, count, nbytes = spec[stage]
        each = [
            (len(inputs) * seconds / count * rng.uniform(0.5, 1.5), nbytes) for _ in range(count)
        ]
        (name,) = stages[stage].request
        busy[name] += sum(one for one, _ in each)
        return each

    largest = max(nbytes for _, _, nbytes in spec)
    limit = int(room * (len(stages) + 1) * largest)
    out = run(
        stages, work, inputs, POLICIES[policy](), limit=limit, target=largest, resources=resources
    )
    assert len(set(out.places)) == len(out.places)
    assert out.left == 0
    assert {place[0] for place in out.places} <= set(range(inputs))
    if all(not stage.least for stage in stages):
        pieces = inputs
        for _, count, _ in spec:
            pieces *= count
        assert len(out.places) == pieces
    assert out.seconds >= max(busy[name] / resources[name] for name in busy) - 1e-6
    if policy == "partition admission" and not out.forced:
        assert out.peak <= limit


def test_replay_gives_the_same_run() -> None:
    assert inference(PartitionAdmission(), 1000, 0.3) == inference(PartitionAdmission(), 1000, 0.3)


def calls(slots: int) -> float:
    """Calls of Python functions for each piece, with so many tasks side by side."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    def work(stage: int, inputs: Sequence[Piece]) -> list[tuple[float, int]]:
        return [(1.0 + 0.01 * inputs[0].place[0], 100)]

    stages = [StageSpec("one", {"CPU": 1}), StageSpec("two", {"GPU": 1})]
    runner = SimPipeline(stages, {"CPU": slots, "GPU": slots}, work)
    sys.setprofile(note)
    try:
        simulate(runner, 300, PartitionAdmission(), limit=10**6, target=100)
    finally:
        sys.setprofile(None)
    return count / 600


def test_work_per_block_does_not_grow_with_running_tasks():
    assert calls(100) <= 1.5 * calls(4)


def thinned(outputs, *, seconds, delays, nbytes=1, limit=10_000):
    """Inputs of the calls of a second stage, in the order of its outputs, and the virtual time.

    Each load gives so many ``outputs`` of ``nbytes``, after a delay; a call takes ``seconds`` for
    each block.
    """
    calls = {}

    def work(stage: int, inputs: Sequence[Piece]) -> list[tuple[float, int]]:
        if stage == 0:
            n = inputs[0].place[0]
            return [(delays[n % len(delays)], nbytes)] * outputs[n]
        calls[inputs[0].place, 0] = [piece.place for piece in inputs]
        return [(seconds * len(inputs), sum(piece.nbytes for piece in inputs))]

    stages = [StageSpec("load", {"CPU": 1}), StageSpec("infer", {"GPU": 1})]
    slots = {"CPU": 2, "GPU": 1}
    out = run(
        stages,
        work,
        len(outputs),
        PartitionAdmission(),
        limit=limit,
        target=100,
        resources=slots,
    )
    assert out.peak <= limit
    assert sorted(calls) == [(place[:-1], 0) for place in sorted(out.places)]
    return [calls[place] for place in sorted(calls)], out.seconds


def test_small_neighbours_are_taken_together() -> None:
    calls, seconds = thinned([1] * 60, seconds=0.001, delays=[0.02])
    assert list(chain.from_iterable(calls)) == [(i, 0) for i in range(60)]
    assert len(calls) <= 15
    assert seconds < 60 * 0.02 / 2 + 0.3


@pytest.mark.parametrize(("seconds", "nbytes"), [(0.2, 1), (0.001, 100)])
def test_long_calls_and_large_blocks_stay_apart(seconds, nbytes) -> None:
    calls, _ = thinned([1] * 60, seconds=seconds, delays=[0.02], nbytes=nbytes)
    assert len(calls) == 60


@given(
    st.lists(st.sampled_from([0, 1, 1, 1, 1, 2, 3]), min_size=1, max_size=40),
    st.lists(st.sampled_from([0.001, 0.01, 0.1, 0.5]), min_size=1, max_size=7),
    st.sampled_from([0.0001, 0.01, 0.1]),
)
def test_rows_keep_their_order_where_blocks_are_taken_together(outputs, delays, seconds) -> None:
    calls, _ = thinned(outputs, seconds=seconds, delays=delays)
    assert list(chain.from_iterable(calls)) == [
        (i, j) for i, count in enumerate(outputs) for j in range(count)
    ]
