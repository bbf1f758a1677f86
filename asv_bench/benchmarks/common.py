"""What the benchmarks share: a private Ray for each, and data from a seed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

import dask_exo

SIZE = os.environ.get("EXO_BENCH_SIZE", "small")
BRIEF = SIZE == "small"
"""All of asv's benchmarks together take some minutes; the larger sizes take hours."""
ROWS = {"small": 200_000, "medium": 5_000_000, "large": 40_000_000}[SIZE]

Function = TypeVar("Function", bound=Callable[..., Any])


def unit(name: str) -> Callable[[Function], Function]:
    """Set the unit of what a ``track_`` method returns."""

    def mark(method: Function) -> Function:
        method.unit = name  # type: ignore[attr-defined]
        return method

    return mark


class OnRay:
    """A benchmark on a private Ray with two slots, its workers started and warm."""

    timeout = 600

    def start(self) -> None:
        """Start Ray; called by each ``setup``."""
        dask_exo.enable(num_cpus=2, object_store_memory=os.environ.get("EXO_BENCH_STORE", "2GB"))
        dask.compute([dask.delayed(frame)(10, i) for i in range(8)])

    def teardown(self, *args: object) -> None:
        """Stop Ray."""
        dask_exo.disable()


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    """Rows as in the db-benchmark of h2o: three strings, three integers, three numbers."""
    rng = np.random.default_rng(seed)
    few, many = 100, max(ROWS // few_per_group, 1)
    return pd.DataFrame(
        {
            "id1": names(rng.integers(1, few + 1, rows), 3),
            "id2": names(rng.integers(1, few + 1, rows), 3),
            "id3": names(rng.integers(1, many + 1, rows), 10),
            "id4": rng.integers(1, few + 1, rows),
            "id5": rng.integers(1, few + 1, rows),
            "id6": rng.integers(1, many + 1, rows),
            "v1": rng.integers(1, 6, rows),
            "v2": rng.integers(1, 16, rows),
            "v3": rng.random(rows) * 100,
        }
    )


def names(numbers: np.ndarray, width: int) -> pd.api.extensions.ExtensionArray:
    """Return ``id007`` for 7 with a width of 3."""
    digits = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), width, "0")
    return pd.arrays.ArrowStringArray(pc.binary_join_element_wise("id", digits, ""))


few_per_group = 100
"""Rows of one value of ``id3`` and ``id6``."""


def frames(rows: int, npartitions: int) -> dd.DataFrame:
    """The same, made in the object store."""
    each = -(-rows // npartitions)
    parts = [dask.delayed(frame)(each, i) for i in range(npartitions)]
    return dd.from_delayed(parts, meta=frame(1).iloc[:0], verify_meta=False).persist()
