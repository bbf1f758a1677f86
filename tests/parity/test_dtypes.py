"""A shuffle changes the place of rows and nothing else: every dtype, index and odd name."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests._data import inline

SOME = [0, 1, 2, 3, 1, None, 0, 3]  # which of four values, or none


def pick(values, picks, missing):
    return [missing if i is None else values[i] for i in picks]


def arrow(kind, values):
    return lambda picks: pd.array(pick(values, picks, None), dtype=pd.ArrowDtype(kind))


DAY = pd.Timestamp("2026-03-29")
COLUMNS = {
    "int8": lambda p: np.array(pick([0, 1, -2, 127], p, 5), "int8"),
    "uint64": lambda p: np.array(pick([0, 1, 2, 2**64 - 1], p, 5), "uint64"),
    "float": lambda p: np.array(pick([0.0, -0.0, np.inf, 1.5], p, np.nan)),
    "float32": lambda p: np.array(pick([0.0, -0.0, -np.inf, 0.1], p, np.nan), "float32"),
    "bool": lambda p: np.array(pick([True, False, True, False], p, True)),
    "complex": lambda p: np.array(pick([0j, 1j, 1 + 1j, -1], p, 2j)),
    "Int64": lambda p: pd.array(pick([0, 1, 2, 2**62 + 1], p, None), dtype="Int64"),
    "Float64": lambda p: pd.array(pick([0.0, -0.0, 2.5, 3], p, None), dtype="Float64"),
    "boolean": lambda p: pd.array(pick([True, False, True, False], p, None), dtype="boolean"),
    "str": lambda p: pd.array(pick(["", "a", "ä\0b", "a" * 50], p, None), dtype="string"),
    "python str": lambda p: pd.array(
        pick(["", "a", "ä", "a" * 50], p, None), dtype="string[python]"
    ),
    "object": lambda p: pd.Series(pick(["a", 1, (2, "b"), 3.5], p, None), dtype=object).array,
    "lists": lambda p: pd.Series(pick([[1], [], {"a": 1}, {2}], p, None), dtype=object).array,
    "Decimal": lambda p: (
        pd.Series(
            pick([decimal.Decimal(s) for s in ("1.10", "2", "-3", "0")], p, None), dtype=object
        ).array
    ),
    "category": lambda p: pd.Categorical(pick(list("abcd"), p, None), categories=list("dcba")),
    "ordered": lambda p: pd.Categorical(
        pick([3, 1, 2, 4], p, None), categories=[4, 3, 2, 1], ordered=True
    ),
    "datetime": lambda p: pd.array(
        pick([DAY, DAY + pd.Timedelta("1h"), DAY, pd.Timestamp(0)], p, pd.NaT), "datetime64[ns]"
    ),
    "seconds": lambda p: np.array(
        [np.datetime64(0 if i is None else i, "s") for i in p], "datetime64[s]"
    ),
    "zoned": lambda p: (
        pd.DatetimeIndex(pick([DAY + pd.Timedelta(hours=h) for h in (0, 1, 2, 3)], p, pd.NaT))
        .tz_localize("UTC")
        .tz_convert("Europe/Berlin")
        .array
    ),
    "timedelta": lambda p: pd.array(
        pick([pd.Timedelta(days=d) for d in (0, 1, -1, 2)], p, pd.NaT), "timedelta64[ns]"
    ),
    "period": lambda p: (
        pd.PeriodIndex(
            pick(
                [pd.Period(y, "M") for y in ("2026-01", "2026-02", "2025-01", "1999-12")], p, pd.NaT
            ),
            freq="M",
        ).array
    ),
    "interval": lambda p: (
        pd.arrays.IntervalArray(
            pick([pd.Interval(i, i + 1) for i in range(4)], p, np.nan),
            dtype="interval[int64, right]",
        )
        if None not in p
        else pd.arrays.IntervalArray(
            pick([pd.Interval(float(i), i + 1.0) for i in range(4)], p, np.nan)
        )
    ),
    "arrow decimal": arrow(pa.decimal128(9, 2), [decimal.Decimal(i) for i in range(4)]),
    "arrow list": arrow(pa.list_(pa.int64()), [[1], [], [2, 3], [None]]),
    "arrow struct": arrow(pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1}] * 4),
    "arrow map": arrow(pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], [("b", 2)], []]),
    "arrow date": arrow(pa.date32(), [dt.date(2026, 1, d) for d in (1, 2, 3, 4)]),
    "arrow binary": arrow(pa.binary(), [b"", b"a", b"\0", b"abc"]),
}
INDEXES = {
    "range": pd.RangeIndex,
    "named": lambda n: pd.Index(np.arange(n) * 3 % 7, name="when"),
    "duplicate": lambda n: pd.Index(np.zeros(n, int)),
    "strings": lambda n: pd.Index([f"row {i % 3}" for i in range(n)], name=""),
    "times": lambda n: pd.date_range("2026-01-01", periods=n, freq="s", tz="UTC"),
}
NAMES = ["k", 7, ("a", 1), "", "ein Name", "_partition", "index"]

cuts = st.lists(st.integers(0, len(SOME)), max_size=4).map(sorted)


def parts_of(frame, at):
    edges = [0, *at, len(frame)]
    return [frame.iloc[a:b] for a, b in itertools.pairwise(edges)]


def part(number, parts):
    return parts[number]


def frame_of(parts):
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(part, range(len(parts)), parts=parts, meta=parts[0].iloc[:0])


def partitions(ddf, scheduler):
    return dask.compute(*ddf.to_delayed(), scheduler=scheduler)


@pytest.mark.parametrize("dtype", COLUMNS)
@given(data=st.data())
@settings(max_examples=8)
def test_a_shuffle_keeps_rows_dtypes_index_and_order(dtype, data) -> None:
    picks = data.draw(st.permutations(SOME))
    index = INDEXES[data.draw(st.sampled_from(sorted(INDEXES)))](len(picks))
    name = data.draw(st.sampled_from(NAMES))
    frame = pd.DataFrame({"key": np.arange(len(picks)) % 3, "row": range(len(picks))}, index=index)
    frame[name] = pd.Series(COLUMNS[dtype](picks), index=index)
    parts = parts_of(frame, data.draw(cuts))
    count = data.draw(st.sampled_from([1, 2, 5, 12]))
    exo = inline(data.draw(st.sampled_from([1, 3])))
    algorithm = data.draw(st.sampled_from(["simple", "push"]))
    with dask.config.set({"exo.shuffle.algorithm": algorithm}):
        shuffled = frame_of(parts).shuffle("key", npartitions=count)
        found = dask.compute(*[shuffled.partitions[j] for j in range(count)], scheduler=exo)
    for out in found:
        assert out.row.is_monotonic_increasing  # the order of the input
        assert dict(out.dtypes) == dict(frame.dtypes)
        assert out.index.dtype == frame.index.dtype
        assert out.index.names == frame.index.names
    assert sum(out.key.nunique() for out in found) == frame.key.nunique()  # equal keys meet
    whole = pd.concat([out for out in found if len(out)]).sort_values("row")
    pd.testing.assert_frame_equal(whole, frame, check_freq=False)


HASHABLE = [d for d in COLUMNS if d not in ("lists", "arrow list", "arrow struct", "arrow map")]


@pytest.mark.parametrize("dtype", HASHABLE)
@given(data=st.data())
@settings(max_examples=5)
def test_equal_keys_meet_as_on_dasks_own_scheduler(dtype, data) -> None:
    picks = data.draw(st.permutations(SOME))
    frame = pd.DataFrame({"row": range(len(picks))})
    frame["key"] = pd.Series(COLUMNS[dtype](picks))
    ddf = frame_of(parts_of(frame, data.draw(cuts)))
    count = data.draw(st.sampled_from([2, 5, 12]))
    exo = inline(3)
    shuffled = ddf.shuffle("key", npartitions=count)
    try:
        expected = dask.compute(*[shuffled.partitions[j] for j in range(count)], scheduler="sync")
    except Exception as error:  # noqa: BLE001  Dask cannot hash it
        with pytest.raises(type(error)):
            shuffled.compute(scheduler=exo)
        return
    found = dask.compute(*[shuffled.partitions[j] for j in range(count)], scheduler=exo)
    for ours, theirs in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(ours, theirs.sort_values("row"), check_freq=False)


@pytest.mark.filterwarnings("ignore:Merging dataframes", "ignore:You are merging on int")
@settings(max_examples=20)
@given(
    left=st.lists(st.sampled_from([0, 1, 2, 5]), max_size=12),
    right=st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, 2.5, np.nan]), max_size=12),
    how=st.sampled_from(["inner", "left", "right", "outer"]),
    types=st.sampled_from([("int64", "float64"), ("int8", "float32"), ("float64", "float32")]),
    at=cuts,
)
def test_numbers_of_different_types_meet_in_a_merge(left, right, how, types, at) -> None:
    one = pd.DataFrame({"key": np.array(left, types[0]), "a": range(len(left))})
    two = pd.DataFrame({"key": np.array(right, types[1]), "b": range(len(right))})
    expected = one.merge(two, on="key", how=how)
    exo = inline(3)
    lefts = parts_of(one, [i for i in at if i <= len(one)])
    rights = parts_of(two, [min(2, len(two)), min(4, len(two))])
    merged = frame_of(lefts).merge(frame_of(rights), on="key", how=how, broadcast=False)
    found = merged.compute(scheduler=exo)
    order = ["key", "a", "b"]
    pd.testing.assert_frame_equal(
        found.sort_values(order).reset_index(drop=True)[order],
        expected.sort_values(order).reset_index(drop=True)[order],
        check_dtype=False,
    )


@pytest.mark.parametrize("ordered", [False, True])
def test_categories_that_differ_between_partitions(ordered) -> None:
    if ordered:
        kinds = [pd.CategoricalDtype(list("abc"), ordered=True)] * 2
    else:
        kinds = [pd.CategoricalDtype(list("ab")), pd.CategoricalDtype(list("cba"))]
    parts = [
        pd.DataFrame({"k": [0, 1, 2, 0], "c": pd.Categorical(list("abab"), dtype=kinds[0])}),
        pd.DataFrame({"k": [0, 1, 2, 1], "c": pd.Categorical(list("ab") * 2, dtype=kinds[1])}),
    ]
    whole = pd.concat(parts)
    exo = inline(3)
    found = frame_of(parts).shuffle("k", npartitions=3).compute(scheduler=exo)
    assert isinstance(found.c.dtype, pd.CategoricalDtype)
    assert found.c.dtype.ordered is ordered
    assert sorted(zip(found.k, found.c.astype(str), strict=True)) == sorted(
        zip(whole.k, whole.c.astype(str), strict=True)
    )
    counts = frame_of(parts).groupby("c", observed=True).k.sum(split_out=2)
    expected = whole.assign(c=whole.c.astype(str)).groupby("c").k.sum()
    assert counts.compute(scheduler=exo).to_dict() == expected.to_dict()


@pytest.mark.parametrize("rows", [0, 1, 50])
def test_all_keys_equal_and_more_outputs_than_rows(rows) -> None:
    frame = pd.DataFrame({"k": np.ones(rows), "v": range(rows)})
    ddf = frame_of(parts_of(frame, [rows // 2, rows // 2]))
    exo = inline(3)
    found = ddf.shuffle("k", npartitions=9).compute(scheduler=exo)
    pd.testing.assert_frame_equal(found, frame, check_index_type=False)
    pd.testing.assert_frame_equal(
        ddf.drop_duplicates("k").compute(scheduler=exo), frame.drop_duplicates("k")
    )
