"""Parquet to work on, made from a seed: the same rows for the same size, whoever asks."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_A_FILE = 250_000
CITIES = [f"city-{i:03d}" for i in range(100)]


def make(folder: Path, rows: int) -> Path:
    """Write ``facts`` (``rows`` rows) and ``users`` (a tenth of them) below a folder, once.

    Columns of the facts: ``k`` int64 with about ``rows / 5`` distinct values, ``small`` int32,
    ``x`` float64, ``city`` a string of 100 values, ``name`` a string of ``rows / 5`` values.
    """
    target = folder / f"rows-{rows}"
    if (target / "done").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    for name, write, count in (("facts", facts, rows), ("users", users, max(rows // 10, 1))):
        (target / name).mkdir(parents=True)
        for i, start in enumerate(range(0, count, ROWS_A_FILE)):
            rng = np.random.default_rng([17, rows, i, len(name)])
            table = write(rng, rows, start, min(ROWS_A_FILE, count - start))
            pq.write_table(table, target / name / f"part-{i:05d}.parquet")
    (target / "done").touch()
    return target


def facts(rng: np.random.Generator, rows: int, start: int, count: int) -> pa.Table:
    """Rows to shuffle, sort, group and join."""
    distinct = max(rows // 5, 1)
    ids = rng.integers(0, distinct, count)
    return pa.table(
        {
            "k": rng.integers(0, distinct, count),
            "small": rng.integers(-1000, 1000, count).astype(np.int32),
            "x": rng.random(count),
            "city": pa.array(CITIES).take(pa.array(rng.integers(0, len(CITIES), count))),
            "name": pa.array([f"name-{i:010d}" for i in ids.tolist()]),
        }
    )


def users(rng: np.random.Generator, rows: int, start: int, count: int) -> pa.Table:
    """Rows to join with: every second value of ``k``, each once."""
    ids = np.arange(start, start + count) * 2 % max(rows // 5, 1)
    return pa.table({"k": ids, "weight": rng.random(count), "group": ids % 7})
