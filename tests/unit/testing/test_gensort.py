"""Sort-benchmark records: the same rows whatever the partitioning, in the byte layout said."""

from __future__ import annotations

import itertools

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.testing import gensort as module
from dask_exo.testing.gensort import KEYS, frame, records


def to_bytes(rows: pd.DataFrame) -> list[bytes]:
    return [
        int(high).to_bytes(8, "big") + int(low).to_bytes(2, "big") + payload
        for high, low, payload in rows.itertuples(index=False)
    ]


def splitmix64(state: int) -> int:
    z = state % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@given(st.integers(0, 40_000), st.integers(0, 9000), st.lists(st.integers(0, 9000)), st.integers())
def test_rows_do_not_depend_on_how_they_are_cut(start, count, cuts, seed):
    edges = sorted({0, count, *(c for c in cuts if c < count)})
    pieces = [records(start + a, b - a, seed=seed, skew=0.3) for a, b in itertools.pairwise(edges)]
    whole = records(start, count, seed=seed, skew=0.3)
    if pieces:
        pd.testing.assert_frame_equal(pd.concat(pieces), whole, check_index_type=False)


@given(st.integers(0, 2**40), st.integers(0, 2**64))
def test_key_is_splitmix64_of_the_row_number(row, seed):
    made = records(row, 1, seed=seed)
    golden = 0x9E3779B97F4A7C15
    assert made["key_hi"][row] == splitmix64((row + splitmix64(2 * seed)) * golden)
    assert made["key_lo"][row] == splitmix64((row + splitmix64(2 * seed + 1)) * golden) % 2**16


def test_layout():
    rows = records(3, 1000, seed=1)
    assert list(rows.columns) == ["key_hi", "key_lo", "payload"]
    assert rows.dtypes.tolist() == [np.uint64, np.uint16, pd.ArrowDtype(pa.binary(90))]
    assert rows.index.equals(pd.RangeIndex(3, 1003))
    whole = to_bytes(rows)
    assert {len(r) for r in whole} == {100}
    assert [int.from_bytes(r[10:18], "little") for r in whole] == list(range(3, 1003))
    assert len({r[18:] for r in whole}) == 1000


@given(st.integers(0, 100), st.sampled_from([0.0, 1.0, 30.0]))
def test_sorting_columns_is_sorting_bytes(seed, skew):
    rows = records(0, 300, seed=seed, skew=skew)
    by_columns = to_bytes(rows.sort_values([*KEYS], kind="stable"))
    assert [r[:10] for r in by_columns] == sorted(r[:10] for r in to_bytes(rows))


def test_seeds_differ_and_payloads_with_them():
    one, two = records(0, 100, seed=1), records(0, 100, seed=2)
    assert not (one["key_hi"] == two["key_hi"]).any()
    assert not set(to_bytes(one)) & set(to_bytes(two))


def test_uniform_without_skew():
    keys = records(0, 100_000, seed=5, columns=["key_hi", "key_lo"])
    assert keys["key_hi"].is_unique
    for column, bits in (("key_hi", 64), ("key_lo", 16)):
        counts = np.bincount((keys[column].to_numpy() >> np.uint64(bits - 4)).astype(int))
        assert len(counts) == 16
        assert counts.min() > 5900
        assert counts.max() < 6600


@pytest.mark.parametrize(("skew", "below"), [(0.0, 1 / 16), (1.0, 1 / 4), (3.0, 1 / 2)])
def test_skew_is_a_power_law(skew, below):
    keys = records(0, 50_000, seed=5, skew=skew)["key_hi"].to_numpy()
    assert np.mean(keys < 2**60) == pytest.approx(below, abs=0.01)


def test_much_skew_makes_equal_keys_but_no_equal_records():
    rows = records(0, 50_000, seed=5, skew=30.0)
    assert rows.duplicated(list(KEYS)).sum() > 100
    assert len(set(to_bytes(rows))) == 50_000


@given(st.floats(0, 40))
def test_power_is_that_of_floats(skew):
    base = np.linspace(0.001, 0.999, 50)
    sixteenths = round((1 + skew) * 16)
    np.testing.assert_allclose(
        module._power(base, sixteenths), base ** (sixteenths / 16), rtol=1e-12
    )


def test_bad_arguments():
    with pytest.raises(ValueError, match="skew"):
        records(0, 1, seed=0, skew=-1)
    with pytest.raises(ValueError, match="skew"):
        records(0, 1, seed=0, skew=float("nan"))
    with pytest.raises(KeyError, match="nope"):
        records(0, 1, seed=0, columns=["nope"])


def test_frame_is_cut_evenly():
    made = frame(1_000_050, seed=1, partition_bytes=30_000)
    lengths = made.map_partitions(len).compute(scheduler="sync")
    assert sum(lengths) == 10_000
    assert max(lengths) <= 300
    assert max(lengths) - min(lengths) <= 1
    pd.testing.assert_frame_equal(
        made.compute(scheduler="sync"), records(0, 10_000, seed=1), check_index_type=False
    )


def test_frame_of_nothing():
    made = frame(99, seed=1, partition_bytes=1)
    assert made.npartitions == 1
    assert len(made.compute(scheduler="sync")) == 0


@pytest.mark.parametrize("columns", ["key_hi", ["key_hi", "payload"]])
def test_projection_reaches_the_generator(monkeypatch, columns):
    asked = []

    def spy(*args, columns=None, **kwargs):
        asked.append(columns)
        return records(*args, columns=columns, **kwargs)

    monkeypatch.setattr(module, "records", spy)
    made = frame(10_000, seed=1, partition_bytes=5000)
    asked.clear()
    with dask.config.set(scheduler="sync"):
        result = made[columns].compute()
    assert asked == [[columns] if isinstance(columns, str) else columns] * 2
    expected = records(0, 100, seed=1)[columns]
    assert result.to_numpy().tolist() == expected.to_numpy().tolist()
