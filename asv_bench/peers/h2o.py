"""The questions of the db-benchmark of H2O: ten groupbys, and five joins.

https://duckdblabs.github.io/db-benchmark/ has the definitions, and the data that this module makes
at random: 100 groups, or as many as a hundredth of the rows; no missing values, not sorted.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asv_bench.peers.data import ROWS_A_FILE
from asv_bench.peers.jobs import Job, _dd, _pl

FEW = 100  # groups of id1, id2, id4 and id5


def make(folder: Path, rows: int) -> Path:
    """Write ``x``, ``g`` and the tables that are joined with ``x`` below a folder, once.

    ``g`` is what is grouped. ``x`` and ``big`` have as many rows, ``medium`` a thousandth of them,
    and ``small`` a millionth.
    """
    target = folder / f"h2o-{rows}"
    if (target / "done").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    sizes = {"g": rows, "x": rows, "small": rows // 10**6, "medium": rows // 1000, "big": rows}
    for name, count in sizes.items():
        (target / name).mkdir(parents=True)
        write = _grouped if name == "g" else partial(_joined, name)
        keys = np.random.default_rng(7).permutation(max(count, 10))
        for i, start in enumerate(range(0, max(count, 10), ROWS_A_FILE)):
            rng = np.random.default_rng([17, rows, i, len(name)])
            table = write(rng, rows, keys[start : start + ROWS_A_FILE])
            pq.write_table(table, target / name / f"part-{i:05d}.parquet")
    (target / "done").touch()
    return target


def _grouped(rng: np.random.Generator, rows: int, keys: np.ndarray) -> pa.Table:
    many, n = max(rows // FEW, 1), len(keys)
    return pa.table(
        {
            **{name: _text(rng.integers(1, FEW + 1, n), 3) for name in ("id1", "id2")},
            "id3": _text(rng.integers(1, many + 1, n), 10),
            **{name: rng.integers(1, FEW + 1, n) for name in ("id4", "id5")},
            "id6": rng.integers(1, many + 1, n),
            "v1": rng.integers(1, 6, n),
            "v2": rng.integers(1, 16, n),
            "v3": (rng.random(n) * 100).round(6),
        }
    )


def _joined(name: str, rng: np.random.Generator, rows: int, keys: np.ndarray) -> pa.Table:
    """Columns of a table: ``x`` has keys of all others, nine in ten of which are there."""
    n, small, medium = len(keys), max(rows // 10**6, 10), max(rows // 1000, 10)
    if name == "x":
        ids = [rng.integers(0, most * 10 // 9 + 1, n) for most in (small, medium, rows)]
        value = {"v1": (rng.random(n) * 100).round(6)}
    else:
        ids = [keys % small, keys % medium, keys][: ("small", "medium", "big").index(name) + 1]
        value = {"v2": (rng.random(n) * 100).round(6)}
    numbers = {f"id{i}": column for i, column in enumerate(ids, 1)}
    return pa.table(
        {**numbers, **{f"id{i}": _text(ids[i - 4], 10) for i in (4, 5, 6)[: len(ids)]}, **value}
    )


def _text(numbers: np.ndarray, digits: int) -> pa.Array:
    return pa.array([f"id{number:0{digits}d}" for number in numbers.tolist()])


@dataclass(frozen=True)
class Question(Job):
    """One question."""

    def outcome(self, data: Path, out: Path) -> dict[str, Any]:
        """Rows, and sums of the columns that are numbers, whose names differ; rounded."""
        import duckdb

        with duckdb.connect(config={"threads": 2}) as base:
            rows = base.read_parquet(sorted(map(str, out.rglob("*.parquet"))))
            kinds = zip(rows.columns, map(str, rows.types), strict=True)
            names = [n for n, kind in kinds if kind != "VARCHAR" and not n.startswith("__")]
            parts = ", ".join(["count(*)", *(f'sum("{n}"::DOUBLE)' for n in names)])
            (found,) = rows.aggregate(parts).fetchall()
        return {"rows": found[0], "sums": sorted(float(f"{value or 0:.6g}") for value in found[1:])}


def _agg(by: list[str], **named: tuple[str, str]) -> Question:
    """Return a groupby with columns ``named`` by what they are of: a column and a function."""
    sql = {"mean": "avg", "std": "stddev"}
    wanted = ", ".join(f"{sql.get(f, f)}({c}) AS {name}" for name, (c, f) in named.items())
    keys = ", ".join(by)

    def dask(folder: Path) -> Any:
        return _dd(folder, "g").groupby(by).agg(**named, split_out=True).reset_index()

    def polars(folder: Path) -> Any:
        import polars as pl

        columns = {name: getattr(pl.col(c), f)() for name, (c, f) in named.items()}
        return _pl(folder, "g").group_by(by).agg(**columns)

    return Question(dask, polars, f"SELECT {keys}, {wanted} FROM g GROUP BY {keys}", None)


def _dask_range(folder: Path) -> Any:
    found = (
        _dd(folder, "g").groupby("id3").agg(most=("v1", "max"), least=("v2", "min"), split_out=True)
    )
    return found.assign(range=found.most - found.least)[["range"]].reset_index()


def _polars_range(folder: Path) -> Any:
    import polars as pl

    return _pl(folder, "g").group_by("id3").agg(range=pl.col("v1").max() - pl.col("v2").min())


def _dask_largest(folder: Path) -> Any:
    g = _dd(folder, "g")[["id6", "v3"]]
    meta = g._meta.v3
    return (
        g.groupby("id6")
        .v3.apply(lambda s: s.nlargest(2), meta=meta)
        .to_frame()
        .reset_index(drop=True)
    )


def _polars_largest(folder: Path) -> Any:
    import polars as pl

    return _pl(folder, "g").group_by("id6").agg(pl.col("v3").top_k(2)).explode("v3").select("v3")


def _dask_r2(folder: Path) -> Any:
    g = _dd(folder, "g")[["id2", "id4", "v1", "v2"]].astype({"v1": "float64", "v2": "float64"})
    g = g.assign(xy=g.v1 * g.v2, xx=g.v1 * g.v1, yy=g.v2 * g.v2)
    m = g.groupby(["id2", "id4"]).mean(split_out=True)
    cov = m.xy - m.v1 * m.v2
    r2 = cov * cov / ((m.xx - m.v1 * m.v1) * (m.yy - m.v2 * m.v2))
    return m.assign(r2=r2)[["r2"]].reset_index()


def _polars_r2(folder: Path) -> Any:
    import polars as pl

    return _pl(folder, "g").group_by(["id2", "id4"]).agg(r2=pl.corr("v1", "v2") ** 2)


def _join(table: str, key: str, how: str = "inner") -> Question:
    def dask(folder: Path) -> Any:
        return _dd(folder, "x").merge(_dd(folder, table), on=key, how=how)

    def polars(folder: Path) -> Any:
        return _pl(folder, "x").join(_pl(folder, table), on=key, how=how)

    return Question(dask, polars, f"FROM x {how} JOIN {table} USING ({key})", None)


QUESTIONS: dict[str, Question] = {
    "g1": _agg(["id1"], v1=("v1", "sum")),
    "g2": _agg(["id1", "id2"], v1=("v1", "sum")),
    "g3": _agg(["id3"], v1=("v1", "sum"), v3=("v3", "mean")),
    "g4": _agg(["id4"], **{name: (name, "mean") for name in ("v1", "v2", "v3")}),
    "g5": _agg(["id6"], **{name: (name, "sum") for name in ("v1", "v2", "v3")}),
    "g6": _agg(["id4", "id5"], middle=("v3", "median"), deviation=("v3", "std")),
    "g7": Question(
        _dask_range,
        _polars_range,
        "SELECT id3, max(v1) - min(v2) AS range FROM g GROUP BY id3",
        None,
    ),
    "g8": Question(
        _dask_largest,
        _polars_largest,
        "SELECT unnest(max(v3, 2)) AS v3 FROM g GROUP BY id6",
        None,
    ),
    "g9": Question(
        _dask_r2,
        _polars_r2,
        "SELECT id2, id4, corr(v1, v2) ** 2 AS r2 FROM g GROUP BY id2, id4",
        None,
    ),
    "g10": _agg([f"id{i}" for i in range(1, 7)], v3=("v3", "sum"), count=("v1", "count")),
    "j1": _join("small", "id1"),
    "j2": _join("medium", "id2"),
    "j3": _join("medium", "id2", "left"),
    "j4": _join("medium", "id5"),
    "j5": _join("big", "id3"),
}
