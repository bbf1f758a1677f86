"""Large outputs of a sort: merged a chunk at a time, as if they had been sorted as a whole."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from itertools import pairwise

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo import Scheduler
from dask_exo.cluster.futures import Node
from dask_exo.partitions.kernels import sort_keys
from dask_exo.partitions.kernels.kway_merge import merge_sorted_tables, sorted_runs
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.wire_format import concat, to_wire
from dask_exo.planning import partitioners as split
from dask_exo.testing import InlineFutures

VALUES = {
    "i": st.integers(-5, 5),
    "f": st.one_of(st.none(), st.floats(-2, 2)),
    "s": st.one_of(st.none(), st.sampled_from(["", "a", "ab", "é"])),
}


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    n = draw(st.integers(0, 40))
    data = {name: draw(st.lists(one, min_size=n, max_size=n)) for name, one in VALUES.items()}
    types = {"i": "i8", "f": "f8", "s": dd.from_pandas(pd.DataFrame({"s": ["a"]})).s.dtype}
    frame = pd.DataFrame(data).astype(types)
    return frame.set_axis(pd.RangeIndex(100, 100 + n))


def whole(frame: pd.DataFrame):
    return to_wire(frame, np.arange(len(frame)))


@given(
    frames(),
    st.lists(st.sampled_from([*VALUES, None]), min_size=1, max_size=3, unique=True),
    st.booleans(),
    st.lists(st.integers(0, 40), max_size=4),
    st.integers(1, 3000),
)
def test_runs_of_any_columns_are_merged_as_pandas_sorts(frame, by, ascend, cuts, limit) -> None:
    keys = [SortKey(name, name, ascending=ascend) for name in by]
    ends = sorted({0, len(frame), *(cut for cut in cuts if cut < len(frame))})
    parts = [sort_keys.sort(frame.iloc[a:b], keys) for a, b in pairwise(ends)] or [frame]
    # two of three parts are in one table, as merges leave them
    tables = [concat([whole(part) for part in parts[i : i + 2]]) for i in range(0, len(parts), 2)]
    got = merge_sorted_tables(tables, keys, limit).to_frame()
    pd.testing.assert_frame_equal(got, sort_keys.sort(pd.concat(parts), keys))
    assert sum(len(sorted_runs(table, keys)) for table in tables) <= len(parts)


def test_one_copy_and_not_two_is_held() -> None:
    rng = np.random.default_rng(1)
    keys = [SortKey("k", "k")]
    parts = [pd.DataFrame(rng.random((20_000, 9)), columns=list("kabcdefgh")) for _ in range(10)]
    tables = [whole(sort_keys.sort(part, keys)) for part in parts]
    nbytes = sum(table.nbytes for table in tables)

    def peak(make) -> float:
        tracemalloc.start()
        made = make()
        assert len(made) == 200_000
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found / nbytes

    assert peak(lambda: merge_sorted_tables(tables, keys, nbytes // 20).to_frame()) < 1.3
    assert peak(lambda: sort_keys.sort(concat(tables).to_frame(), keys)) > 2


@pytest.mark.parametrize("share", [0.0, 0.9, 1.0])
def test_a_sort_merges_what_exceeds_the_limit_and_nothing_else(share, monkeypatch) -> None:
    rng = np.random.default_rng(3)
    keys = np.where(rng.random(3000) < share, 7, rng.integers(0, 1000, 3000))
    frame = pd.DataFrame({"k": keys, "s": [f"{i:05}" for i in range(3000)]})
    ddf = dd.from_pandas(frame, npartitions=12)
    sizes = []

    def noted(tables, *args):
        sizes.append(sum(table.nbytes for table in tables))
        return merge_sorted_tables(tables, *args)

    monkeypatch.setattr(split, "merge_sorted_tables", noted)
    expected = frame.sort_values("k", kind="stable")
    for limit, merged in ((8000, 3), (10**6, 0)):
        sizes.clear()
        f = InlineFutures([Node("a", 2, 10**6)])
        with dask.config.set({"exo.shuffle.merge-limit": limit}):
            got = ddf.exo.sort_values("k", npartitions=3).compute(scheduler=Scheduler(f))
        pd.testing.assert_frame_equal(got, dd.from_pandas(expected, 1, sort=False).compute())
        assert len(sizes) == merged
        assert all(size > limit for size in sizes)


ON_ARROW = {
    "number": ("int64[pyarrow]", lambda x: None if x == 3 else x),
    "string": (pd.ArrowDtype(pa.string()), str),
    "decimal": (pd.ArrowDtype(pa.decimal128(12, 2)), Decimal),
    "bytes": (pd.ArrowDtype(pa.binary(5)), lambda x: bytes([x]) * 5),
    "stamp": ("timestamp[us][pyarrow]", lambda x: x),
}


@pytest.mark.parametrize("name", sorted(ON_ARROW))
def test_runs_of_columns_on_arrow_are_merged(name: str) -> None:
    rng = np.random.default_rng(1)
    dtype, make = ON_ARROW[name]
    runs = [
        pd.DataFrame(
            {"v": pd.Series([make(x) for x in rng.integers(0, 50, n).tolist()], dtype=dtype)}
        )
        .assign(at=range(n))
        .sort_values("v", ignore_index=True)
        for n in (300, 200)
    ]
    merged = merge_sorted_tables([whole(run) for run in runs], [SortKey("v", "v")], 2000).to_frame()
    pd.testing.assert_frame_equal(merged, pd.concat(runs).sort_values("v", kind="stable"))
