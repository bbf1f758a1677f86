"""When a computation on threads moves to Ray: a table of what its first seconds may show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dask_exo.execution.admission import Measured, reason_to_move

LOCKED = Measured(seconds=4, parallel=3, held=6, cpu=3.1, idle=2.9, done=10, left=90)


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (LOCKED, "its functions hold the interpreter lock"),
        (replace(LOCKED, cpu=5.6), ""),  # numpy and Arrow release it
        (replace(LOCKED, cpu=0.3), ""),  # it waits for a disk or a service
        (replace(LOCKED, idle=0.4), ""),  # other programs use the processors
        (replace(LOCKED, held=48, cpu=20, idle=20), "its functions hold the interpreter lock"),
        (replace(LOCKED, left=20), ""),  # Ray would start as long as it takes
        (replace(LOCKED, parallel=1, held=2, cpu=1), ""),  # not measured for long enough
        (replace(LOCKED, done=0, left=3), "its functions hold the interpreter lock"),
        (replace(LOCKED, cpu=5.6, spilled=1), "its values do not fit in memory beside the program"),
        (Measured(), ""),
    ],
)
def test_work_moves_for_the_lock_and_for_memory_if_enough_is_left(measured, reason) -> None:
    assert reason_to_move(measured) == reason
