"""Rows on their way against what pandas makes of the same rows."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.partitions import protocol, wire_dtypes
from dask_exo.partitions.wire_format import (
    WireColumns,
    WireFrame,
    WireRows,
    concat,
    same_schema,
    to_wire,
)

MAKERS = {
    "int64": lambda v: pd.Series(v, dtype="int64"),
    "also int64": lambda v: pd.Series([-x for x in v], dtype="int64"),
    "int16": lambda v: pd.Series(v, dtype="int16"),
    "float": lambda v: pd.Series([None if x == 3 else x for x in v], dtype="float64"),
    "bool": lambda v: pd.Series([x > 5 for x in v], dtype="bool"),
    "day": lambda v: pd.Series(v, dtype="datetime64[us]"),
    "delta": lambda v: pd.Series(v, dtype="timedelta64[ms]"),
    "str": lambda v: pd.Series([None if x == 7 else "é" * x for x in v], dtype="str"),
    "string": lambda v: pd.Series([None if x == 1 else f"{x}" for x in v], dtype="string[pyarrow]"),
    "object": lambda v: pd.Series([(x, "t") for x in v], dtype="object"),
    "int16 of Arrow": lambda v: pd.Series(v, dtype="int16[pyarrow]"),
    "bool of Arrow": lambda v: pd.Series([x > 4 for x in v], dtype="bool[pyarrow]"),
    "stamp of Arrow": lambda v: pd.Series(v, dtype=pd.ArrowDtype(pa.timestamp("us", "UTC"))),
    "decimal of Arrow": lambda v: pd.Series(v, dtype=pd.ArrowDtype(pa.decimal128(12, 2))),
    "string of Arrow": lambda v: pd.Series(
        [None if x == 2 else "é" * x for x in v], dtype=pd.ArrowDtype(pa.string())
    ),
    "large string of Arrow": lambda v: pd.Series(
        list(map(str, v)), dtype=pd.ArrowDtype(pa.large_string())
    ),
    "binary of Arrow": lambda v: pd.Series(
        [bytes([x]) * 7 for x in v], dtype=pd.ArrowDtype(pa.binary(7))
    ),
}
WITH_NULLS = {
    "double with nulls": pd.Series([1.5, None, 3.0], dtype="double[pyarrow]"),
    "bool with nulls": pd.Series([True, None, False], dtype="bool[pyarrow]"),
    "day with nulls": pd.Series([0, None, 7], dtype="date32[day][pyarrow]"),
    "binary with nulls": pd.Series([b"abc", None, b"xyz"], dtype=pd.ArrowDtype(pa.binary(3))),
}
INDEXES = {
    "range": lambda v: pd.RangeIndex(len(v)),
    "int": lambda v: pd.Index(v, name="i", dtype="int64"),
    "str": lambda v: pd.Index(list(map(str, v)), name=("a", 1), dtype="string[pyarrow]"),
    "time": lambda v: pd.DatetimeIndex(np.array(v, "M8[s]")),
    "Arrow": lambda v: pd.Index(v, name="a", dtype="int32[pyarrow]"),
}


def sent(rows: WireRows) -> WireRows:
    """What arrives: in memory of somebody else, which cannot be written to."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(rows, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(b.raw()) for b in buffers])  # noqa: S301


@st.composite
def cases(draw: st.DrawFn) -> tuple[pd.DataFrame, pd.DataFrame]:
    names = draw(st.lists(st.sampled_from(sorted(MAKERS)), unique=True))
    index = draw(st.sampled_from(sorted(INDEXES)))
    labels = draw(st.sampled_from(["names", "numbers", "doubled"]))
    frames = []
    for _ in range(2):
        values = draw(st.lists(st.integers(0, 9), max_size=12))
        frame = pd.DataFrame({n: MAKERS[n](values) for n in names}, index=range(len(values)))
        frame.index = INDEXES[index](values)
        if labels == "numbers":
            frame.columns = pd.RangeIndex(len(names))
        elif labels == "doubled":
            frame.columns = pd.Index(["same"] * len(names), dtype=object, name="labels")
        frames.append(frame)
    return frames[0], frames[1]


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, expected, check_column_type="equiv", check_freq=False)


@given(cases(), st.randoms(use_true_random=False), st.booleans())
def test_rows_arrive_as_pandas_would_take_and_concatenate_them(frames, random, ignore_index):
    travelled, expected = [], []
    for frame in frames:
        order = np.array(random.sample(range(len(frame)), len(frame)), dtype=np.int64)
        start = random.randint(0, len(frame))
        stop = random.randint(start, len(frame))
        rows = to_wire(frame, order, ignore_index=ignore_index)
        assert isinstance(rows, WireColumns)
        assert rows.length == len(frame)
        travelled.append(sent(rows.slice(start, stop)))
        wanted = frame.take(order).iloc[start:stop]
        expected.append(wanted.reset_index(drop=True) if ignore_index else wanted)
        same(travelled[-1].to_frame(), expected[-1])
    assert same_schema(travelled)
    together = concat(travelled)
    whole = pd.concat(expected, ignore_index=ignore_index)
    same(together.to_frame(), whole)
    backwards = np.arange(len(whole))[::-1]
    turned = whole.take(backwards)
    if ignore_index:
        turned = turned.reset_index(drop=True)
    same(together.take(backwards).to_frame(), turned)


@pytest.mark.parametrize("name", sorted(WITH_NULLS))
def test_nulls_of_arrow_arrive(name: str) -> None:
    frame = pd.DataFrame({"v": WITH_NULLS[name], "x": range(3)})
    frame["cut"] = pd.concat([frame["v"], frame["v"]], ignore_index=True).iloc[2:5].array
    rows = to_wire(frame, np.array([2, 1, 0]))
    assert isinstance(rows, WireColumns)
    some = sent(rows.slice(0, 2))
    pd.testing.assert_frame_equal(some.to_frame(), frame.take([2, 1]))
    pd.testing.assert_frame_equal(concat([rows, some]).to_frame(), frame.take([2, 1, 0, 2, 1]))
    whole = to_wire(frame.dropna(), np.array([0]))  # a part without nulls
    assert not same_schema([rows, whole])
    both = concat([rows, whole]).to_frame()
    pd.testing.assert_frame_equal(
        both, pd.concat([frame.take([2, 1, 0]), frame.dropna().take([0])])
    )


def test_what_is_under_a_null_is_not_sent() -> None:
    def column(hidden: int) -> pd.DataFrame:
        bits = pa.array([True, False, True]).buffers()[1]
        buffers = [bits, pa.py_buffer(np.array([1, hidden, 3]))]
        values = pa.Array.from_buffers(pa.int64(), 3, buffers)
        return pd.DataFrame({"v": pd.arrays.ArrowExtensionArray(values)})

    first, second = (to_wire(column(hidden), np.arange(3)) for hidden in (7, 9))
    assert pickle.dumps(first) == pickle.dumps(second)


def test_strings_that_32_bits_cannot_count_come_in_pieces() -> None:
    strings = pd.Series([f"{i:09d}" for i in range(50)], dtype=pd.ArrowDtype(pa.string()))
    arrived, _ = wire_dtypes.decode(*wire_dtypes.encode([strings], np.arange(50)), limit=100)
    assert pa.array(arrived).num_chunks > 4
    pd.testing.assert_series_equal(pd.Series(arrived), strings)


UNUSUAL = {
    "lists": pd.DataFrame({"l": pd.Series([[1], [2]], dtype=pd.ArrowDtype(pa.list_(pa.int8())))}),
    "category": pd.DataFrame({"c": pd.Categorical(["a", "b"])}),
    "nullable": pd.DataFrame({"n": pd.array([1, None], dtype="Int64")}),
    "zoned": pd.DataFrame({"z": pd.to_datetime([1, 2], utc=True)}),
    "levels": pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([(1, 2), (3, 4)])),
    "level names": pd.DataFrame({("a", "b"): [1, 2]}),
    "stamps": pd.DataFrame({pd.Timestamp("2026-01-01"): [1, 2]}),
    "objects": pd.DataFrame({"a": [1, 2]}, index=pd.Index([1, "b"], dtype=object)),
    "periods": pd.DataFrame({"a": [1, 2]}, index=pd.period_range("2026", periods=2)),
}


@pytest.mark.parametrize("name", sorted(UNUSUAL))
def test_other_frames_travel_as_they_are(name: str) -> None:
    frame, order = UNUSUAL[name], np.array([1, 0])
    rows = to_wire(frame, order)
    assert isinstance(rows, WireFrame)
    pd.testing.assert_frame_equal(sent(rows).to_frame(), frame.take(order))
    both = concat([rows, rows.slice(0, 1)], ignore_index=True)
    expected = protocol.concat([frame.take(order), frame.take([1])], ignore_index=True)
    pd.testing.assert_frame_equal(both.to_frame(), expected)
    alone = concat([rows.slice(1, 2)], ignore_index=True)
    pd.testing.assert_frame_equal(alone.to_frame(), frame.take([0]).reset_index(drop=True))


def test_attributes_and_subclasses_of_frames_survive() -> None:
    class Mine(pd.DataFrame):
        _constructor = property(lambda self: Mine)

    noted = pd.DataFrame({"a": [1, 2]})
    noted.attrs["unit"] = "m"
    assert to_wire(noted, np.array([0])).to_frame().attrs == {"unit": "m"}
    assert type(to_wire(Mine({"a": [1]}), np.array([0])).to_frame()) is Mine


def test_frames_that_differ_are_put_together_as_dask_does_it() -> None:
    ints, floats = pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [0.5]})
    one, other = (to_wire(f, np.array([0])) for f in (ints, floats))
    assert not same_schema([one, other])
    same(concat([one, other]).to_frame(), protocol.concat([ints, floats]))
    named = to_wire(ints.rename_axis("i"), np.array([0]))
    assert not same_schema([one, named])


def test_one_dtype_is_one_block_and_equal_names_one_schema() -> None:
    names = ["".join(["k", "ey"]), "key"]  # two objects
    frames = [pd.DataFrame({name: [1], "b": [2], "c": [0.5]}) for name in names]
    frames[1].index.name = None
    first, second = (to_wire(frame, np.array([0]), ignore_index=True) for frame in frames)
    assert [a.shape for a in first.arrays] == [(2, 1), (1, 1)]
    assert first.schema == second.schema


def test_a_part_sends_its_own_bytes_only() -> None:
    frame = pd.DataFrame({"x": np.arange(1000.0), "s": ["abcd"] * 1000})
    frame = frame.astype({"s": "string[pyarrow]"})
    rows = to_wire(frame, np.arange(1000), ignore_index=True)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(rows.slice(500, 510), protocol=5, buffer_callback=buffers.append)
    assert sum(b.raw().nbytes for b in buffers) == 10 * 8 + 11 * 8 + 10 * 4
    assert len(data) < 1000
    assert 10 * (8 + 8 + 4) <= rows.slice(500, 510).nbytes < 250


def test_naming_the_columns_of_one_frame_leaves_others_alone() -> None:
    rows = to_wire(pd.DataFrame({"a": [1]}), np.array([0]))
    rows.to_frame().columns.name = "mine"
    assert rows.to_frame().columns.name is None
