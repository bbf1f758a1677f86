"""How many workers each pool shall have, against trying all numbers."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.pipeline.streaming.actor_pools import pool_sizes
from dask_exo.pipeline.streaming.snapshot import PipelineView, StageView


def view(stages, total):
    """Stages one after the other: needs, seconds a task, and tasks side by side at most."""
    made = [
        StageView(
            queued=1,
            running=0,
            buffered=0,
            block_bytes=100,
            splits=False,
            needs=needs,
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
