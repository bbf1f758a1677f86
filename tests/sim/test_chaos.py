"""Jobs on simulated clusters with bad luck: what pandas says, or an error of a known type."""

from __future__ import annotations

import pytest

from asv_bench.benchmarks import chaos
from asv_bench.simulation.random_faults import weather


def test_results_are_those_of_pandas_whatever_happens() -> None:
    seen = [chaos.simulated(seed) for seed in range(25)]
    assert {one.split(":")[0] for one in seen} == {*chaos.JOBS, "pipeline"}
    assert sum("right" in one for one in seen) > 15


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_determines_faults_and_all_kinds_occur(seed) -> None:
    assert weather(seed) == weather(seed)
    many = [weather(100 * seed + i) for i in range(100)]
    assert any(one.faults for one in many)
    assert any(fault.back is None for one in many for fault in one.faults)
    assert not all(one.faults for one in many)
    assert {one.noise > 1 for one in many} == {True, False}
    assert {one.channels is None for one in many} == {True, False}
    assert len({one.nodes[0].store for one in many}) == 3


def test_without_deaths_for_good_every_result_comes() -> None:
    assert not any(f.back is None for s in range(50) for f in weather(s, deadly=False).faults)
