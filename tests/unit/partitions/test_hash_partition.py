"""The partition of each row by a hash, which has to be that of Dask."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal
from pandas.util import hash_array

from dask_exo.dask_adapter import AssignPartitioningIndex
from dask_exo.partitions.kernels import hash_partition

INTEGERS = ["int8", "uint16", "int32", "int64", "uint64"]
DTYPES = [*INTEGERS, "float32", "float64", "str", "string[pyarrow]"]
NUMBERS = [0.0, -0.0, float("nan"), float("inf"), 1.5, 2.0**53]

TEXTS = np.array(["", "a", None, "é" * 3, "1234567", "12345678", "123456789", "x" * 30], object)
VALUES = {"str": TEXTS, "string[pyarrow]": TEXTS, "float32": NUMBERS, "float64": NUMBERS}


def both(frame, keys, npartitions, meta=None, *, index=False):
    given = (frame, keys, "to", npartitions, frame.head(0) if meta is None else meta, index)
    return hash_partition.assign_partitions(*given), AssignPartitioningIndex.operation(*given)


@given(
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3),
    npartitions=st.sampled_from([1, 2, 7, 160, 300, 70_000, 2**62]),
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([0, 1, 10, 40]),
)
def test_partitions_are_those_of_dask(dtypes, npartitions, seed, rows) -> None:
    rng = np.random.default_rng(seed)
    columns = {
        str(i): pd.Series(rng.choice(VALUES.get(dtype, 100), rows), dtype=dtype)
        for i, dtype in enumerate(dtypes)
    }
    frame = pd.DataFrame({**columns, "x": range(rows)})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hash_partition.cardinality, "estimate_distinct", len)
        found = hash_partition.hash_partitions(
            [frame[key] for key in columns], npartitions, block=16, fewest=0
        )
    got, expected = both(frame, list(columns), npartitions)
    assert_frame_equal(got, expected)
    np.testing.assert_array_equal(found, got["to"])
    assert hash_partition._is_supported(frame, list(columns), frame.head(0))


FRAME = pd.DataFrame(
    {"k": [1, 2, 3], "s": ["a", "b", None], "b": [True, False, True], "n": pd.array([1, None, 2])},
    index=pd.Index([3, 4, 5], name="i"),
)
OTHERS = {
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
    assert not hash_partition._is_supported(frame, keys, frame.head(0))


def test_what_dask_takes_for_another_type_is_left_to_dask() -> None:
    got, expected = both(FRAME, ["k"], 9, FRAME.head(0).astype({"k": "str"}))
    assert_frame_equal(got, expected)
    got, expected = both(FRAME, ["_index"], 9, index=True)
    assert_frame_equal(got, expected)


@pytest.mark.parametrize("longest", [3, 20, 255, 256, 300])
def test_strings_of_all_lengths_have_the_hash_of_pandas(longest) -> None:
    rng = np.random.default_rng(longest)
    texts = ["".join(rng.choice(list("aé漢\0"), n)) for n in rng.integers(0, longest + 1, 300)]
    strings = pd.array([*texts, None, "x" * longest], dtype="str")
    found = hash_partition.hash_strings(pa.array(strings), block=100)
    assert found.tolist() == hash_array(strings).tolist()
    some = hash_partition.hash_strings(pa.array(strings)[7:20], block=100)
    assert some.tolist() == found[7:20].tolist()


def test_where_strings_repeat_pandas_hashes_them(monkeypatch) -> None:
    seen: list[int] = []
    fake = lambda texts: seen.append(len(texts)) or np.zeros(1)  # noqa: E731
    monkeypatch.setattr(hash_partition, "hash_strings", fake)
    few = pd.Series([f"{i % 100}" for i in range(20_000)], dtype="str")
    assert hash_partition._of_texts(few).tolist() == hash_array(few.array).tolist()
    assert seen == []
    hash_partition._of_texts(pd.Series([f"{i}" for i in range(20_000)], dtype="str"))
    assert seen == [20_000]
