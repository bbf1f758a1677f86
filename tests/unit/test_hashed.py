"""The partition of each row by a hash, which has to be that of Dask."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from dask_exo.dask_adapter import AssignPartitioningIndex
from dask_exo.frame import hashed

DTYPES = ["int8", "uint16", "int32", "int64", "uint64", "float32", "float64"]
ODD = [0.0, -0.0, float("nan"), float("inf"), 1.5, 2.0**53]


def both(frame, keys, npartitions, meta=None, *, index=False):
    given = (frame, keys, "to", npartitions, frame.head(0) if meta is None else meta, index)
    return hashed.assign_partitions(*given), AssignPartitioningIndex.operation(*given)


@given(
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3),
    npartitions=st.sampled_from([1, 2, 7, 160, 300, 70_000, 2**62]),
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([0, 1, 10, 40]),
)
def test_partitions_are_those_of_dask(dtypes, npartitions, seed, rows) -> None:
    rng = np.random.default_rng(seed)
    columns = {
        f"{i}": (rng.choice(ODD, rows) if "f" in dtype else rng.integers(0, 100, rows)).astype(
            dtype
        )
        for i, dtype in enumerate(dtypes)
    }
    frame = pd.DataFrame({**columns, "x": range(rows)})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hashed, "_BLOCK", 16)
        assert hashed._numbers(frame, list(columns), frame.head(0))
        got, expected = both(frame, list(columns), npartitions)
    assert_frame_equal(got, expected)


FRAME = pd.DataFrame(
    {"k": [1, 2, 3], "s": ["a", "b", None], "b": [True, False, True], "n": pd.array([1, None, 2])},
    index=pd.Index([3, 4, 5], name="i"),
)
OTHERS = {
    "strings": (FRAME, ["s"]),
    "truths": (FRAME, ["b"]),
    "nullable": (FRAME, ["n", "k"]),
    "level": (FRAME, ["i", "k"]),
    "series": (FRAME, FRAME.k * 2),
    "twice": (FRAME, ["k", "k"]),
    "same names": (FRAME.set_axis(["k", "k", "b", "n"], axis=1), ["b"]),
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_what_is_not_known_is_left_to_dask(name) -> None:
    frame, keys = OTHERS[name]
    got, expected = both(frame, keys, 9)
    assert_frame_equal(got, expected)
    assert not hashed._numbers(frame, keys, frame.head(0))


def test_what_dask_takes_for_another_type_is_left_to_dask() -> None:
    got, expected = both(FRAME, ["k"], 9, FRAME.head(0).astype({"k": "str"}))
    assert_frame_equal(got, expected)
    got, expected = both(FRAME, ["_index"], 9, index=True)
    assert_frame_equal(got, expected)
