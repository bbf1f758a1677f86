"""The eight tables of TPC-H: written by tpchgen-cli, read lazily by Dask."""

from __future__ import annotations

import math
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import dask.dataframe as dd

# Rows at scale factor 1, and about how many bytes one takes in pandas.
SIZES = {
    "lineitem": (6_000_000, 190),
    "orders": (1_500_000, 180),
    "partsupp": (800_000, 180),
    "part": (200_000, 190),
    "customer": (150_000, 220),
    "supplier": (10_000, 200),
    "nation": (1, 1),
    "region": (1, 1),
}


@dataclass(frozen=True)
class Tables:
    """The tables, none of which is in memory."""

    scale: float
    lineitem: dd.DataFrame
    orders: dd.DataFrame
    partsupp: dd.DataFrame
    part: dd.DataFrame
    customer: dd.DataFrame
    supplier: dd.DataFrame
    nation: dd.DataFrame
    region: dd.DataFrame


def generator() -> str | None:
    """Where tpchgen-cli is: next to this Python, or on the path."""
    return shutil.which("tpchgen-cli", path=sysconfig.get_path("scripts")) or shutil.which(
        "tpchgen-cli"
    )


def generate(folder: Path, scale: float, partition_size: float = 75e6) -> None:
    """Write the tables as Parquet, each in a directory of its own.

    A file becomes a partition; ``partition_size`` is about what a whole one takes in memory.
    """
    command = generator()
    if command is None:
        raise FileNotFoundError("there is no tpchgen-cli: pip install tpchgen-cli")
    for name, (rows, width) in SIZES.items():
        parts = math.ceil(rows * scale * width / partition_size)
        subprocess.run(
            [
                *(command, "parquet", "--tables", name, "--scale-factor", str(scale)),
                *("--parts", str(parts), "--output-dir", str(folder), "--quiet"),
            ],
            check=True,
        )


def read(folder: Path, scale: float) -> Tables:
    """Take the tables from where `generate` has put them."""
    return Tables(scale, **{name: read_table(folder / name) for name in SIZES})


def read_table(folder: Path) -> dd.DataFrame:
    """Read Parquet with decimals as floats and dates as timestamps, as pandas counts fastest.

    ``table.astype({...})`` would be shorter, but Dask 2026.8 evaluates filters on what was there
    before an ``astype`` of a frame (dask issue 12172).
    """
    table = dd.read_parquet(folder)
    return table.assign(
        **{c: plain(table[c]) for c in table.columns if str(table[c].dtype).endswith("[pyarrow]")}
    )


def plain(column: dd.Series) -> dd.Series:
    """Convert what Arrow has and numpy lacks; by Arrow first, which is fast at it."""
    if str(column.dtype).startswith("decimal"):
        return column.astype("double[pyarrow]").astype("float64")
    if str(column.dtype).startswith("date32"):
        return column.astype("timestamp[s][pyarrow]").astype("datetime64[s]")
    return column
