"""Whatever goes wrong, and wherever: the same result, or an error that says what and where."""

from __future__ import annotations

import pytest

from tests.faults.cells import NO_SENSE, PLACES, Cell, calm, cells

pytestmark = [pytest.mark.cluster]

SLICE = {
    "actor_killed-stream_stage",
    "node_lost-merge",
    "node_lost_and_back-stream_stage",
    "not_deterministic-map",
    "out_of_memory-merge",
    "raises_always-reduce",
    "raises_once-write",
    "random_numbers-between_stages",
    "slow-reduce",
    "spilled_file_gone-reduce",
    "worker_killed-map",
}
"""One cell of each fault, which always runs; ``pytest -m faults`` runs the others."""


def _param(cell: Cell) -> object:
    return pytest.param(
        cell, id=cell.name, marks=[] if cell.name in SLICE else [pytest.mark.faults]
    )


@pytest.mark.parametrize("cell", list(map(_param, cells())))
def test_the_result_is_the_same_or_the_error_says_what_and_where(program, cell):
    answer = program.run(cell)
    assert answer["struck"], "nobody came to the point"
    assert answer["outcome"] in (*(cell.errors or ()), *["same result"] * (not _must_fail(cell))), (
        answer["text"]
    )
    if answer["outcome"] != "same result":
        assert cell.note in answer["text"]
    elif cell.fault in ("worker killed", "actor killed"):
        assert sum(answer["repeated"].values()) >= 1


@pytest.mark.faults
@pytest.mark.parametrize("cell", calm(), ids=lambda cell: cell.name)
def test_without_a_fault_nothing_is_made_again(program, cell):
    answer = program.run(cell)
    assert (answer["outcome"], answer["repeated"]) == ("same result", {}), answer["text"]


def test_every_place_has_every_fault_or_a_reason():
    there = {(cell.fault, cell.place) for cell in cells()}
    faults = {fault for fault, _ in there} - {"spilled file gone"}
    missing = {(fault, place) for fault in faults for place in PLACES} - there
    assert missing == NO_SENSE.keys()


def test_each_fault_has_a_cell_that_always_runs():
    assert {cell.fault for cell in cells() if cell.name in SLICE} == {c.fault for c in cells()}
    assert len(SLICE) == len({cell.fault for cell in cells()})


def _must_fail(cell: Cell) -> bool:
    return cell.fault in ("raises always", "out of memory")
