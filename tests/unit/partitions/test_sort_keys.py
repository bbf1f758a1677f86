"""The kernels of a sort: the order of rows, the place of bounds in them, the choice of bounds."""

from __future__ import annotations

import decimal
import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dask_exo.errors import SortKeyError
from dask_exo.partitions.kernels import range_partition, sort_keys
from dask_exo.partitions.kernels.argsort import stable_argsort
from dask_exo.partitions.kernels.sort_keys import SortKey, encode

TIMES = [pd.NaT, *map(pd.Timestamp, ["2026-01-01", "1999-12-31 23:59:59", "2026-03-29 03:00"])]
BIG = 2**63 - 1

# with several keys, pandas 2 sorts objects as if text ended there
NUL = ["a\x00b"] if pd.Series(["a"]).dtype == "str" else []

# what a column may hold, and its dtype
COLUMNS = {
    "int64": ([-5, 0, 3, 7, BIG, -BIG - 1], "int64"),
    "int8": ([-128, -1, 0, 127], "int8"),
    "uint64": ([0, 1, 2**64 - 1, 2**63], "uint64"),
    "float64": ([-0.0, 0.0, 1.5, -2.25, 1e300, np.nan], "float64"),
    "float32": ([-0.0, 0.0, 0.1, -0.1, np.nan], "float32"),
    "bool": ([True, False], "bool"),
    "Int64": ([1, 5, BIG, -BIG - 1, None], "Int64"),
    "Int8": ([1, 127, -128, None], "Int8"),
    "UInt64": ([0, 2**64 - 1, 1, None], "UInt64"),
    "boolean": ([True, False, None], "boolean"),
    "Float64": ([1.5, -1.5, 0.0, -0.0, None], "Float64"),
    "str": (["a", "b", "", "é", "Z", *NUL, None], "str"),
    "string": (["a", "b", "", "\U0001f600", None], "string[pyarrow]"),
    "python string": (["a", "b", "", None], "string[python]"),
    "objects": (["a", "b", "", *NUL, None, np.nan], object),
    "unordered": (["x", "y", "z", None], pd.CategoricalDtype(["z", "x", "y", "w"])),
    "ordered": ([3, 1, 2, None], pd.CategoricalDtype([3, 1, 2], ordered=True)),
    "datetime": (TIMES, "datetime64[ns]"),
    "seconds": (TIMES, "datetime64[s]"),
    "zone": (TIMES, pd.DatetimeTZDtype("ns", "Europe/Vienna")),
    "timedelta": ([None, "1h", "-1h", "0s"], "timedelta64[ns]"),
    "period": (["2026-01", "2025-12", None], "period[M]"),
    "decimal": ([*map(decimal.Decimal, ["1.10", "1.1", "-2"]), None], object),
    "tuples": ([(1, "a"), (1, "b"), (0, "z"), None], object),
    "arrow int": ([1, -1, BIG, None], "int64[pyarrow]"),
    "arrow date": ([None, pd.Timestamp("2026-01-01").date()], "date32[pyarrow]"),
    "interval": (list(pd.interval_range(0, 4)), None),
}  # fmt: skip


def column(name: str, values: list[object]) -> pd.Series:
    dtype = COLUMNS[name][1]
    if name in ("seconds", "zone", "datetime"):
        times = pd.Series(values, dtype="datetime64[ns]")
        return (times.dt.tz_localize("Europe/Vienna") if name == "zone" else times).astype(dtype)
    if dtype is object:  # as it is, tuples too
        made = pd.Series([None] * len(values), dtype=object)
        for i, value in enumerate(values):
            made.iat[i] = value
        return made
    if dtype is None:
        return pd.Series(pd.arrays.IntervalArray(values, dtype="interval[int64, right]"))
    return pd.Series(values, dtype=dtype)


@st.composite
def frames(draw: st.DrawFn, most: int = 40) -> pd.DataFrame:
    """One to three columns of any kinds, with many ties."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
    rows = draw(st.integers(0, most))
    made = {}
    for j, name in enumerate(names):
        pool = st.sampled_from(COLUMNS[name][0])
        made[f"{j}"] = column(name, draw(st.lists(pool, min_size=rows, max_size=rows)))
    return pd.DataFrame(made)


@st.composite
def keyed(draw: st.DrawFn) -> tuple[pd.DataFrame, list[SortKey]]:
    frame = draw(frames())
    first = draw(st.booleans())
    return frame, [SortKey(n, n, draw(st.booleans()), first) for n in frame.columns]


def by_pandas(frame: pd.DataFrame, keys: list[SortKey]) -> list[int]:
    """The oracle: row numbers in pandas' stable order."""
    ordered = frame.reset_index(drop=True).sort_values(
        [key.column for key in keys],
        ascending=[key.ascending for key in keys],
        na_position="first" if keys[0].nulls_first else "last",
        kind="stable",
    )
    return ordered.index.tolist()


@given(keyed())
def test_rows_are_in_the_order_of_pandas(case) -> None:
    frame, keys = case
    expected = by_pandas(frame, keys)
    assert sort_keys.order(sort_keys.columns(frame, keys), keys).tolist() == expected
    pd.testing.assert_frame_equal(sort_keys.sort(frame, keys), frame.take(expected))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_every_kind_of_column_is_sorted_as_by_pandas(name, ascending, first) -> None:
    values = COLUMNS[name][0]
    frame = pd.DataFrame({"0": column(name, [*values, *values[::-1], *values])})
    keys = [SortKey("k", "0", ascending, first)]
    assert sort_keys.order(sort_keys.columns(frame, keys), keys).tolist() == by_pandas(frame, keys)


def test_infinities_are_values_and_not_nulls() -> None:
    values = [np.inf, np.nan, -np.inf, 0.0, np.nan, -np.inf]
    frame = pd.DataFrame({"0": values})
    for ascending in (True, False):
        for first in (True, False):
            keys = [SortKey("k", "0", ascending, first)]
            got = sort_keys.order(sort_keys.columns(frame, keys), keys).tolist()
            assert got == by_pandas(frame, keys)


@given(st.lists(st.integers(-(2**63), BIG) | st.sampled_from([0, 70_000, -BIG]), max_size=200))
@example([0, 70_000, 0, 70_000, 70_000, 0])
def test_integers_are_sorted_stably(values) -> None:
    codes = np.array(values, np.int64)
    assert stable_argsort(codes).tolist() == sorted(range(len(values)), key=values.__getitem__)


def test_many_wide_integers_are_sorted_stably() -> None:
    # numpy sorts long arrays by other means than short ones
    rng = np.random.default_rng(0)
    codes = rng.integers(-(2**62), 2**62, 400).take(rng.integers(0, 400, 50_000))
    assert np.array_equal(stable_argsort(codes), np.argsort(codes, kind="stable"))


def test_three_keys_too_wide_for_one_integer() -> None:
    rng = np.random.default_rng(1)
    pool = rng.integers(-(2**63), BIG, 7)
    frame = pd.DataFrame(rng.choice(pool, (3000, 3)), columns=["0", "1", "2"])
    keys = [SortKey(n, n, a) for n, a in zip("012", (True, False, True), strict=True)]
    assert sort_keys.order(sort_keys.columns(frame, keys), keys).tolist() == by_pandas(frame, keys)


def test_a_frame_that_is_sorted_is_not_copied() -> None:
    frame = pd.DataFrame({"0": [1, 1, 2]})
    assert sort_keys.sort(frame, [SortKey("a", "0")]) is frame


def test_the_index_can_be_a_key() -> None:
    frame = pd.DataFrame({"0": range(4)}, index=pd.Index([3.0, None, 1.0, 3.0], name="t"))
    got = sort_keys.sort(frame, [SortKey("t", None, ascending=False)])
    pd.testing.assert_frame_equal(got, frame.sort_index(ascending=False, kind="stable"))


def test_unhashable_values_are_sorted() -> None:
    frame = pd.DataFrame({"0": [[2], [1, 5], None, [1], [1, 5]]})
    keys = [SortKey("k", "0")]
    assert sort_keys.order(sort_keys.columns(frame, keys), keys).tolist() == by_pandas(frame, keys)


def test_values_without_a_common_order_are_refused() -> None:
    with pytest.raises(SortKeyError, match=r"sort key 'k' \(object\) have no common order"):
        encode([pd.Series([1, "a"], dtype=object)], [SortKey("k", "0")])


@given(keyed(), st.data())
def test_a_bound_is_located_where_pandas_would_put_it(case, data) -> None:
    frame, keys = case
    frame = frame.take(by_pandas(frame, keys))
    if not len(frame):
        return
    size = data.draw(st.integers(1, 6))
    chosen = data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=size, max_size=size))
    after = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    kept = frame.take(sorted(set(range(len(frame))) - set(chosen[::2])))  # some are not there
    theirs = frame.take(chosen)
    got = sort_keys.locate(
        sort_keys.columns(kept, keys), sort_keys.columns(theirs, keys), keys, after
    ).tolist()
    for j, place in enumerate(got):
        bound = theirs.iloc[[j]]
        both = pd.concat([kept, bound] if after[j] else [bound, kept])
        assert by_pandas(both, keys).index(len(kept) if after[j] else 0) == place


def test_a_bound_is_located_in_many_rows() -> None:
    values = np.sort(np.random.default_rng(2).integers(0, 10**6, 300_000))
    theirs = np.arange(-1, 10**6, 997)
    after = theirs % 2 == 0
    got = sort_keys.locate([pd.Series(values)], [pd.Series(theirs)], [SortKey("a", "0")], after)
    sides = [np.searchsorted(values, theirs, side) for side in ("left", "right")]
    assert np.array_equal(got, np.where(after, sides[1], sides[0]))


def cut_all(
    runs: list[pd.DataFrame], keys: list[SortKey], pieces: int, size: int
) -> list[np.ndarray]:
    samples = [range_partition.sample_run(run, keys, i, size) for i, run in enumerate(runs)]
    chosen = range_partition.choose_bounds(keys, pieces, *samples)
    return [range_partition.cut_run(run, keys, i, chosen, pieces) for i, run in enumerate(runs)]


@given(keyed(), st.integers(1, 5), st.integers(1, 9), st.integers(1, 50))
def test_pieces_one_after_the_other_are_the_sorted_whole(case, count, pieces, size) -> None:
    frame, keys = case
    frame = frame.assign(row=range(len(frame)))
    ends = np.linspace(0, len(frame), count + 1).astype(int)
    runs = [frame.iloc[a:b] for a, b in itertools.pairwise(ends)]
    runs = [run.take(by_pandas(run, keys)) for run in runs]
    edges = cut_all(runs, keys, pieces, size)
    got = []
    for j in range(pieces):
        piece = pd.concat([r.iloc[e[j] : e[j + 1]] for r, e in zip(runs, edges, strict=True)])
        got += piece["row"].iloc[by_pandas(piece, keys)].tolist()
    assert got == by_pandas(frame, keys)


@pytest.mark.parametrize(
    "values", ["one value", "random", "sorted", "one run has all", "uneven runs"]
)
@pytest.mark.parametrize("pieces", [2, 10, 60])
def test_pieces_are_even_whatever_the_data(values, pieces) -> None:
    rng = np.random.default_rng(3)
    rows, count = 60_000, 12
    data = {
        "one value": np.zeros(rows),
        "random": rng.random(rows),
        "sorted": np.arange(rows) / 7,
        "one run has all": rng.random(rows),
        "uneven runs": -np.arange(rows) / 7,
    }[values]
    lengths = {
        "one run has all": [0] * 5 + [rows] + [0] * 6,
        "uneven runs": [1, 29_000, 70, 900, 0, 7000, 30, 12_000, 4999, 1000, 4000, 1000],
    }.get(values, [rows // count] * count)
    ends = np.cumsum([0, *lengths])
    keys = [SortKey("a", "0")]
    runs = [pd.DataFrame({"0": np.sort(data[a:b])}) for a, b in itertools.pairwise(ends)]
    edges = np.sum(cut_all(runs, keys, pieces, range_partition.sample_size(count, pieces)), axis=0)
    assert edges[0] == 0
    assert edges[-1] == rows
    assert np.abs(np.diff(edges) - rows / pieces).max() <= rows / pieces / 4


@given(st.integers(1, 10**5), st.integers(1, 10**5))
def test_samples_fit_one_task(runs, pieces) -> None:
    size = range_partition.sample_size(runs, pieces)
    assert 1 <= size <= 8 * pieces
    assert size == 1 or runs * size <= 2**22


def test_categories_are_united_in_the_order_they_are_met() -> None:
    keys = [SortKey("c", "0"), SortKey("i", "1")]
    parts = [
        pd.DataFrame({"0": pd.Categorical(values), "1": range(len(values))})
        for values in (["b", "c"], [None, None], ["a", "c"], [])
    ]
    united = sort_keys.unify_categories(
        keys, *(sort_keys.key_categories(part, keys) for part in parts)
    )
    assert united[0].dtype.categories.tolist() == ["b", "c", "a"]
    assert united[1] == keys[1]
    got = sort_keys.recode(parts[2], united)
    assert got["0"].dtype == united[0].dtype
    assert got["0"].tolist() == ["a", "c"]


def test_ordered_categories_that_differ_are_refused() -> None:
    keys = [SortKey("c", "0")]
    found = [(pd.CategoricalDtype(list(c), ordered=True),) for c in ("ab", "ba")]
    with pytest.raises(SortKeyError, match="ordered categories of sort key 'c' differ"):
        sort_keys.unify_categories(keys, *found)


def test_a_value_that_is_no_known_category_is_refused() -> None:
    keys = [SortKey("c", "0", dtype=pd.CategoricalDtype(["b", "a"]))]
    part = pd.DataFrame({"0": pd.Categorical(["a", "b", None])})
    assert sort_keys.recode(part, keys)["0"].cat.codes.tolist() == [1, 0, -1]
    with pytest.raises(SortKeyError, match="'c' has the value 'x', which is not among the cat"):
        sort_keys.recode(pd.DataFrame({"0": pd.Categorical(["x", "a"])}), keys)
