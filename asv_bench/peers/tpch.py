"""The queries of TPC-H as jobs: for those who run Dask code, and for those who run SQL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asv_bench.peers.jobs import Job
from examples.tpch.answers import Answers
from examples.tpch.queries import QUERIES
from examples.tpch.sql import SQL, at_scale
from examples.tpch.tables import generate, read

SMALL = 0.01  # scale of the run that is not counted


def make(folder: Path, scale: float) -> Path:
    """Write the tables below a folder, once."""
    target = folder / f"tpch-{scale:g}"
    if not (target / "done").exists():
        generate(target, scale)
        (target / "done").touch()
    return target


def _scale(data: Path) -> float:
    return float(data.name.removeprefix("tpch-"))


def _query(number: int, data: Path) -> Any:
    return QUERIES[number](read(data, _scale(data)))


def _polars(sql: str, data: Path) -> Any:
    import polars as pl

    tables = {p.name: pl.scan_parquet(p / "*.parquet") for p in data.iterdir() if p.is_dir()}
    return pl.SQLContext(tables).execute(at_scale(sql, _scale(data)))


@cache
def _answers(data: Path) -> Answers:
    return Answers(data, _scale(data))


@dataclass(frozen=True)
class Query(Job):
    """One query."""

    number: int = 0

    def sql_for(self, data: Path) -> str | None:
        """The SQL for the scale of the data."""
        return at_scale(SQL[self.number], _scale(data))

    def outcome(self, data: Path, out: Path) -> dict[str, Any]:
        """Whether it is what DuckDB finds."""
        table = pq.read_table(out)
        fields = [
            f.with_type(pa.float64()) if pa.types.is_decimal(f.type) else f for f in table.schema
        ]
        found = table.cast(pa.schema(fields, table.schema.metadata)).to_pandas()
        try:
            _answers(data).check(self.number, found)
        except AssertionError as error:
            return {"rows": len(found), "differs": str(error)}
        return {"rows": len(found)}


QUERY_JOBS = {
    f"q{number}": Query(
        dask=partial(_query, number),
        polars=partial(_polars, SQL[number]),
        sql=SQL[number],
        ray=None,
        number=number,
    )
    for number in QUERIES
}
