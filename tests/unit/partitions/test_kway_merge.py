"""Merges that hold a chunk of each run, against a stable sort of all of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo import shuffle
from dask_exo.partitions.kernels.kway_merge import KWayMerge, merge_runs


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
