"""Values that a run holds, and their readers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dask_exo.cluster.task_status import OutputDigest
from dask_exo.errors import IntegrityError
from dask_exo.execution.persisted import Remote
from dask_exo.execution.ready_queue import HeldValues
from dask_exo.partitions.digest import digest


def test_a_value_is_dropped_when_its_last_reader_takes_it() -> None:
    values = HeldValues({}, put=lambda value: "ref")
    values.add_readers(["x", "x"])
    values.add("x", Remote("ref-x", 10))
    assert values.has_readers("x")
    assert (values.take("x").ref, values.nbytes) == ("ref-x", 10)
    assert values.has_readers("x")
    assert (values.take("x").ref, values.nbytes) == ("ref-x", 0)
    assert not values.has_readers("x")


@pytest.mark.parametrize("parts", [1, 2])
def test_a_stored_value_that_has_changed_is_an_error(parts: int) -> None:
    frame = pd.DataFrame({"n": np.arange(100), "s": "text"})
    output = OutputDigest("call-1", "read", parts, digest(frame))
    values = HeldValues({}, put=lambda value: "ref")
    values.add_readers(["x", "y"])
    for key in "xy":
        values.add(key, Remote("ref", 10, output))
    assert values.fetch("x", lambda refs: [frame]) is frame
    changed = frame.assign(n=frame.n.where(frame.n != 7, 8))
    if parts > 1:  # the digest is of several values
        assert values.fetch("y", lambda refs: [changed]) is changed
        return
    with pytest.raises(IntegrityError, match="'read' has changed"):
        values.fetch("y", lambda refs: [changed])
