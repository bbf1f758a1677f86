"""Partitions of cudf, of which a module stands in that has the same few names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions import protocol
from dask_exo.partitions.wire_format import WireTable
from dask_exo.planning.partitioners import RowPartitioner
from tests._data import inline


@pytest.fixture(scope="module")
def cudf() -> Iterator[ModuleType]:
    made = ModuleType("cudf")

    class DataFrame(pd.DataFrame):
        """A frame of pandas under another name."""

        came: int = 0

        @property
        def _constructor(self) -> type:
            return DataFrame

        def to_arrow(self) -> pa.Table:
            return pa.Table.from_pandas(pd.DataFrame(self))

        @classmethod
        def from_arrow(cls, table: pa.Table) -> Any:
            DataFrame.came += 1
            return cls(table.to_pandas())

    class Series(pd.Series):
        """Never made here."""

    class Index:
        """Never made here."""

    for kind in (DataFrame, Series, Index):
        kind.__module__ = "cudf"
        setattr(made, kind.__name__, kind)
    sys.modules["cudf"] = made
    sys.modules["dask_cudf"] = ModuleType("dask_cudf")  # what pandas has registered is taken
    yield made
    del sys.modules["cudf"], sys.modules["dask_cudf"]


def rows(n: int = 300) -> pd.DataFrame:
    random = np.random.default_rng(4)
    frame = pd.DataFrame({"k": random.integers(0, 30, n), "x": random.random(n)})
    return frame.assign(s=pd.Series(random.choice(["a", "bb"], n), dtype="str"))


def test_partitions_lie_on_a_device(cudf: ModuleType) -> None:
    assert protocol.on_device(cudf.DataFrame({"a": [1]}))
    assert not protocol.on_device(pd.DataFrame({"a": [1]}))


@pytest.mark.parametrize("ignore_index", [False, True])
def test_rows_are_split_there_and_travel_as_arrow(cudf: ModuleType, ignore_index: bool) -> None:
    frame = rows()
    split = RowPartitioner(column=["k"], count=5, keys=("k",), ignore_index=ignore_index)
    (mine,), sent = split.cut([cudf.DataFrame(frame)], [range(5)])
    (theirs,), _ = split.cut([frame], [range(5)])
    assert isinstance(mine.rows, WireTable)
    for r in range(5):
        found, arrived = split.assemble([mine, mine], r, r)
        expected, _ = split.assemble([theirs, theirs], r, r)
        assert type(found) is cudf.DataFrame
        pd.testing.assert_frame_equal(pd.DataFrame(found), expected, check_dtype=False)
    assert arrived.rows <= 2 * sent.rows


@pytest.mark.parametrize("algorithm", ["simple", "push"])
def test_a_shuffle_ends_in_frames_of_cudf(cudf: ModuleType, algorithm: str) -> None:
    frame = rows()
    parts = [cudf.DataFrame(frame.iloc[i : i + 60]) for i in range(0, 300, 60)]
    there = dd.from_map(lambda part: part, parts, meta=parts[0].iloc[:0])
    scheduler = inline(2)
    with dask.config.set({"scheduler": scheduler, "exo.shuffle.algorithm": algorithm}):
        outputs = dask.compute(*there.shuffle("k", npartitions=4).partitions)
    assert all(type(output) is cudf.DataFrame for output in outputs)
    keys = [set(output.k) for output in outputs]
    assert sum(map(len, keys)) == len(set(frame.k))
    found = pd.concat(map(pd.DataFrame, outputs)).sort_index()
    pd.testing.assert_frame_equal(found, frame, check_dtype=False)


def test_our_sort_says_what_to_take_instead(cudf: ModuleType) -> None:
    with pytest.raises(DeviceOperationError, match=r"sort_values by \['k'\].*ddf.sort_values"):
        dask.compute(
            dd.from_map(cudf.DataFrame, [rows(9)], meta=cudf.DataFrame(rows(0))).exo.sort_values(
                "k"
            ),
            scheduler=inline(2),
        )
