"""The tables of docs/compatibility.md have every name of dask.dataframe, and are true."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr._groupby import GroupBy, SeriesGroupBy
from dask.dataframe.dask_expr._rolling import Rolling
from dask.dataframe.tseries.resample import Resampler
from dask.delayed import Delayed

from dask_exo.dask_adapter import CoreExpr
from dask_exo.planning.expressions import ExoShuffle
from dask_exo.planning.rewrite import rewrite

pytestmark = pytest.mark.filterwarnings("ignore")  # of Dask and pandas, about odd arguments

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
TESTS_PAGE = PAGE.with_name("compatibility-tests.md")
ROWS = re.compile(r"^\| (`.*?) \| (.*?) \| .*\|$")


def tables() -> dict[str, dict[str, frozenset[str]]]:
    """For each section of the page, each entry and the ways in which it runs."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    section = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif (row := ROWS.match(line)) and section in SECTIONS:
            ways = frozenset(row[2].strip("`").split(", "))
            for entry in re.findall(r"`([^`]+)`", row[1]):
                assert entry not in found.setdefault(section, {}), f"{entry} stands there twice"
                found[section][entry] = ways
    return found


def public(*classes: Any) -> set[str]:
    return {name for cls in classes for name in dir(cls) if not name.startswith("_")}


FRAME, GROUPBY, ROLLING = "DataFrame, Series, Index", "GroupBy", "Rolling"
RESAMPLE, ACCESSORS, FUNCTIONS = "Resample", "Accessors", "Functions of dask.dataframe"
SECTIONS = {
    FRAME: public(dd.DataFrame, dd.Series, dd.Index),
    GROUPBY: public(GroupBy, SeriesGroupBy),
    ROLLING: public(Rolling),
    RESAMPLE: public(Resampler),
    ACCESSORS: set(),
    FUNCTIONS: set(dd.__all__),
}
TABLES = tables()
EXTENSIONS = {"exo"}  # our own accessor


@pytest.mark.parametrize("section", SECTIONS)
def test_every_public_name_is_in_the_table(section: str) -> None:
    known = {entry.split("(")[0] for entry in TABLES[section]}
    assert not SECTIONS[section] - known - EXTENSIONS


@pytest.mark.parametrize("accessor", ["str", "dt", "cat"])
def test_every_name_of_an_accessor_is_in_the_table(accessor: str) -> None:
    names = public(type(getattr(frame()[{"str": "s", "dt": "t", "cat": "c"}[accessor]], accessor)))
    known = set(TABLES[ACCESSORS])
    assert f"{accessor}.*" in known or {f"{accessor}.{name}" for name in names} <= known


# Data: rows in no order of a key, partitions of ten, no two frames of one name, since Dask
# remembers the bounds that it has computed.
N = 60
TABLE = pd.DataFrame(
    {
        "i": np.arange(N)[::-1] % 17,
        "j": np.arange(N) % 5,
        "f": np.arange(N) * 0.5,
        "s": [f"a{n % 7}" for n in range(N)],
        "t": pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(N), "h"),
        "c": pd.Categorical([["x", "y"][n % 2] for n in range(N)]),
    }
)
TIMES = TABLE.set_index("t")
salts = itertools.count()


def part(number: int, table: pd.DataFrame, salt: int) -> pd.DataFrame:
    return table.iloc[number * 10 : number * 10 + 10]


def frame(table: pd.DataFrame = TABLE, *, known: bool = True) -> dd.DataFrame:
    bounds = (*table.index[::10], table.index[-1]) if known else None
    return dd.from_map(
        part, range(6), table=table, salt=next(salts), meta=table.iloc[:0], divisions=bounds
    )


def names_for_samples(tmp_path: Path) -> dict[str, Any]:
    """What a sample may speak of."""
    d = frame()
    num = d[["i", "j", "f"]]
    return {
        "d": d,
        "num": num,
        "s": num.f,
        "ix": num.index,
        "g": num.groupby("i"),
        "sg": num.groupby("i").f,
        "roll": num.rolling(3),
        "bins": frame(TIMES)[["f"]].resample("3h"),
        "times": frame(TIMES)[["f"]],
        "unknown": frame(known=False)[["i", "f"]],
        "other": frame(known=False)[["i"]],
        "small": dd.from_pandas(TABLE[["i"]], npartitions=2),
        "one": dd.from_pandas(TABLE[["i"]], npartitions=1),
        "path": str(tmp_path / "out"),
        "dask": dask,
        "dd": dd,
        "da": da,
        "np": np,
        "pd": pd,
        "part": part,
        "TABLE": TABLE,
    }


ARGUMENTS = {
    **dict.fromkeys(
        [
            "add",
            "div",
            "divide",
            "eq",
            "floordiv",
            "ge",
            "gt",
            "le",
            "lt",
            "mod",
            "mul",
            "ne",
            "pow",
            "radd",
            "rdiv",
            "rfloordiv",
            "rmod",
            "rmul",
            "rpow",
            "rsub",
            "rtruediv",
            "sub",
            "truediv",
            "shift",
            "diff",
            "get_partition",
        ],
        "1",
    ),
    **dict.fromkeys(["add_prefix", "add_suffix"], "'p'"),
    **dict.fromkeys(["apply", "map", "map_partitions", "pipe", "transform"], "lambda x: x"),
    **dict.fromkeys(["to_csv", "to_json", "to_parquet", "to_orc"], "path"),
    "agg": "'sum'",
    "aggregate": "'sum'",
    "assign": "z=num.f",
    "astype": "'f8'",
    "clip": "0, 3",
    "drop": "columns=['i']",
    "eval": "'i + j'",
    "fillna": "0",
    "get_group": "1",
    "groupby": "'i'",
    "isin": "[1]",
    "map_overlap": "lambda x: x, 1, 1",
    "melt": "'i'",
    "query": "'i > 2'",
    "random_split": "[0.5, 0.5]",
    "repartition": "npartitions=3",
    "replace": "1, 2",
    "resample": "'1D'",
    "rolling": "3",
    "sample": "frac=0.5",
    "select_dtypes": "'number'",
    "set_index": "'i'",
    "shuffle": "'i'",
    "sort_values": "'i'",
    **dict.fromkeys(["mask", "where"], "num.i > 3"),
}

SAMPLES = {
    FRAME: {
        "add(unaligned)": "num.i + num.f.repartition(npartitions=3)",
        "align": "num.align(num * 2)[0]",
        "apply": "num.apply(lambda r: r.sum(), axis=1, meta=(None, 'f8'))",
        "assign(scalar)": "num.assign(z=1)",
        "assign(unaligned)": "unknown.assign(z=other.i.repartition(npartitions=3))",
        "autocorr": "s.autocorr(1)",
        "between": "s.between(1, 2)",
        "case_when": "s.case_when([(s > 1, 0)])",
        "categorize": "d[['s']].categorize()",
        "combine": "num.combine(num * 2, lambda a, b: a + b)",
        "combine_first": "num.combine_first(num * 2)",
        "compute_current_divisions": "unknown.compute_current_divisions('f')",
        "dot": "s.dot(s)",
        "drop_duplicates(split_out=1)": "num.drop_duplicates(split_out=1)",
        "explode": "d.explode('s')",
        "from_dict": "dd.DataFrame.from_dict({'a': [1, 2, 3]}, npartitions=2)",
        "head(compute=False)": "num.head(compute=False)",
        "iloc": "num.iloc[:, 0]",
        "info": "num.info(buf=open('/dev/null', 'w'))",
        "items": "next(iter(num.items()))[1]",
        "iterrows": "next(num.iterrows())",
        "itertuples": "next(num.itertuples())",
        "join": "num.join(num[['i']].rename(columns={'i': 'q'}))",
        "join(unknown divisions)": "unknown[['f']].join(other)",
        "loc": "num.loc[5:20]",
        "median": "one.i.median()",
        "median(axis=1)": "num.median(axis=1)",
        "merge": "num.merge(other, on='i', broadcast=False)",
        "merge(broadcast=True)": "num.merge(small, on='i', broadcast=True)",
        "merge(how='left', broadcast=True)": "num.merge(small, on='i', how='left', broadcast=True)",
        "merge(known divisions)": "num.merge(num * 2, left_index=True, right_index=True)",
        "merge(one partition)": "num.merge(one, on='i')",
        "nbytes": "s.nbytes",
        "nlargest": "num.nlargest(3, 'i')",
        "nsmallest": "num.nsmallest(3, 'i')",
        "nunique": "s.nunique()",
        "nunique(split_out=1)": "s.nunique(split_out=1)",
        "partitions": "num.partitions[2]",
        "pivot_table": "d.pivot_table(index='i', columns='c', values='f')",
        "pop": "num.copy().pop('i')",
        "quantile(axis=1)": "num.quantile(axis=1)",
        "random_split": "num.random_split([0.5, 0.5])[0]",
        "reduction": "num.reduction(lambda x: x.sum(), meta=num._meta.sum())",
        "rename": "num.rename(columns={'i': 'a'})",
        "rename_axis": "num.rename_axis('x')",
        "repartition(partition_size=)": "num.repartition(partition_size='1kB')",
        "resample": "times.resample('2h')",
        "set_index(divisions=)": "d.set_index('i', divisions=[0, 5, 10, 16])",
        "set_index(sort=False)": "d.set_index('i', sort=False)",
        "set_index(sorted=True)": "d.set_index('f', sorted=True)",
        "squeeze": "num[['i']].squeeze()",
        "sum(axis=1)": "num.sum(axis=1)",
        "tail(compute=False)": "num.tail(compute=False)",
        "to_parquet(compute=False)": "num.to_parquet(path, compute=False)",
        "to_timestamp": "dd.from_pandas(pd.Series(range(4), index=pd.period_range('2026', '2029', "
        "freq='Y')), npartitions=2).to_timestamp()",
        "unique(split_out=1)": "s.unique(split_out=1)",
        "value_counts(split_out=1)": "s.value_counts(split_out=1)",
    },
    GROUPBY: {
        "agg(median)": "g.agg('median')",
        "agg(split_out=)": "g.agg({'f': ['sum', 'mean']}, split_out=3)",
        "mean(split_out=)": "g.mean(split_out=3)",
        "nunique": "sg.nunique()",
        "rolling": "g.rolling(2).sum()",
        "sum(split_out=)": "g.sum(split_out=True)",
        "unique": "sg.unique()",
        "value_counts": "sg.value_counts()",
    },
    ROLLING: {"apply": "roll.apply(lambda x: x.sum())", "quantile": "roll.quantile(0.5)"},
    RESAMPLE: {},
    ACCESSORS: {
        "str.*": "d.s.str.split('a', n=1, expand=True)",
        "dt.*": "d.t.dt.floor('D')",
        "cat.add_categories": "d.c.cat.add_categories(['q'])",
        "cat.as_known": "d.c.cat.as_unknown().cat.as_known()",
        "cat.remove_categories": "d.c.cat.remove_categories(['x'])",
        "cat.rename_categories": "d.c.cat.rename_categories(['q', 'r'])",
        "cat.reorder_categories": "d.c.cat.reorder_categories(['y', 'x'])",
        "cat.set_categories": "d.c.cat.set_categories(['x', 'y', 'z'])",
    },
    FUNCTIONS: {
        "compute": "dd.compute(num)",
        "concat": "dd.concat([unknown, other])",
        "concat(axis=1)": "dd.concat([num, num.add_prefix('x')], axis=1)",
        "from_array": "dd.from_array(np.zeros((9, 2)), chunksize=3)",
        "from_dask_array": "dd.from_dask_array(da.zeros((9, 2), chunks=3))",
        "from_delayed": "dd.from_delayed([dask.delayed(part)(1, TABLE, 0)], meta=TABLE)",
        "from_dict": "dd.from_dict({'a': range(9)}, npartitions=3)",
        "from_map": "dd.from_map(part, range(6), table=TABLE, salt=0, meta=TABLE)",
        "from_pandas": "dd.from_pandas(TABLE, npartitions=3)",
        "get_dummies": "dd.get_dummies(d[['c']])",
        "isna": "dd.isna(num)",
        "map_overlap": "dd.map_overlap(lambda x: x, num, 1, 1)",
        "map_partitions": "dd.map_partitions(lambda x: x, num)",
        "melt": "dd.melt(num, 'i')",
        "merge": "dd.merge(num, other, on='i', broadcast=False)",
        "merge_asof": "dd.merge_asof(num, num[['i']], left_index=True, right_index=True)",
        "merge_asof(on=)": "dd.merge_asof(num[['f']], num[['f', 'i']], on='f')",
        "pivot_table": "dd.pivot_table(d, index='i', columns='c', values='f')",
        "repartition": "dd.repartition(num, divisions=(0, 20, 59))",
        "to_bag": "dd.to_bag(num)",
        "to_csv": "dd.to_csv(num, path)",
        "to_datetime": "dd.to_datetime(d.i)",
        "to_json": "dd.to_json(num, path)",
        "to_numeric": "dd.to_numeric(d.s)",
        "to_orc": "dd.to_orc(num, path)",
        "to_parquet": "dd.to_parquet(num, path)",
        "to_records": "dd.to_records(num)",
        "to_timedelta": "dd.to_timedelta(d.i)",
        "read_csv": "(TABLE.to_csv(path), dd.read_csv(path))[1]",
        "read_fwf": "(TABLE.to_csv(path), dd.read_fwf(path))[1]",
        "read_json": "(TABLE.to_json(path, orient='records', lines=True), dd.read_json(path))[1]",
        "read_orc": "(TABLE[['i']].to_orc(path), dd.read_orc(path))[1]",
        "read_parquet": "(TABLE.to_parquet(path), dd.read_parquet(path))[1]",
        "read_table": "(TABLE.to_csv(path), dd.read_table(path))[1]",
    },
}
# What needs a package or a server that is not there, or is no operation at all.
NO_SAMPLE = {
    FRAME: {"analyze", "explain", "visualize", "empty", "to_hdf", "to_sql"},
    GROUPBY: {"compute"},
    FUNCTIONS: {entry for entry, ways in TABLES[FUNCTIONS].items() if ways == {"metadata"}}
    | {
        "from_graph",
        "read_hdf",
        "read_sql",
        "read_sql_query",
        "read_sql_table",
        "to_hdf",
        "to_sql",
    },
}
OBJECTS = {
    FRAME: (("num", dd.DataFrame), ("s", dd.Series), ("ix", dd.Index)),
    GROUPBY: (("g", GroupBy), ("sg", SeriesGroupBy)),
    ROLLING: (("roll", Rolling),),
    RESAMPLE: (("bins", Resampler),),
}


def sample(section: str, entry: str) -> str:
    """A line that a user could write."""
    if entry in SAMPLES[section]:
        return SAMPLES[section][entry]
    if section == ACCESSORS:
        accessor, name = entry.split(".")
        method = name.startswith(("as_", "remove_"))
        return f"d.c.{accessor}.{name}{'()' if method else ''}"
    name, cls = next((name, cls) for name, cls in OBJECTS[section] if hasattr(cls, entry))
    if entry in {"str", "dt", "cat"}:
        return f"d.{'t' if entry == 'dt' else entry[0]}.{entry}"
    is_method = callable(getattr(cls, entry))
    return f"{name}.{entry}" + (f"({ARGUMENTS.get(entry, '')})" if is_method else "")


CASES = [
    (section, entry)
    for section, entries in TABLES.items()
    for entry in entries
    if entry not in NO_SAMPLE.get(section, ())
]


class Spy:
    """A scheduler that counts its calls."""

    calls = 0

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return dask.local.get_sync(dsk, keys)


@pytest.fixture
def spy() -> Iterator[Spy]:
    scheduler = Spy()
    with dask.config.set({"scheduler": scheduler, "dataframe.shuffle.method": "tasks"}):
        yield scheduler


def every(expr: CoreExpr) -> list[CoreExpr]:
    """All expressions below and including one, through those that are fused."""
    seen: dict[str, CoreExpr] = {}
    stack = [expr]
    while stack:
        node = stack.pop()
        if node._name not in seen:
            seen[node._name] = node
            stack += node.dependencies()
            for operand in node.operands:
                if isinstance(operand, list):
                    stack += [item for item in operand if isinstance(item, CoreExpr)]
    return list(seen.values())


WAYS = {
    "TreeReduce": "tree",
    "SeriesQuantile": "gather",
    "BroadcastJoin": "broadcast",
    "CreateOverlappingPartitions": "neighbours",
    "CumulativeFinalize": "neighbours",
    "GroupByCumulativeFinalizer": "neighbours",
    "MergeAsofIndexed": "neighbours",
    "Repartition": "partitions",
    "StackPartition": "partitions",
    "ResolveOverlappingDivisions": "partitions",
}
PLAIN = {
    "Blockwise",
    "_DelayedExpr",
    "DelayedsExpr",
    "FromGraph",
    "FromScalars",
    "ToParquetBarrier",
}


def way(node: CoreExpr) -> str:
    """The way in which one lowered expression runs."""
    bases = [cls.__name__ for cls in type(node).__mro__]
    found = [WAYS[base] for base in bases if base in WAYS]
    return found[0] if found else "blockwise" if PLAIN & set(bases) else type(node).__name__


def ways_of(expr: CoreExpr) -> set[str]:
    """The ways in which an optimized expression runs here."""
    nodes = every(rewrite(expr))
    shuffles = [node for node in nodes if isinstance(node, ExoShuffle)]
    kinds = {type(node).__name__ for node in nodes}
    found = {way(node) for node in nodes if not isinstance(node, ExoShuffle)}
    if len(found) > 1 or shuffles:
        found.discard("blockwise")
    if shuffles and "PartitionNumbers" in kinds:
        found.add("shuffle: range")
    elif shuffles:
        joined = len(shuffles) == 2 and "MergePartitions" in kinds
        found.add("shuffle: join" if joined else "shuffle: hash")
    return found


def ways_of_line(line: str, names: dict[str, Any], spy: Spy) -> set[str]:
    """The ways in which a line of Dask runs here."""
    before = spy.calls
    value = eval(line, names)
    found = {"eager"} if spy.calls > before else set()
    if hasattr(value, "optimize") and hasattr(value, "expr"):
        before = spy.calls
        optimized = value.optimize(fuse=False).expr
        found |= {"first pass"} if spy.calls > before else set()
        return found | ways_of(optimized)
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, (da.Array, db.Bag, Delayed)) or line == "num.dask":
        return found | {"graph"}
    return found or {"metadata"}


@pytest.mark.parametrize(("section", "entry"), CASES, ids=[f"{s}-{e}" for s, e in CASES])
def test_an_operation_runs_as_the_table_says(section, entry, spy, tmp_path) -> None:
    line = sample(section, entry)
    names = names_for_samples(tmp_path)
    got, stated = ways_of_line(line, names, spy), TABLES[section][entry]
    if "I/O" in stated or ("eager" in stated and "blockwise" not in stated):
        got.discard("blockwise")
    assert got == stated - {"I/O"}, line


IMPOSSIBLE = Path(__file__).parents[1] / "conformance" / "impossible.txt"


def test_impossible_tests_exist_and_are_documented() -> None:
    lines = [line for line in IMPOSSIBLE.read_text().splitlines() if not line.startswith("#")]
    page = TESTS_PAGE.read_text(encoding="utf-8")
    for line in lines:
        test, reason = line.split(maxsplit=1)
        path, name = test.split("::")
        file = Path(dask.__file__).parents[1] / path
        if file.exists() or path.startswith("dask/"):  # a library may be absent
            assert f"def {name.split('[')[0]}(" in file.read_text(encoding="utf-8")
        assert f"| `{name}` | {reason}" in page
