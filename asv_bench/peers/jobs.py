"""The jobs, written for each system as its own documentation would write them.

Every job reads Parquet and writes Parquet. What was written is summed up, so that systems can be
compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One job in four dialects; None where a system has no such thing.

    Attributes
    ----------
    dask : callable
        Of the folder of the data: a dataframe to write.
    polars : callable or None
        The same: a lazy frame to sink.
    sql : str or None
        A query of ``facts`` and ``users``.
    ray : callable or None
        The same: a dataset to write.
    ordered_by : str or None
        Column by which what was written must be in order, file after file.
    copied : str or None
        The table that is copied where a system only reads and writes, as the floor of this job.
    """

    dask: Callable[[Path], Any]
    polars: Callable[[Path], Any] | None
    sql: str | None
    ray: Callable[[Path], Any] | None
    ordered_by: str | None = None
    copied: str | None = None

    def sql_for(self, data: Path) -> str | None:
        """The SQL for a folder of data."""
        return self.sql

    def outcome(self, data: Path, out: Path) -> dict[str, Any]:
        """What is in the files that were written, in a few numbers."""
        return outcome(self, out)


def _dd(folder: Path, name: str = "facts") -> Any:
    import dask.dataframe as dd

    return dd.read_parquet(folder / name)


def _pl(folder: Path, name: str = "facts") -> Any:
    import polars as pl

    return pl.scan_parquet(folder / name / "*.parquet")


def _rd(folder: Path, name: str = "facts") -> Any:
    import ray

    return ray.data.read_parquet(str(folder / name))


def _dask_groupby(folder: Path) -> Any:
    ddf = _dd(folder)
    sums = ddf.groupby("k").agg({"x": ["sum", "mean"], "small": "max"}, split_out=8)
    sums.columns = ["x_sum", "x_mean", "small_max"]
    return sums.reset_index()


def _polars_groupby(folder: Path) -> Any:
    import polars as pl

    x, small = pl.col("x"), pl.col("small")
    return (
        _pl(folder)
        .group_by("k")
        .agg(x.sum().alias("x_sum"), x.mean().alias("x_mean"), small.max().alias("small_max"))
    )


def _ray_groupby(folder: Path) -> Any:
    from ray.data.aggregate import Max, Mean, Sum

    return (
        _rd(folder)
        .groupby("k")
        .aggregate(
            Sum("x", alias_name="x_sum"),
            Mean("x", alias_name="x_mean"),
            Max("small", alias_name="small_max"),
        )
    )


MADE_UP = {
    "shuffle": Job(
        dask=lambda folder: _dd(folder).shuffle("k"),
        polars=None,
        sql=None,
        ray=lambda folder: _rd(folder).repartition(20, keys=["k"]),
        copied="facts",
    ),
    "sort": Job(
        dask=lambda folder: _dd(folder).sort_values("k"),
        polars=lambda folder: _pl(folder).sort("k"),
        sql="SELECT * FROM facts ORDER BY k",
        ray=lambda folder: _rd(folder).sort("k"),
        ordered_by="k",
    ),
    "set_index": Job(
        dask=lambda folder: _dd(folder).set_index("name"),
        polars=lambda folder: _pl(folder).sort("name"),
        sql="SELECT * FROM facts ORDER BY name",
        ray=lambda folder: _rd(folder).sort("name"),
        ordered_by="name",
    ),
    "merge": Job(
        dask=lambda folder: _dd(folder).merge(_dd(folder, "users"), on="k"),
        polars=lambda folder: _pl(folder).join(_pl(folder, "users"), on="k"),
        sql="SELECT facts.*, weight, users.group FROM facts JOIN users USING (k)",
        ray=lambda folder: _rd(folder).join(
            _rd(folder, "users"), join_type="inner", num_partitions=20, on=("k",)
        ),
    ),
    "groupby": Job(
        dask=_dask_groupby,
        polars=_polars_groupby,
        sql="SELECT k, sum(x) x_sum, avg(x) x_mean, max(small) small_max FROM facts GROUP BY k",
        ray=_ray_groupby,
    ),
}


def outcome(job: Job, out: Path) -> dict[str, Any]:
    """What is in the files that a job wrote: rows, sums of columns, and whether they are in order.

    Sums are rounded: systems add up in different orders.
    """
    import duckdb

    files = sorted(map(str, out.rglob("*.parquet")), key=_place)
    with duckdb.connect(config={"threads": 2}) as base:
        rows = base.read_parquet(files)
        columns = sorted(set(rows.columns) & {"k", "small", "x", "weight", "x_sum", "small_max"})
        parts = ["count(*)", *(f"sum({name})" for name in columns)]
        if "name" in rows.columns:
            parts.append("sum(hash(name) % 1000003)")
        (found,) = rows.aggregate(", ".join(parts)).fetchall()
        result = {
            "rows": found[0],
            **{
                name: float(f"{value:.9g}") for name, value in zip(columns, found[1:], strict=False)
            },
        }
        if "name" in rows.columns:
            result["names"] = int(found[-1])
        if job.ordered_by:
            result["ordered"] = _in_order(base, files, job.ordered_by)
    return result


def _place(path: str) -> tuple[list[int], str]:
    """Files in the order of the numbers in their names."""
    import re

    return [int(n) for n in re.findall(r"\d+", Path(path).name)], path


def _in_order(base: Any, files: list[str], column: str) -> bool:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    last = None
    for file in files:
        values = pq.read_table(file, columns=[column])[column].combine_chunks()
        if not len(values):
            continue
        if len(values) > 1 and pc.any(pc.greater(values[:-1], values[1:])).as_py():
            return False
        first = values[0].as_py()
        if last is not None and first < last:
            return False
        last = values[-1].as_py()
    return True
