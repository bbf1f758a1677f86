"""Values of classes that Dask does not know: large ones stay in the object store."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dask_exo.cluster.ownership import size_of
from dask_exo.dask_adapter import DataNode, Task, TaskRef
from dask_exo.execution.messages import Job, TaskCode
from dask_exo.execution.worker import run_bundles
from dask_exo.planning.planner import plan


class Box:
    """Holds anything."""

    def __init__(self, content):
        self.content = content


class Locked:
    """Cannot be sent."""

    def __reduce__(self):
        raise TypeError("no such luck")


@pytest.mark.parametrize(
    "value",
    [
        Box(np.zeros(10_000)),
        Box(pd.DataFrame({"x": range(10_000)})),
        Box(["text"] * 1000 + [str(i) for i in range(30_000)]),
        {"of": [Box(np.zeros(10_000))]},
    ],
)
def test_what_an_object_holds_counts(value) -> None:
    assert size_of(value, most=50_000) > 50_000


@pytest.mark.parametrize("value", [Box(1), Locked(), 3, "a", [1], np.zeros(3), pd.Series([1])])
def test_small_values_are_small(value) -> None:
    assert size_of(value, most=50_000) < 5000


def test_a_large_object_is_not_in_the_receipt(monkeypatch) -> None:
    monkeypatch.setattr("dask_exo.execution.worker.shares_process", lambda: False)
    job = Job("a", [("a", Task("a", Box, np.zeros(10_000)))], {})
    *values, (receipt,) = run_bundles(TaskCode([job], {}, compares=False), 50_000)
    assert isinstance(values[0], Box)
    assert not receipt.small
    assert receipt.value is None
    assert receipt.nbytes > 50_000


def test_a_large_object_in_a_graph_is_not_copied_into_each_task() -> None:
    graph = {
        "box": DataNode("box", Box(np.zeros(100_000))),
        **{key: Task(key, len, TaskRef("box")) for key in ("a", "b")},
    }
    made = plan(graph, ["a", "b"], small=50_000)
    assert all(not bundle.literals for bundle in made.bundles)
    assert made.literals.keys() == {"box"}
