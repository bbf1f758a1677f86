"""Compiled expressions against Dask with pandas, over the same files."""

from __future__ import annotations

import datetime as dt
import gc
import operator
import weakref
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from dask_exo import Scheduler, last_report
from dask_exo.compile.compiled import Compiled, compiled
from dask_exo.compile.query import Query
from dask_exo.compile.rules import RULES
from dask_exo.dataframe.explain import explain
from dask_exo.errors import ValidationError
from dask_exo.testing import InlineFutures

INTS = [0, 1, -1, 2, 7, 2**31, -(2**31), 2**53 + 1, 2**62, -(2**63), 2**63 - 1]
FLOATS = [0.0, -0.0, 1.0, -1.5, np.nan, np.inf, -np.inf, 1e308, 5e-324, 2.0**53 + 2]
TEXTS = ["", "a", "A", "ab", "b", "é", "\U0001f600", "a.b", " a", "zz", None]
DECIMALS = [None, *map(Decimal, ("0.00", "-0.01", "0.07", "1.10", "-1234567.89", "9999999.99"))]
DATES = [None, *map(dt.date, (1, 1969, 2000, 9999), (1, 12, 2, 12), (1, 31, 29, 31))]
NOONS = ["0001-01-01", "1969-12-31", "2000-02-29", "2000-02-29 12:00", "9999-12-31"]
TIMES = [None, "1970-01-01", "1969-12-31 23:59:59.999", "2000-02-29", "2262-01-01", "1677-10-01"]


def table(rows: int, seed: int) -> pd.DataFrame:
    """Return columns of every dtype, with the values at which libraries differ."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any]) -> list[Any]:
        return [values[i] for i in rng.integers(0, len(values), rows)]

    decimals, days = pd.ArrowDtype(pa.decimal128(9, 2)), pd.ArrowDtype(pa.date32())
    times = pd.to_datetime(pd.Series(some(TIMES), dtype="str"), format="ISO8601")
    return pd.DataFrame(
        {
            "i": np.array(some(INTS), dtype="int64"),
            "j": rng.integers(-3, 4, rows),
            "k": rng.integers(-3, 4, rows).astype("int32"),
            "f": np.array(some(FLOATS), dtype="float64"),
            "g": rng.random(rows).round(2) * 100,
            "h": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows)),
            "b": rng.random(rows) < 0.5,
            "s": pd.Series(some(TEXTS), dtype="str"),
            "t": times.astype("M8[us]"),
            "d": pd.Series(some(DECIMALS), dtype=decimals),
            "e": pd.Series(some(DATES), dtype=days),
            "z": pd.Series(some(DATES), dtype=days),
        }
    )


@pytest.fixture(scope="session", params=["string", "str"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of pandas, whose strings Dask reads as ``string``, and of others: ``str``."""
    folder = tmp_path_factory.mktemp("compile")
    for number, rows in enumerate((200, 0, 1, 50)):
        frame = table(rows, number)
        if request.param == "string":
            frame.to_parquet(folder / f"{number}.parquet")
        else:
            columns = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
            place = columns.column_names.index("s")
            columns = columns.set_column(place, "s", columns["s"].cast(pa.string_view()))
            pq.write_table(columns, folder / f"{number}.parquet")
    return folder


NUMBERS = ["i", "j", "f", "g", "h"]
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
CONSTANTS = st.sampled_from([0, 1, -2, 0.5, 2.0**53, float("inf"), 7, 0.1])
PARTS = ["year", "quarter", "month", "day", "day_of_week", "hour", "minute", "second"]


@st.composite
def numbers(draw: st.DrawFn, frame: dd.DataFrame, depth: int = 2) -> Any:
    """Draw a series of numbers."""
    if not depth or draw(st.booleans()):
        return frame[draw(st.sampled_from(NUMBERS))]
    what = draw(st.sampled_from(["two", "two", "abs", "neg", "fillna", "where", "mask", "cast"]))
    left = draw(numbers(frame, depth - 1))
    if what in ("abs", "neg"):
        return abs(left) if what == "abs" else -left
    if what == "fillna":
        return left.fillna(draw(CONSTANTS))
    if what in ("where", "mask"):
        condition = draw(conditions(frame, depth - 1))
        other = draw(st.sampled_from([np.nan, 1.0]) | numbers(frame, depth - 1))
        return getattr(left, what)(condition, other)
    if what == "cast":
        decimals = frame.d.astype("double[pyarrow]")
        return draw(st.sampled_from([frame.b, frame.k, left, decimals])).astype("float64")
    right = draw(CONSTANTS | numbers(frame, depth - 1))
    pair = (left, right) if draw(st.booleans()) else (right, left)
    return draw(st.sampled_from(ARITHMETIC))(*pair)


@st.composite
def days(draw: st.DrawFn, frame: dd.DataFrame) -> Any:
    """Draw a series of dates as timestamps."""
    column = frame[draw(st.sampled_from("ez"))]
    return column.astype("timestamp[s][pyarrow]").astype("datetime64[s]")


@st.composite
def texts(draw: st.DrawFn, frame: dd.DataFrame) -> Any:
    """Draw a series of strings."""
    what = draw(st.sampled_from(["plain", "slice", "fillna", "where"]))
    if what == "slice":
        return frame.s.str.slice(0, draw(st.integers(0, 2)))
    if what == "fillna":
        return frame.s.fillna(draw(st.sampled_from(TEXTS[:-1])))
    return frame.s.where(draw(conditions(frame, 0))) if what == "where" else frame.s


def _compared(draw: st.DrawFn, frame: dd.DataFrame, what: str) -> Any:
    compare = draw(st.sampled_from(COMPARISONS))
    if what == "text":
        return compare(draw(texts(frame)), draw(st.sampled_from(TEXTS[:-1])))
    if what == "time":
        return compare(frame.t, pd.Timestamp(draw(st.sampled_from(TIMES[1:]))))
    if what == "day":
        pair = draw(days(frame)), draw(days(frame) | st.sampled_from(NOONS).map(pd.Timestamp))
        return compare(*(pair if draw(st.booleans()) else pair[::-1]))
    if what == "date":
        part = getattr(frame.t.dt, draw(st.sampled_from(PARTS)))
        return compare(part, draw(st.integers(0, 12)))
    if what == "small":
        return compare(frame.k, draw(st.integers(-2, 2)))
    return compare(draw(numbers(frame)), draw(CONSTANTS | numbers(frame)))


@st.composite
def conditions(draw: st.DrawFn, frame: dd.DataFrame, depth: int = 2) -> Any:
    """Draw a series of booleans."""
    kinds = ["number", "text", "time", "day", "date", "small", "bool", "isin", "between", "str"]
    what = draw(st.sampled_from([*kinds, "missing", *(["logic", "not"] if depth else [])]))
    if what == "bool":
        return frame.b
    if what == "isin":
        name, values = draw(st.sampled_from([("s", TEXTS[:-1]), ("i", INTS), ("j", [1, 2])]))
        return frame[name].isin(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    if what == "between":
        inclusive = draw(st.sampled_from(["both", "left", "right", "neither"]))
        name = draw(st.sampled_from(NUMBERS))
        return frame[name].between(draw(CONSTANTS), draw(CONSTANTS), inclusive)
    if what == "str":
        name = draw(st.sampled_from(["startswith", "endswith", "contains"]))
        return getattr(draw(texts(frame)).str, name)(draw(st.sampled_from(["a", "", "b", "a.*b"])))
    if what == "missing":
        columns = st.sampled_from([frame.s, frame.t, frame.f, frame.h])
        series = draw(columns | numbers(frame) | days(frame))
        return getattr(series, draw(st.sampled_from(["isna", "notnull"])))()
    if what == "logic":
        both = draw(conditions(frame, depth - 1)), draw(conditions(frame, depth - 1))
        return draw(st.sampled_from([operator.and_, operator.or_]))(*both)
    if what == "not":
        return ~draw(conditions(frame, depth - 1))
    return _compared(draw, frame, what)


@st.composite
def steps(draw: st.DrawFn, frame: dd.DataFrame) -> Any:
    """Draw a change of a frame that keeps its columns."""
    step = draw(st.sampled_from(["assign", "filter", "flag", "text", "rename", "dropna"]))
    if step == "assign":
        return frame.assign(**{draw(st.sampled_from(["f", "g"])): draw(numbers(frame)) * 1.0})
    if step == "filter":
        return frame[draw(conditions(frame))]
    if step == "flag":
        return frame.assign(b=draw(conditions(frame)))
    if step == "text":
        return frame.assign(s=draw(texts(frame)))
    if step == "rename":
        return frame.rename(columns={"f": "g", "g": "f"})
    names = st.lists(st.sampled_from(list("ifst")), min_size=1, unique=True)
    return frame.dropna(subset=draw(names))


@st.composite
def programs(draw: st.DrawFn, frame: dd.DataFrame) -> Any:
    """Draw what a user may write."""
    for _ in range(draw(st.integers(1, 4))):
        frame = draw(steps(frame))
    end = draw(st.sampled_from(["frame", "series", "groupby", "columns", "condition"]))
    if end == "series":
        return draw(numbers(frame))
    if end == "condition":
        return draw(conditions(frame))
    if end == "columns":
        return frame[draw(st.lists(st.sampled_from(list("ijkfgbstdez")), min_size=1, unique=True))]
    if end == "groupby":
        by = draw(st.lists(st.sampled_from(["s", "j", "k"]), min_size=1, max_size=2, unique=True))
        return frame.groupby(by, sort=draw(st.booleans())).agg({"h": ["sum", "count"], "f": "max"})
    return frame


@pytest.mark.timeout(3000)  # for a thousand programs, as --hypothesis-profile=long draws them
@given(data=st.data())
def test_a_program_has_the_results_of_pandas(data: st.DataObject, files: Path) -> None:
    program = data.draw(programs(dd.read_parquet(files)))
    with np.errstate(all="ignore"):
        try:
            expected = program.compute(scheduler="sync")
        except Exception:  # noqa: BLE001  pandas fails at some comparisons with missing strings
            reject()
        with dask.config.set({"exo.compile": "auto"}):
            got = program.compute(scheduler=Scheduler(InlineFutures()))
    if isinstance(expected, pd.Series):
        pd.testing.assert_series_equal(got, expected, check_exact=True)
        return
    if expected.index.names != [None]:
        expected, got = expected.sort_index(), got.sort_index()
    pd.testing.assert_frame_equal(got, expected, check_exact=True)


def _polars(program: Any, mode: str = "auto") -> Any:
    with dask.config.set({"exo.compile": mode}):
        return program.compute(scheduler=Scheduler(InlineFutures()))


def _replaced(program: Any) -> list[Compiled]:
    return list(compiled(program.expr.optimize(fuse=False)).replacements.values())


def _written(frame: pd.DataFrame, folder: Path) -> dd.DataFrame:
    frame.to_parquet(folder / "0.parquet")
    return dd.read_parquet(folder)


def test_polars_reads_only_what_a_query_needs(tmp_path: Path, monkeypatch) -> None:
    ddf = _written(table(100, 0), tmp_path)
    some = ddf[(ddf.g > 10) & ddf.s.notnull()]
    program = some.assign(f=some.g * 2)[["f", "k"]]
    (node,) = _replaced(program)
    assert sorted(node.query.dtypes) == ["g", "k", "s"]
    expected = program.compute(scheduler="sync")
    run = Query.run
    monkeypatch.setattr(Query, "run", lambda *args: run(*args[:-1], None))  # pandas does nothing
    pd.testing.assert_frame_equal(_polars(program), expected)


@pytest.mark.parametrize("what", ["nulls", "labels", "range", "attrs", "row groups"])
def test_pandas_does_what_the_rules_do_not_cover(tmp_path: Path, what: str) -> None:
    frame = table(100, 0)
    if what == "labels":
        frame.index = pd.Index(range(100, 0, -1))
    elif what == "range":
        frame.index = pd.RangeIndex(7, 107)
    elif what == "attrs":
        frame.attrs["by"] = "me"
    frame.to_parquet(tmp_path / "0.parquet", row_group_size=30 if what == "row groups" else None)
    if what == "nulls":
        columns = pa.Table.from_pandas(frame.assign(j=frame.j.where(frame.j > 0).astype("Int64")))
        pq.write_table(columns.replace_schema_metadata(), tmp_path / "1.parquet")
    ddf = dd.read_parquet(tmp_path, split_row_groups=what == "row groups")
    program = ddf[ddf.j != 1].assign(f=ddf.g * 2.0)
    with dask.config.set({"exo.compile": "auto"}):
        got = dask.compute(program, scheduler=Scheduler(InlineFutures()))[0]
    expected = program.compute(scheduler="sync")
    pd.testing.assert_frame_equal(got, expected)
    assert got.attrs == expected.attrs


def test_a_file_that_two_parts_read_is_read_once(tmp_path: Path) -> None:
    ddf = _written(table(100, 0), tmp_path)
    half = ddf[ddf.g > 50]
    (node,) = _replaced(half.assign(m=half.map_partitions(len)))  # what both parts need
    assert node.original._name == half.expr.optimize(fuse=False)._name
    assert not _replaced(dd.concat([ddf[ddf.g > 50], ddf[ddf.g <= 50]]))


def test_dates_are_compared_as_dates_and_decimals_are_never_nan(tmp_path: Path) -> None:
    ddf = _written(table(200, 0), tmp_path)
    day = ddf.e.astype("timestamp[s][pyarrow]").astype("datetime64[s]")
    number = ddf.d.astype("double[pyarrow]").astype("float64")
    program = ddf.g[(day <= pd.Timestamp("2000-02-29")) & (number < 1.1)] * 2
    (node,) = _replaced(program)
    said = str(node.query.table.conditions)
    assert "'date'" in said
    assert "timestamp" not in said
    assert "missing" not in said
    pd.testing.assert_series_equal(_polars(program), program.compute(scheduler="sync"))


@pytest.mark.parametrize("rows", [1, 1000])
def test_divisions_round_as_in_pandas(tmp_path: Path, rows: int) -> None:
    frame = table(rows, 0).assign(h=np.random.default_rng(0).normal(size=rows))
    amounts = [Decimal(cents).scaleb(-2) for cents in range(-123456789, -123456789 + rows)]
    ddf = _written(frame.assign(d=pd.array(amounts, frame.d.dtype)), tmp_path)
    money = ddf.d.astype("double[pyarrow]").astype("float64")
    ratios = [ddf.h / one for one in (7, 0.1, 0, 0.0, -0.0, np.inf, -2)]
    ratios += [ddf.i / 3, ddf.i / 0, 7 / ddf.h, ddf.h / ddf.g]
    for program in (*ratios, ddf[ddf.h / 7 > 0].i, ddf.assign(g=ddf.i / 49).g, money):
        assert _replaced(program)
        expected = program.compute(scheduler="sync")
        pd.testing.assert_series_equal(_polars(program), expected, check_exact=True)


def test_verify_names_a_query_that_differs(tmp_path: Path, monkeypatch) -> None:
    program = _written(table(100, 0), tmp_path).g * 2
    pd.testing.assert_series_equal(_polars(program, "verify"), program.compute(scheduler="sync"))
    monkeypatch.setitem(RULES, "mul", RULES["add"])
    with pytest.raises(ValidationError, match=r"exo.compile.*mul"):
        _polars(program, "verify")


def test_explain_says_what_is_compiled_and_what_is_not(tmp_path: Path) -> None:
    ddf = _written(table(100, 0), tmp_path)
    program = (ddf.g * 2).map_partitions(abs)
    plan = str(explain(program, futures=InlineFutures()))
    said = "Polars does 2 of 3 blockwise operations, in queries: 1; pandas: MapPartitions (1)"
    assert said in plan
    _polars(program)
    assert "2 of 3 blockwise operations" in str(last_report())
    with dask.config.set({"exo.compile": "off"}):
        assert "Polars" not in str(explain(program, futures=InlineFutures()))


def test_a_file_that_nobody_can_read_raises_what_dask_does(tmp_path: Path) -> None:
    program = _written(table(1000, 0), tmp_path).g * 2
    path = tmp_path / "0.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(len(data) // 2) + data[len(data) // 2 + 100 :])
    with pytest.raises(Exception) as expected:  # noqa: PT011  whichever it is
        program.compute(scheduler="sync")
    with pytest.raises(type(expected.value)):
        _polars(program)


def test_many_values_do_not_go_with_every_task(tmp_path: Path) -> None:
    ddf = _written(table(100, 0), tmp_path)
    assert _replaced(ddf[ddf.j.isin(list(range(1_000)))])
    assert not _replaced(ddf[ddf.j.isin(list(range(1_001)))])


def test_nothing_of_its_callers_is_kept(tmp_path: Path) -> None:
    ddf = _written(table(100, 0), tmp_path)

    def call() -> weakref.ref[Any]:
        values = np.arange(3)
        _replaced((ddf.g * 2).map_partitions(abs))  # what is not covered is an error inside
        return weakref.ref(values)

    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()
