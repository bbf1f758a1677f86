"""Which tasks share a call: a fair share of the ready ones, within seconds and bytes."""

from __future__ import annotations

from dask_exo.execution.batching import CallRoom, TaskStats


def taken(nbytes: int, input_bytes: int, *, pending: int, stored: int) -> int:
    """Return how many equal tasks, of 10 bytes of output each, find room."""
    room = CallRoom(seconds=10.0, nbytes=nbytes, input_bytes=input_bytes, ready=100)
    stats = TaskStats()
    stats.add(0.001, 10)
    count = 0
    while count < 100 and room.take(stats, pending, stored, inner=False):
        count += 1
    return count


def test_outputs_and_inputs_of_a_call_are_bounded_each_by_its_own() -> None:
    assert taken(95, 10**9, pending=0, stored=0) == 9
    assert taken(95, 10**9, pending=30, stored=30) == 3  # what it assembles is an output, too
    assert taken(10**9, 500, pending=0, stored=100) == 5
    assert taken(10**9, 10**9, pending=0, stored=100) == 100
