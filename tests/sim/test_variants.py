"""The papers' figure 3.4 on simulated nodes: who falls behind as partitions grow."""

from __future__ import annotations

import pytest

from asv_bench.benchmarks.variants import DATA, NODES, run


def test_out_of_core_simple_falls_behind_and_push_stays_flat() -> None:
    few, many = ({name: run(name, m, 0.3) for name in ("simple", "push")} for m in (64, 256))
    assert many["simple"].seconds > 2.5 * few["simple"].seconds
    assert many["push"].seconds < 1.2 * few["push"].seconds
    assert many["push"].seconds < many["simple"].seconds / 4
    for found in (few, many):
        assert found["push"].spilled < 1.1 * DATA
        assert found["push"].restored < 1.1 * DATA


@pytest.mark.parametrize(("store", "best"), [(2.5, "simple"), (0.3, "push")])
def test_auto_takes_the_one_that_is_made_for_it(store, best) -> None:
    found = {name: run(name, 64, store) for name in ("auto", "simple", "push")}
    assert found["auto"].algorithm == best
    assert found["auto"] == found[best]
    assert found["auto"].seconds == min(one.seconds for one in found.values())


def test_rows_cross_the_network_once() -> None:
    away = DATA * (NODES - 1) // NODES
    for name in ("simple", "push", "magnet"):
        assert run(name, 64, 2.5).moved == pytest.approx(away, rel=0.02)


def test_magnet_spills_its_map_outputs_too() -> None:
    assert run("magnet", 64, 0.3).spilled > 1.7 * run("push", 64, 0.3).spilled
