"""A frame on a device, on numpy, is that of pandas."""

from __future__ import annotations

import operator
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.errors import DeviceOperationError, DeviceTypeError
from dask_exo.partitions import protocol
from dask_exo.partitions.gpu import arrays, dispatch
from dask_exo.partitions.gpu.segments import Segments
from dask_exo.partitions.gpu_frames import (
    DeviceFrame,
    DeviceIndex,
    DeviceSeries,
    concat,
    elementwise,
)
from dask_exo.partitions.kernels import argsort
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.wire_format import concat_same_schema, same_schema
from tests._data import MODULE

FEW = settings(max_examples=12)  # they are slow to draw
WORDS = ["", "a", "ab", "é", "zz", "B"]
MOMENTS = [0, -1, 10**15, 1_600_000_000_000_000, -(10**14)]


def maybe(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(st.none(), values)


CELLS = {
    "i": st.integers(-3, 3),
    "u": st.integers(0, 4),
    "f": st.sampled_from([np.nan, 0.0, -0.0, 1.5, -2.25, 1e300]),
    "s": maybe(st.sampled_from(WORDS)),
    "t": maybe(st.sampled_from(MOMENTS)),
    "b": st.booleans(),
    "n": maybe(st.integers(-2, 2)),
}
DTYPES: dict[str, Any] = {
    "i": "int64",
    "u": "uint64",
    "f": "float64",
    "s": "str",
    "t": "datetime64[us]",
    "b": "bool",
    "n": "Int64",
}


def build(cells: list[tuple[Any, ...]]) -> pd.DataFrame:
    columns = list(zip(*cells, strict=True)) or [()] * len(CELLS)
    return pd.DataFrame(
        {
            name: pd.Series(list(values), dtype=DTYPES[name])
            for name, values in zip(CELLS, columns, strict=True)
        }
    )


FRAMES = st.lists(st.tuples(*CELLS.values()), max_size=14).map(build)
KEYS = st.lists(st.sampled_from(list(CELLS)), min_size=1, max_size=3, unique=True)


def on_device(frame: pd.DataFrame) -> DeviceFrame:
    return DeviceFrame.from_pandas(frame, MODULE)


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found.to_pandas(), expected)
    else:
        pd.testing.assert_series_equal(found.to_pandas(), expected)


@FEW
@given(FRAMES)
def test_it_comes_back_from_the_device_and_from_a_pickle(frame: pd.DataFrame) -> None:
    there = on_device(frame)
    same(there, frame)
    same(pickle.loads(pickle.dumps(there)), frame)  # noqa: S301


@FEW
@given(FRAMES, KEYS, st.lists(st.booleans(), min_size=3, max_size=3), st.booleans())
def test_rows_are_sorted_as_pandas_sorts_them(
    frame: pd.DataFrame, by: list[str], ways: list[bool], first: bool
) -> None:
    how: dict[str, Any] = {
        "ascending": ways[: len(by)],
        "na_position": "first" if first else "last",
    }
    same(on_device(frame).sort_values(by, **how), frame.sort_values(by, kind="stable", **how))


AGGREGATIONS = {
    "sum": ["i", "f", "b", "n"],
    "count": ["f", "s", "t", "n"],
    "mean": ["i", "f", "n"],
    "min": ["i", "u", "f", "s", "t", "n", "b"],
    "max": ["i", "u", "f", "s", "t", "n", "b"],
    "var": ["i", "n"],
}


@FEW
@given(FRAMES, KEYS, st.sampled_from(list(AGGREGATIONS)), st.booleans(), st.booleans())
def test_groups_are_those_of_pandas(
    frame: pd.DataFrame, by: list[str], name: str, sort: bool, dropna: bool
) -> None:
    columns = [column for column in AGGREGATIONS[name] if column not in by]
    how: dict[str, Any] = {"sort": sort, "dropna": dropna, "observed": True}
    if not columns or not len(frame):
        return
    with np.errstate(all="ignore"):
        expected = getattr(frame.groupby(by, **how)[columns], name)()
        same(getattr(on_device(frame).groupby(by, **how)[columns], name)(), expected)


@FEW
@given(FRAMES, FRAMES, KEYS, st.sampled_from(["inner", "left"]))
def test_joins_are_those_of_pandas(
    left: pd.DataFrame, right: pd.DataFrame, on: list[str], how: Any
) -> None:
    if how != "inner":  # booleans become objects with nulls, which no device has
        left, right = (df.drop(columns="b") if "b" not in on else df for df in (left, right))
    right = right[[*on, *[c for c in ("i", "s", "n") if c not in on]]]
    if "b" in on and how != "inner":
        left, right = left[on], right[on]
    found = on_device(left).merge(on_device(right), how, on).to_pandas()
    expected = left.merge(right, how, on)
    pd.testing.assert_frame_equal(found, expected)


@FEW
@given(FRAMES, KEYS, st.sampled_from(["first", "last", False]))
def test_duplicates_are_those_of_pandas(frame: pd.DataFrame, by: list[str], keep: Any) -> None:
    there = on_device(frame)
    same(there.drop_duplicates(by, keep=keep), frame.drop_duplicates(by, keep=keep))
    assert len(there[by[0]].unique()) == len(frame[by[0]].unique())


@FEW
@given(st.lists(FRAMES, min_size=1, max_size=3))
def test_frames_are_put_below_each_other(frames: list[pd.DataFrame]) -> None:
    found = concat([on_device(frame) for frame in frames]).to_pandas()
    pd.testing.assert_frame_equal(found, pd.concat(frames), check_index_type=False)


@FEW
@given(FRAMES, KEYS)
def test_hashes_are_those_of_pandas(frame: pd.DataFrame, by: list[str]) -> None:
    there = on_device(frame)[by]
    frame = frame.assign(f=frame.f + 0.0)  # pandas before 3.1 has another hash for -0.0
    expected = pd.util.hash_pandas_object(frame[by], index=False).to_numpy()
    assert dispatch.hashes(there, index=False).values.tolist() == expected.tolist()
    zeros = on_device(pd.DataFrame({"f": [0.0, -0.0]}))
    assert len(set(dispatch.hashes(zeros, index=False).values.tolist())) == 1


OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "eq", "ne", "lt", "ge"]


@FEW
@given(
    FRAMES,
    st.sampled_from(OPERATORS),
    st.sampled_from([("i", "f"), ("i", "i"), ("f", "n"), ("u", "u")]),
)
def test_arithmetic_is_that_of_pandas(
    frame: pd.DataFrame, name: str, pair: tuple[str, str]
) -> None:
    if "n" in pair and name in ("floordiv", "mod"):
        return  # what pandas has there differs between its versions
    apply, there = getattr(operator, name), on_device(frame)
    with np.errstate(all="ignore"):
        same(apply(there[pair[0]], there[pair[1]]), apply(frame[pair[0]], frame[pair[1]]))
        same(apply(there[pair[0]], 2), apply(frame[pair[0]], 2))
        same(apply(3, there[pair[1]]), apply(3, frame[pair[1]]))


@FEW
@given(FRAMES, st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]), st.sampled_from(WORDS))
def test_strings_and_times_are_compared_as_in_pandas(
    frame: pd.DataFrame, name: str, word: str
) -> None:
    apply, there = getattr(operator, name), on_device(frame)
    same(apply(there.s, word), apply(frame.s, word))
    other = frame.s.iloc[::-1].reset_index(drop=True)
    same(apply(there.s, DeviceSeries.from_pandas(other, MODULE)), apply(frame.s, other))
    moment = pd.Timestamp("2001-09-09 01:46:40")
    same(apply(there.t, moment), apply(frame.t, moment))
    same(there.t - moment, frame.t - moment)


@FEW
@given(FRAMES, st.sampled_from(["sum", "mean", "min", "max", "count", "var"]))
def test_reductions_are_those_of_pandas(frame: pd.DataFrame, name: str) -> None:
    there = on_device(frame)
    for column in ("i", "f", "n"):
        with np.errstate(all="ignore"):
            found, expected = (getattr(df[column], name)() for df in (there, frame))
        assert (pd.isna(found) and pd.isna(expected)) or found == pytest.approx(expected)


@FEW
@given(FRAMES)
def test_rows_are_changed_as_in_pandas(frame: pd.DataFrame) -> None:
    there = on_device(frame)
    same(there[there.i > 0], frame[frame.i > 0])
    same(there.dropna(subset=["f", "s"]), frame.dropna(subset=["f", "s"]))
    same(there.f.fillna(7), frame.f.fillna(7))
    same(there.s.fillna("none"), frame.s.fillna("none"))
    same(there.n.fillna(1), frame.n.fillna(1))
    same(there.n.astype("Float64"), frame.n.astype("Float64"))
    same(there.set_index(["s", "i"]), frame.set_index(["s", "i"]))
    same(
        there.rename(columns={"f": "g"}).drop(columns="s"),
        frame.rename(columns={"f": "g"}).drop(columns="s"),
    )


@FEW
@given(FRAMES, st.sampled_from([["i"], ["s", "n"], ["f"]]), st.integers(1, 4))
def test_a_shuffle_splits_it_as_pandas_and_puts_it_together(
    frame: pd.DataFrame, by: list[str], count: int
) -> None:
    there = on_device(frame)
    mine, theirs = protocol.kernels(there), protocol.kernels(frame)
    ids = mine.partition_ids(there, by, count)
    assert ids.tolist() == theirs.partition_ids(frame, by, count).tolist()
    order, offsets = mine.counting_argsort(ids, count)
    assert offsets.tolist() == theirs.counting_argsort(arrays.host(ids), count)[1].tolist()
    rows = pickle.loads(pickle.dumps(mine.to_wire(there, order)))  # noqa: S301
    pieces = [rows.slice(a, b) for a, b in pairwise(offsets)]
    assert same_schema(pieces)
    same(concat_same_schema(pieces).to_frame(), frame.take(arrays.host(order)))
    assert mine.checksum(there, by)[1] == theirs.checksum(frame, by)[1] or "n" in by


@FEW
@given(FRAMES, KEYS)
def test_sort_keys_are_those_of_the_host(frame: pd.DataFrame, by: list[str]) -> None:
    keys = [SortKey(name, name, i % 2 == 0, i == 1) for i, name in enumerate(by)]
    there = on_device(frame)
    expected = protocol.kernels(frame).sort(frame, keys)
    same(protocol.kernels(there).sort(there, keys), expected)


def test_who_registers_nothing_is_treated_as_the_host_is() -> None:
    assert protocol.kernels(pd.DataFrame()).counting_argsort is argsort.counting_argsort


@pytest.mark.parametrize(
    ("do", "named"),
    [
        (lambda df: df.pivot_table(), "pivot_table"),
        (lambda df: df.s.corr(df.s), "corr"),
        (lambda df: df.groupby("i").apply(len), "apply"),
        (lambda df: df.sum(axis=1), "sum"),
        (lambda df: df.f + df.f[1:], "labels"),
        (lambda df: df.merge(df, "cross"), "cross"),
        (lambda df: df.merge(df, "outer", on="i"), "outer"),
        (lambda df: df.loc[[1, 2]], "loc with labels"),
        (lambda df: df.i.astype("str"), "astype.*int64"),
        (lambda df: df.f.quantile(0.5, "midpoint"), "midpoint"),
        (lambda df: df.s.str, "str"),
        (lambda df: df.sum(), "sum"),
        (lambda df: df.mean(), "mean"),
    ],
)
def test_what_is_not_there_is_named_and_so_is_the_way_out(do: Any, named: str) -> None:
    there = on_device(build([(1, 1, 1.0, "a", 0, True, 1)] * 3))
    with pytest.raises(DeviceOperationError, match=named) as caught:
        do(there)
    assert "to_backend('pandas')" in str(caught.value)


@pytest.mark.parametrize(
    ("do", "instead"),
    [
        (lambda df: df.groupby("i", as_index=False), ".reset_index()"),
        (lambda df: df.s.rename({1: 2}), "assign .index"),
        (lambda df: concat([df, df[["i"]]]), "select the same columns"),
        (lambda df: df + df[["i"]], "select the same columns"),
    ],
)
def test_where_another_step_on_the_gpu_does_it_the_error_names_that(do: Any, instead: str) -> None:
    there = on_device(build([(1, 1, 1.0, "a", 0, True, 1)] * 3))
    with pytest.raises(DeviceOperationError) as caught:
        do(there)
    assert instead in str(caught.value)


@pytest.mark.skipif(MODULE == "numpy", reason="numpy has all functions of numpy")
def test_a_function_that_only_numpy_has_is_named() -> None:
    there = on_device(build([(1, 1, 1.0, "a", 0, True, 1)] * 3))
    with pytest.raises(DeviceOperationError, match=r"function spacing of numpy.*to_backend"):
        np.spacing(there.f)


def test_durations_and_small_integers_have_the_dtypes_of_pandas() -> None:
    frame = pd.DataFrame(
        {"d": pd.to_timedelta([1, 2, None], "h"), "i": np.array([3, 1, 2], "int8")}
    )
    there, hour = on_device(frame), pd.Timedelta("1h")
    same(there.d // hour, frame.d // hour)
    same(there.d[:2] // hour, frame.d[:2] // hour)
    same(there.d / hour, frame.d / hour)
    assert there.d.sum() == frame.d.sum()


def test_a_column_that_no_device_has_is_named() -> None:
    with pytest.raises(DeviceTypeError, match=r"'what'.*object.*astype"):
        on_device(pd.DataFrame({"what": [[1], [2]]}))
    with pytest.raises(DeviceTypeError, match=r"'what'.*category.*astype"):
        on_device(pd.DataFrame({"what": pd.Categorical(["a"])}))


def test_plain_columns_are_given_without_a_copy() -> None:
    there = on_device(pd.DataFrame({"a": [1.0, 2.0]}))
    xp = arrays.module(MODULE)
    if xp is np:
        assert np.shares_memory(np.from_dlpack(there.a), there.a.values)
    else:
        assert xp.asarray(there.a).data.ptr == there.a.values.data.ptr
    assert isinstance(there.index, DeviceIndex)
    assert there.nbytes == 16


@given(st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=20))
def test_floats_are_divided_as_numpy_does(pairs) -> None:
    a, b = np.array(pairs).T
    xp = arrays.module(MODULE)
    with np.errstate(all="ignore"):
        divided = elementwise.divide_floats(xp, xp.asarray(a), xp.asarray(b))
        floor, rest = (arrays.host(each) for each in divided)
        np.testing.assert_array_equal(rest, np.remainder(a, b))
        np.testing.assert_array_equal(floor, np.floor_divide(a, b))
        np.testing.assert_array_equal(np.signbit(rest), np.signbit(np.remainder(a, b)))


def test_integers_have_no_negative_power() -> None:
    with pytest.raises(ValueError, match="negative integer powers"):
        elementwise.check_exponent(np, np.array([2]), np.array([-1]))
    with pytest.raises(ValueError, match="negative integer powers"):
        elementwise.check_exponent(np, np.array([2]), -1)
    elementwise.check_exponent(np, np.array([2.0]), -1)
    elementwise.check_exponent(np, np.array([2]), 1.5)


class OnGpu(np.ndarray):
    """An array that another library has on a GPU."""

    __cuda_array_interface__ = property(lambda self: self.__array_interface__)


def on_gpu(values) -> Any:
    if MODULE == "numpy":
        return np.asarray(values).view(OnGpu)
    return arrays.module(MODULE).asarray(values)


def test_arrays_of_other_libraries_become_columns(monkeypatch) -> None:
    if MODULE == "numpy":
        monkeypatch.setattr(elementwise.arrays, "module", lambda name: np)
    frame = on_device(pd.DataFrame({"a": [1, 2, 3]}))
    assert frame.assign(b=on_gpu([4.0, 5.0, 6.0])).to_pandas().b.tolist() == [4.0, 5.0, 6.0]
    with monkeypatch.context() as patch:  # for which pandas takes a tensor of PyTorch
        patch.setattr(pd.api.types, "is_scalar", lambda value: True)
        assert frame.assign(b=on_gpu([4, 5, 6])).to_pandas().b.tolist() == [4, 5, 6]
    assert frame.assign(b=on_gpu(7)).to_pandas().b.tolist() == [7, 7, 7]
    assert (frame["a"] - on_gpu(1)).to_pandas().tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"shape \(3, 1\) was given for 3 rows: make it one value"):
        frame.assign(b=on_gpu([[1], [2], [3]]))
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        frame.assign(b=on_gpu([1, 2]))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int8", "uint64", "bool"])
@pytest.mark.parametrize("operation", ["sum", "min", "max", "count"])
@pytest.mark.parametrize("sizes", [[1], [5, 1, 3], [3000, 1, 1025, 1024], [1] * 50, []])
def test_segments_are_reduced_as_pandas_does(operation: str, dtype: str, sizes: list[int]) -> None:
    random = np.random.default_rng(len(sizes))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    rows = random.permutation(len(groups))
    values = random.integers(0, 100, len(groups)).astype(dtype)
    if dtype.startswith("float"):
        values[random.random(len(groups)) < 0.3] = np.nan
    xp = arrays.module(MODULE)
    bounds = np.cumsum([0, *sizes])
    found = Segments(xp.asarray(rows), xp.asarray(bounds)).reduce(xp.asarray(values), operation)
    expected = getattr(pd.Series(values[rows]).groupby(groups), operation)()
    np.testing.assert_allclose(arrays.host(found), expected.to_numpy(), rtol=1e-6)


def test_keys_in_a_narrow_range_take_few_bytes() -> None:
    xp = arrays.module(MODULE)
    for high, width in ((200, 1), (60_000, 2), (10**9, 4), (10**12, 8)):
        codes = xp.asarray(np.array([-5, high - 5, 0]))
        narrowed = arrays.narrow(codes)
        assert narrowed.dtype.itemsize == (8 if MODULE == "numpy" else width)
        assert arrays.host(narrowed.argsort()).tolist() == [0, 2, 1]
