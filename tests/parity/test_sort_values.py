"""``ddf.exo.sort_values`` and ``set_index`` without Ray, against pandas, exactly with the index."""

from __future__ import annotations

import decimal
import itertools
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import collections_to_expr
from hypothesis import given
from hypothesis import strategies as st

from dask_exo import Scheduler
from dask_exo.errors import ColumnError, ExoError, SortArgumentError, SortKeyError
from dask_exo.planning.normalize import normalize
from dask_exo.planning.planner import plan
from dask_exo.report import recording
from dask_exo.testing import InlineFutures
from tests._data import NODES, inline

TIMES = [pd.NaT, *map(pd.Timestamp, ["2026-01-01", "1999-12-31", "2026-03-29 03:00"])]
POOLS = {
    "int64": [-5, 0, 3, 2**63 - 1, -(2**63)],
    "uint8": [0, 255, 7],
    "float64": [-0.0, 0.0, 1.5, -2.0, np.nan],
    "float32": [0.5, -0.5, np.nan],
    "bool": [True, False],
    "Int64": [1, 2, -(2**63), None],
    "boolean": [True, False, None],
    "Float64": [1.5, -1.5, None],
    "str": ["a", "b", "", None],
    "string[pyarrow]": ["a", "b", None],
    "object": ["a", "b", None],
    "decimal": [*map(decimal.Decimal, ["1.1", "1.10", "-3"]), None],
    "datetime64[ns]": TIMES,
    "datetime64[ns, UTC]": [pd.NaT, *(t.tz_localize("UTC") for t in TIMES[1:])],
    "timedelta64[ns]": [pd.NaT, pd.Timedelta("1h"), pd.Timedelta("-1h")],
    "period[D]": [pd.NaT, pd.Period("2026-01-01", "D"), pd.Period("2025-01-01", "D")],
    "int64[pyarrow]": [1, -1, None],
    "unordered": ["x", "y", None],
    "ordered": ["x", "y", None],
}
DTYPES = {
    "decimal": "object",
    "unordered": pd.CategoricalDtype(["y", "z", "x"]),
    "ordered": pd.CategoricalDtype(["y", "x"], ordered=True),
}
LABELS = ["a", 1, ("t", 2)]


def load(part: pd.DataFrame) -> pd.DataFrame:
    return part


def collection(parts: list[pd.DataFrame], meta: pd.DataFrame | None = None) -> dd.DataFrame:
    """Partitions exactly as given."""
    return dd.from_map(load, parts, meta=parts[0].iloc[:0] if meta is None else meta)


def split(frame: pd.DataFrame, *ends: int) -> list[pd.DataFrame]:
    edges = [0, *ends, len(frame)]
    return [frame.iloc[a:b] for a, b in itertools.pairwise(edges)]


def table(rows: int = 600, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "i": rng.integers(0, 40, rows),
            "f": np.where(rng.random(rows) < 0.1, np.nan, rng.random(rows).round(2)),
            "s": pd.Series(rng.choice(["x", "yy", "zzz", None], rows), dtype="str"),
            "c": pd.Categorical(rng.choice(["low", "mid", "high"], rows), ["low", "mid", "high"]),
            "row": range(rows),
        },
        index=pd.Index(rng.integers(0, 50, rows), name="idx"),
    )


@pytest.fixture(scope="module", autouse=True)
def strings_stay_as_they_are():
    with dask.config.set({"dataframe.convert-string": False}):
        yield


@pytest.fixture(params=["sync", "one-node", "three-nodes"])
def scheduler(request):
    """Plain Dask, and the whole path of dask_exo but Ray."""
    if request.param == "sync":
        return "sync"
    return inline(1 if request.param == "one-node" else 3)


@st.composite
def cases(draw: st.DrawFn):
    kinds = draw(st.lists(st.sampled_from(sorted(POOLS)), min_size=1, max_size=3))
    rows = draw(st.integers(0, 30))

    def many(pool):
        return draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows))

    data = {}
    for label, kind in zip(LABELS, kinds, strict=False):
        data[label] = pd.Series(many(POOLS[kind]), dtype=DTYPES.get(kind, kind))
    frame = pd.DataFrame(dict(enumerate(data.values())))
    frame.columns = pd.Index(list(data), tupleize_cols=False)
    frame["row"] = np.arange(rows)
    frame.index = pd.Index(many([0, 1, 5]), name=draw(st.sampled_from([None, "idx"])), dtype="i8")
    count = draw(st.integers(0, 5))
    ends = sorted(draw(st.lists(st.integers(0, rows), min_size=count, max_size=count)))
    by = draw(st.permutations(list(data)).map(lambda p: p[: draw(st.integers(1, len(p)))]))
    options = {
        "ascending": draw(st.lists(st.booleans(), min_size=len(by), max_size=len(by))),
        "na_position": draw(st.sampled_from(["first", "last"])),
        "ignore_index": draw(st.booleans()),
    }
    return split(frame, *ends), by, options, draw(st.sampled_from([None, 1, 2, 7, 40]))


@given(cases(), st.sampled_from(["sync", 1, 3]))
def test_any_frame_is_sorted_as_by_pandas(case, where) -> None:
    parts, by, options, npartitions = case
    ordered = collection(parts).exo.sort_values(by, npartitions=npartitions, **options)
    assert ordered.npartitions == (npartitions or len(parts))
    futures = InlineFutures(NODES.get(where, NODES[1]))
    got = ordered.compute(scheduler=where if where == "sync" else Scheduler(futures))
    expected = pd.concat(parts).sort_values(by, kind="stable", **options)
    pd.testing.assert_frame_equal(got, expected)
    assert futures.live == 0


CASES = {
    "one key": {"by": "i"},
    "descending": {"by": "f", "ascending": False},
    "nulls first": {"by": "f", "na_position": "first"},
    "nulls first, descending": {"by": "f", "na_position": "first", "ascending": False},
    "strings, nulls first": {"by": "s", "na_position": "first", "ascending": False},
    "categories": {"by": ["c", "f"], "ascending": [False, True]},
    "three keys": {"by": ["s", "i", "f"], "ascending": [True, False, True]},
    "ignore_index": {"by": ["i", "f"], "ignore_index": True},
    "the index": {"by": ["idx", "f"]},
    "the index, ignored": {"by": "idx", "ignore_index": True},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("npartitions", "algorithm"), [(None, "push"), (2, "simple"), (9, "push"), (60, "simple")]
)
def test_chosen_sorts(name, npartitions, algorithm) -> None:
    df = table(50)
    with dask.config.set({"exo.shuffle.algorithm": algorithm}):
        ordered = collection(split(df, 10, 10, 35, 40)).exo.sort_values(
            npartitions=npartitions, **CASES[name]
        )
        got = ordered.compute(scheduler=inline(3))
    pd.testing.assert_frame_equal(got, df.sort_values(kind="stable", **CASES[name]))


@pytest.mark.parametrize("count", [1, 40])
def test_many_partitions_are_sorted_by_plain_dask_too(count) -> None:
    df = table(400)
    parts = split(df, *range(10, 400, 10))
    got = collection(parts).exo.sort_values("s", npartitions=count).compute(scheduler="sync")
    pd.testing.assert_frame_equal(got, df.sort_values("s", kind="stable"))


def test_labels_of_all_kinds_and_columns_called_like_ours(scheduler) -> None:
    df = table(60)
    df.columns = pd.Index([0, ("a", 1), "_partitions", "0", "row"], tupleize_cols=False)
    ddf = collection(split(df, 20, 30))
    for by in (0, ("a", 1), "_partitions", ["0", ("a", 1)]):
        got = ddf.exo.sort_values(by).compute(scheduler=scheduler)
        pd.testing.assert_frame_equal(got, df.sort_values(by, kind="stable"))


def loading(part: int, log: str) -> pd.DataFrame:
    """A partition; every load of it leaves a line in a file."""
    with Path(log).open("a") as file:
        file.write(f"{part}\n")
    return table(50, seed=part)


@pytest.mark.parametrize("options", [{"by": "f"}, {"by": ["s", "i"], "ignore_index": True}])
def test_building_reads_nothing_computing_reads_once(tmp_path, options, scheduler) -> None:
    log = tmp_path / "loads"
    log.touch()
    ddf = dd.from_map(loading, range(6), log=str(log), meta=table(0))
    ordered = ddf.exo.sort_values(**options)
    indexed = ddf.exo.set_index("i", split_equal=True)
    assert ordered.npartitions == indexed.npartitions == 6
    assert "npartitions=6" in repr(ordered)
    assert ordered.divisions == indexed.divisions == (None,) * 7
    ordered.optimize()
    indexed.optimize()
    assert log.read_text() == ""
    got = ordered.compute(scheduler=scheduler)
    assert sorted(log.read_text().split()) == list("012345")
    expected = pd.concat([table(50, seed=i) for i in range(6)])
    pd.testing.assert_frame_equal(got, expected.sort_values(kind="stable", **options))


def stage_of(collection_: dd.DataFrame):
    expr = collections_to_expr([collection_]).optimize()
    graph, names, _ = normalize(expr, list(dask.core.flatten(expr.__dask_keys__())))
    work = plan(graph, set(names.values()), small=100_000)
    (stage,) = work.stages
    return stage, work


def test_the_sort_is_parallel_under_compute_too() -> None:
    df = table()
    ordered = collection(split(df, 100, 200, 300)).exo.sort_values("i")
    with recording() as stats:
        got = ordered.compute(scheduler=inline(3))
    pd.testing.assert_frame_equal(got, df.sort_values("i", kind="stable"))
    (shuffle,) = stats.shuffles
    assert (shuffle.maps, shuffle.reducers, shuffle.rows) == (4, 4, 600)
    stage, work = stage_of(ordered)
    assert len(stage.columns) == 4
    # numbering runs in the maps of the shuffle; merging in the tasks that assemble its outputs
    assert [len(part.inputs) for part in stage.parts] == [2] * 4
    merges = [b for b in work.bundles if b.sources and b.sources <= set(stage.columns)]
    assert [len(bundle.inputs) for bundle in merges] == [1] * 4


def test_a_single_value_is_spread_over_all_partitions(scheduler) -> None:
    df = pd.DataFrame({"a": 7, "row": range(1000)})
    ordered = collection(split(df, 10, 500)).exo.sort_values("a", npartitions=8)
    sizes = ordered.map_partitions(len, meta=pd.Series(dtype="i8")).compute(scheduler=scheduler)
    assert sizes.sum() == 1000
    assert sizes.min() >= 100
    pd.testing.assert_frame_equal(ordered.compute(scheduler=scheduler), df)


def test_only_the_columns_that_are_needed_are_read() -> None:
    ddf = dd.from_pandas(table().drop(columns="c"), npartitions=4, sort=False)
    ordered = ddf.exo.sort_values(["f"])
    for narrow, expected in ((ordered[["row"]], ["f", "row"]), (ordered["row"], ["f", "row"])):
        (source,) = [e for e in narrow.optimize(fuse=False).expr.walk() if not e.dependencies()]
        assert source.columns == expected
    whole = ddf.compute(scheduler="sync").sort_values("f", kind="stable")
    got = ordered[["row"]].compute(scheduler=Scheduler(InlineFutures()))
    pd.testing.assert_frame_equal(got, whole[["row"]])
    got = ordered["row"].compute(scheduler=Scheduler(InlineFutures()))
    pd.testing.assert_series_equal(got, whole["row"])
    both = dask.compute(ordered["row"], ordered[["i"]], scheduler=Scheduler(InlineFutures()))
    pd.testing.assert_series_equal(both[0], whole["row"])
    pd.testing.assert_frame_equal(both[1], whole[["i"]])


def test_what_comes_after_a_sort(scheduler) -> None:
    df = table()
    ordered = collection(split(df, 100, 200, 350)).exo.sort_values(["i", "f"], npartitions=5)
    expected = df.sort_values(["i", "f"], kind="stable")
    with dask.config.set(scheduler=scheduler):
        pd.testing.assert_frame_equal(ordered.head(7), expected.head(7))
        pd.testing.assert_frame_equal(ordered.tail(7), expected.tail(7))
        parts = [ordered.partitions[j].compute() for j in range(5)]
        pd.testing.assert_frame_equal(pd.concat(parts), expected)
        picked = ordered.partitions[[3, 1]].compute()
        pd.testing.assert_frame_equal(picked, pd.concat([parts[3], parts[1]]))
        assert len(ordered) == 600
        again = ordered.exo.sort_values("s")
        pd.testing.assert_frame_equal(again.compute(), expected.sort_values("s", kind="stable"))
        sums = ordered.groupby("i").row.sum().compute()
        pd.testing.assert_series_equal(sums, df.groupby("i").row.sum())
        few = ordered[ordered.i > 20]
        few = few.assign(x=few.f * 2).compute()
        pd.testing.assert_frame_equal(few, expected[expected.i > 20].assign(x=lambda d: d.f * 2))


def test_a_shuffle_before_the_sort_and_a_merge_after_it(scheduler) -> None:
    df = table().reset_index(drop=True)
    ddf = collection(split(df, 100, 200, 350))
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        ordered = ddf.shuffle("s").exo.sort_values("row", ignore_index=True)
        merged = ordered.merge(ordered[["row", "i"]], on="row", broadcast=False)
        pd.testing.assert_frame_equal(ordered.compute(scheduler=scheduler), df)
        got = merged.compute(scheduler=scheduler).sort_values("row")
    assert got["i_x"].tolist() == got["i_y"].tolist() == df["i"].tolist()


def test_unknown_categories_are_sorted_in_the_order_they_are_met(scheduler) -> None:
    parts = [
        pd.DataFrame({"c": pd.Categorical(values), "row": [f"{i}{v}" for v in values]})
        for i, values in enumerate((["b", "c", "b"], [], ["a", "c", None], ["b", "z"]))
    ]
    meta = dd.from_pandas(parts[0]).assign(c=lambda d: d.c.cat.as_unknown())._meta
    ddf = collection(parts, meta)
    for options in ({}, {"ascending": False, "na_position": "first"}):
        whole = ddf.compute(scheduler="sync")
        assert whole["c"].cat.categories.tolist() == ["b", "c", "a", "z"]
        for by in (["c"], ["c", "row"]):
            got = ddf.exo.sort_values(by, npartitions=3, **options)
            expected = whole.sort_values(by, kind="stable", **options)
            pd.testing.assert_frame_equal(got.compute(scheduler=scheduler), expected)


def test_the_order_of_known_categories_is_that_of_the_collection(scheduler) -> None:
    parts = [
        pd.DataFrame({"c": pd.Categorical(["a", "b"], categories)})
        for categories in ("ab", ["b", "a"])
        for categories in [list(categories)]
    ]
    got = collection(parts).exo.sort_values("c").compute(scheduler=scheduler)
    assert got["c"].tolist() == ["a", "a", "b", "b"]
    parts[1] = pd.DataFrame({"c": pd.Categorical(["x", "b"])})
    with pytest.raises(SortKeyError, match="'c' has the value 'x'"):
        collection(parts).exo.sort_values("c").compute(scheduler=scheduler)


def test_values_without_an_order_raise_with_the_key(scheduler) -> None:
    parts = [pd.DataFrame({"a": pd.Series([v] * 3, dtype=object)}) for v in (1, "x")]
    with pytest.raises(SortKeyError, match="sort key 'a'"):
        collection(parts).exo.sort_values("a").compute(scheduler=scheduler)


def test_a_series(scheduler) -> None:
    df = table()
    ddf = collection(split(df, 100, 450))
    got = ddf["f"].exo.sort_values(ascending=False, na_position="first")
    assert got.name == "f"
    expected = df["f"].sort_values(ascending=False, na_position="first", kind="stable")
    pd.testing.assert_series_equal(got.compute(scheduler=scheduler), expected)
    nameless = dd.from_pandas(pd.Series([3, 1, 2]), npartitions=2)
    got = nameless.exo.sort_values(npartitions=3, ignore_index=True)
    pd.testing.assert_series_equal(got.compute(scheduler=scheduler), pd.Series([1, 2, 3]))


@pytest.mark.parametrize("drop", [True, False])
def test_set_index_may_split_equal_keys(scheduler, drop) -> None:
    df = table()
    df["i"] //= 10
    ddf = collection(split(df, 100, 200, 350))
    got = ddf.exo.set_index("i", split_equal=True, drop=drop, npartitions=9)
    expected = df.sort_values("i", kind="stable").set_index("i", drop=drop)
    assert not got.known_divisions
    pd.testing.assert_frame_equal(got.compute(scheduler=scheduler), expected)
    sizes = got.map_partitions(len, meta=pd.Series(dtype="i8")).compute(scheduler=scheduler)
    assert sizes.max() < 2 * len(df) / 9
    pd.testing.assert_series_equal(
        got["row"].loc[2:3].compute(scheduler=scheduler), expected["row"].loc[2:3]
    )


def test_set_index_is_dasks_otherwise(scheduler) -> None:
    df = table()
    ddf = collection(split(df, 100, 200, 350))
    with dask.config.set({"dataframe.shuffle.method": "tasks", "scheduler": scheduler}):
        got = ddf.exo.set_index("row", npartitions=3, drop=False)
        assert got.known_divisions
        assert got.divisions == ddf.set_index("row", npartitions=3, drop=False).divisions
        pd.testing.assert_frame_equal(got.compute(), df.set_index("row", drop=False))


def test_dasks_own_sort_and_index_are_right_on_dask_exo() -> None:
    df = table()
    ddf = collection(split(df, 100, 200, 350))
    exo = inline(3)
    with dask.config.set({"dataframe.shuffle.method": "tasks", "scheduler": exo}):
        got = ddf.sort_values(["i", "row"]).map_partitions(load).compute()
        pd.testing.assert_frame_equal(got, df.sort_values(["i", "row"]))
        indexed = ddf.set_index("row")
        assert indexed.known_divisions
        expected = df.set_index("row")
        pd.testing.assert_frame_equal(indexed.loc[90:310].compute(), expected.loc[90:310])
        other = indexed[["i"]].rename(columns={"i": "j"}).repartition(npartitions=2)
        pd.testing.assert_frame_equal(
            indexed.join(other).compute(), expected.join(expected[["i"]].rename(columns={"i": "j"}))
        )


FRAME = dd.from_pandas(
    pd.DataFrame({"a": [1, 2], "b": [3, 4]}, index=pd.Index([0, 1], name="t")), npartitions=2
)


@pytest.mark.parametrize(
    ("call", "builtin", "error", "message"),
    [
        (lambda d: d.exo.sort_values("x"), KeyError, ColumnError, "no column 'x' to sort by"),
        (lambda d: d.exo.sort_values(["a", "bb"]), KeyError, ColumnError, "did you mean 'b'"),
        (lambda d: d.exo.sort_values(("a", "b")), KeyError, ColumnError, r"\('a', 'b'\)"),
        (lambda d: d.exo.sort_values([]), ValueError, SortArgumentError, "names no column"),
        (
            lambda d: d.exo.sort_values(["a", "b"], ascending=[True]),
            ValueError,
            SortArgumentError,
            r"ascending=\[True\] has 1 directions, need one or 2",
        ),
        (
            lambda d: d.exo.sort_values("a", ascending=None),
            ValueError,
            SortArgumentError,
            "ascending=None: need a bool",
        ),
        (
            lambda d: d.exo.sort_values("a", na_position="middle"),
            ValueError,
            SortArgumentError,
            "invalid na_position: 'middle'",
        ),
        (
            lambda d: d.exo.sort_values("a", npartitions=0),
            ValueError,
            SortArgumentError,
            "npartitions=0: need a number from 1",
        ),
        (
            lambda d: d.exo.sort_values("a", npartitions="many"),
            ValueError,
            SortArgumentError,
            "npartitions='many'",
        ),
        (
            lambda d: d.exo.sort_values("a", key=abs),
            ValueError,
            SortArgumentError,
            "key=.* is not supported: assign a column",
        ),
        (
            lambda d: d.rename_axis(index="a").exo.sort_values("a"),
            ValueError,
            SortArgumentError,
            "'a' is both the index and a column",
        ),
        (
            lambda d: d.exo.set_index("x", split_equal=True),
            KeyError,
            ColumnError,
            "no column 'x'",
        ),
        (
            lambda d: d.exo.set_index("a", split_equal=True, divisions=[1, 2]),
            ValueError,
            SortArgumentError,
            r"no arguments \['divisions'\]",
        ),
    ],
)
def test_wrong_arguments_are_refused_on_the_call(call, builtin, error, message) -> None:
    def never(*_, **__):
        raise AssertionError("computed")

    with dask.config.set(scheduler=never), pytest.raises(error, match=message) as caught:
        call(FRAME)
    assert isinstance(caught.value, builtin)
    assert isinstance(caught.value, ExoError)


def test_columns_of_one_label_are_refused() -> None:
    df = pd.DataFrame([[1, 2]], columns=["a", "a"])
    ddf = dd.from_map(load, [df], meta=df)
    with pytest.raises(SortArgumentError, match="2 columns called 'a'"):
        ddf.exo.sort_values("a")


def test_auto_is_as_many_partitions_as_there_are() -> None:
    assert FRAME.exo.sort_values("a", npartitions="auto").npartitions == 2


def test_the_accessor_says_what_it_has() -> None:
    assert "sort_values(by, *, ascending=True" in repr(FRAME.exo)
    assert "set_index(column, *, drop=True" in repr(FRAME.exo)
    assert "sort_values(*, ascending=True" in repr(FRAME["a"].exo)
    assert "exo" in dir(FRAME)


def test_a_column_called_exo_is_there_by_its_name_in_brackets() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"exo": [2, 1]}), npartitions=1)
    assert ddf.exo.sort_values("exo")["exo"].compute(scheduler="sync").tolist() == [1, 2]


def test_map_partitions_after_it_needs_no_meta() -> None:
    """Dask up to 2026.1 asks an expression for its graph to see whether it is one."""
    ddf = dd.from_pandas(pd.DataFrame({"a": range(20)}), npartitions=4)
    for ordered in (ddf.exo.sort_values("a"), ddf.exo.random_shuffle(seed=1)):
        assert ordered.map_partitions(len).compute(scheduler="sync").sum() == 20
        assert len(ordered.expr.__dask_graph__()) > 4
