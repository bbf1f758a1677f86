"""Workers that keep a model, on a virtual clock: how many there are, and what happens to them."""

from __future__ import annotations

import pytest

from asv_bench.benchmarks.streaming_pools import JOBS, Job, OnDemand, play, started


def run(seconds, bounds, inputs=24, **options):
    """A source on four CPUs and a model on eight GPUs."""
    job = Job(["CPU", "GPU"], {"CPU": 4, "GPU": 8}, inputs, lambda i, _: seconds[i], **options)
    played = play(job, [bounds])
    assert sorted(played.places) == list(range(inputs))
    return max(count for _, count in played.futures.generators.history), played.futures


@pytest.mark.parametrize(("least", "most"), [(0, 2), (1, 6), (3, None), (2, 2)])
def test_actors_follow_the_work_within_the_bounds(least, most):
    peak, futures = run((1.0, 2.0), (least, most), loading=0)  # four inputs a second want eight
    assert [count for time, count in futures.generators.history if not time][:least] == [
        *range(1, least + 1)
    ]
    assert peak == (most or 8)
    peak, _ = run((1.0, 0.1), (least, most), loading=0)
    assert peak <= min(4, most or 4)


def test_a_worker_that_dies_is_replaced_and_its_input_done_once():
    peak, futures = run((1.0, 2.0), (1, 2), loading=0, deaths=[2.5, 4.5, 8.5])
    assert peak == 2
    assert started(futures) == 5


def test_a_worker_with_nothing_to_do_is_let_go():
    peak, futures = run((100.0, 1.0), (0, None), 12, loading=0)
    ends = [time for time, count in futures.generators.history if not count]
    assert len(ends) == 4  # started early in vain, after each of three waves of inputs
    assert peak == 4


def test_as_many_workers_as_a_stage_has_at_least_are_kept():
    _, futures = run((100.0, 1.0), (2, None), 12, loading=0)
    history = futures.generators.history[2:]
    assert not [time for time, count in history if count < 2 and time < futures.now]


# the best that never changes, of all numbers that the benchmark tries
BEST = dict(zip(JOBS, (5, 4, 4, 4), strict=True))


@pytest.mark.parametrize("name", JOBS)
def test_sizes_by_rates_are_as_good_as_the_best_static(name):
    job, best = JOBS[name], BEST[name]
    ours, fixed = play(job), play(job, [(best, best)], OnDemand)
    assert sorted(ours.places) == list(range(job.inputs))
    assert ours.seconds <= 1.08 * fixed.seconds
    if "half way" in name:
        assert fixed.seconds >= 1.05 * ours.seconds
        assert play(job, runner=OnDemand).seconds >= 1.05 * ours.seconds
