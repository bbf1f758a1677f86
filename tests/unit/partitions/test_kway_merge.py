"""Merges that hold a chunk of each run, against a stable sort of all of them."""

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

from dask_exo import Scheduler, shuffle
from dask_exo.cluster.futures import Node
from dask_exo.partitions.kernels import sort_keys
from dask_exo.partitions.kernels.kway_merge import (
    KWayMerge,
    merge_runs,
    merge_sorted_tables,
    sorted_runs,
)
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.wire_format import concat, to_wire
from dask_exo.planning import partitioners as split
from dask_exo.testing import InlineFutures


def stable(rows):
    keys = rows["k"].to_numpy() if isinstance(rows, pd.DataFrame) else rows[:, 0]
    return np.argsort(keys, kind="stable")


def of_keys(lists) -> list[np.ndarray]:
    """Sorted runs of (key, number of the row)."""
    runs, count = [], 0
    for keys in lists:
        runs.append(np.column_stack([np.sort(keys), np.arange(count, count + len(keys))]))
        count += len(keys)
    return [run.astype("i8").reshape(-1, 2) for run in runs]


@given(st.lists(st.lists(st.integers(0, 9), max_size=30), max_size=7), st.integers(1, 2000))
def test_chunks_one_after_the_other_are_the_sorted_whole(lists, limit) -> None:
    runs = of_keys(lists)
    merging = KWayMerge(runs, stable, limit)
    chunks = list(merging)
    whole = np.concatenate([np.empty((0, 2), "i8"), *runs])
    got = np.concatenate([np.empty((0, 2), "i8"), *chunks])
    np.testing.assert_array_equal(got, whole[stable(whole)])
    full = [run for run in runs if len(run)]
    assert merging.peak <= max(limit, 16 * len(full))
    assert len(chunks) <= sum(-(-len(run) // merging.step) for run in full)


@pytest.mark.parametrize("skew", [0.0, 0.9, 1.0])
def test_no_more_than_the_limit_is_held_however_frequent_a_key(skew) -> None:
    rng = np.random.default_rng(2)
    lists = [np.where(rng.random(5000) < skew, 7, rng.integers(0, 10**6, 5000)) for _ in range(20)]
    runs = of_keys(lists)
    merging = KWayMerge(runs, stable, 64_000)
    chunks = list(merging)
    assert sum(map(len, chunks)) == 100_000
    assert merging.peak <= 64_000 < sum(run.nbytes for run in runs) / 20
    assert len(chunks) <= 20 * -(-5000 // merging.step)


def test_runs_that_follow_each_other_are_not_sorted() -> None:
    runs = of_keys([range(100 * i, 100 * i + 100) for i in range(10)])
    sorted_rows = []

    def counted(rows):
        sorted_rows.append(len(rows))
        return stable(rows)

    assert sum(len(chunk) for chunk in merge_runs(runs, counted, 1600)) == 1000
    assert max(sorted_rows) == 2 * 10  # the edges of all chunks


def test_one_key_is_not_sorted_however_many_rows_it_has() -> None:
    runs = of_keys([[7] * 5000] * 10)
    sorted_rows = []

    def counted(rows):
        sorted_rows.append(len(rows))
        return stable(rows)

    chunks = list(merge_runs(runs, counted, 16_000))
    np.testing.assert_array_equal(np.concatenate(chunks), np.concatenate(runs))
    assert max(chunk.nbytes for chunk in chunks) <= 16_000
    assert sum(sorted_rows) < 1000


def test_frames_are_merged_too() -> None:
    frame = pd.DataFrame({"k": [1, 3, 5, 2, 3, 9], "s": list("abcdef")})
    runs = [frame.iloc[:3], frame.iloc[3:]]
    got = pd.concat(merge_runs(runs, stable, 60))
    pd.testing.assert_frame_equal(got, frame.sort_values("k", kind="stable"))


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="an array or a DataFrame, not list"):
        list(shuffle.merge_runs([[1]], stable, 1))


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
