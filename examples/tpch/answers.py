"""The queries of TPC-H in SQL, run by DuckDB over the same Parquet, and how to compare results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from examples.tpch.sql import ORDER, SQL, at_scale
from examples.tpch.tables import SIZES


class Answers:
    """What DuckDB finds in the tables of a directory."""

    def __init__(self, folder: Path, scale: float) -> None:
        import duckdb

        self._scale = scale
        self._connection = duckdb.connect()
        for name in SIZES:
            files = str(folder / name / "*.parquet").replace("'", "''")
            self._connection.execute(f"CREATE VIEW {name} AS SELECT * FROM '{files}'")

    def __getitem__(self, query: int) -> pd.DataFrame:
        return self._connection.execute(at_scale(SQL[query], self._scale)).df()

    def check(self, query: int, found: pd.DataFrame) -> None:
        """Raise an AssertionError if this is not the answer."""
        compare(found, self[query], ORDER[query])


def compare(found: pd.DataFrame, expected: pd.DataFrame, order: list[str]) -> None:
    """Raise an AssertionError that says where two results differ.

    Numbers with a fraction agree to nine digits, all others and strings exactly. Rows that are
    equal in all columns of ``order`` may have changed places.
    """
    assert list(found.columns) == list(expected.columns), f"columns {list(found.columns)}"
    assert len(found) == len(expected), f"{len(found)} rows, not {len(expected)}"
    found, expected = found.reset_index(drop=True), expected.reset_index(drop=True)
    for name in order:
        same_column(found[name], expected[name])
    exact = [c for c in found.columns if not pd.api.types.is_float_dtype(expected[c])]
    by = [*exact, *found.columns.difference(exact, sort=False)]
    found, expected = (f.sort_values(by, ignore_index=True) for f in (found, expected))
    for name in found.columns:
        same_column(found[name], expected[name])


def same_column(found: pd.Series, expected: pd.Series) -> None:
    if pd.api.types.is_datetime64_any_dtype(expected):
        same = found.astype("datetime64[s]") == expected.astype("datetime64[s]")
    elif pd.api.types.is_float_dtype(found):
        same = pd.Series(np.isclose(found, expected, rtol=1e-9, atol=0, equal_nan=True))
    else:
        same = found == expected
    if not same.all():
        i = int((~same).to_numpy().argmax())
        raise AssertionError(
            f"{found.name}: {(~same).sum()} of {len(same)} rows differ, "
            f"row {i} is {found[i]!r} and not {expected[i]!r}"
        )
