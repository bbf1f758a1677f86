"""Values that a run holds, and their readers."""

from __future__ import annotations

from dask_exo.execution.persisted import Remote
from dask_exo.execution.ready_queue import HeldValues


def test_a_value_is_dropped_when_its_last_reader_takes_it() -> None:
    values = HeldValues({}, put=lambda value: "ref")
    values.add_readers(["x", "x"])
    values.add("x", Remote("ref-x", 10))
    assert values.has_readers("x", beside=1)
    assert (values.take("x").ref, values.nbytes) == ("ref-x", 10)
    assert values.has_readers("x")
    assert not values.has_readers("x", beside=1)
    assert (values.take("x").ref, values.nbytes) == ("ref-x", 0)
