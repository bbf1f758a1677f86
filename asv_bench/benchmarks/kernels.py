"""The kernels of a shuffle, without a cluster: cutting a partition, putting one together."""

from __future__ import annotations

import numpy as np
import pandas as pd

from asv_bench.benchmarks.common import BRIEF
from dask_exo.planning.partitioners import RowPartitioner

ROWS = 500_000

COLUMNS = {
    "int64": np.arange,
    "float32": lambda n: np.arange(n, dtype=np.float32),
    "datetime": lambda n: pd.date_range("2026", periods=n, freq="s"),
    "nullable": lambda n: pd.array(np.arange(n), dtype="Int64"),
    "string": lambda n: pd.array([f"name-{i}" for i in range(n)], dtype="string[pyarrow]"),
    "object": lambda n: np.array([f"name-{i}" for i in range(n)], dtype=object),
    "category": lambda n: pd.Categorical.from_codes(np.arange(n) % 100, [*map(str, range(100))]),
}


class Kernels:
    """Half a million rows with four columns of one dtype, to and from 16 or 200 reducers."""

    params = (list(COLUMNS)[::2], [200]) if BRIEF else (list(COLUMNS), [16, 200])
    param_names = ("dtype", "reducers")

    def setup(self, dtype: str, reducers: int) -> None:
        """Make a partition, and the blocks of one output."""
        rng = np.random.default_rng(1)
        values = {f"c{i}": COLUMNS[dtype](ROWS) for i in range(4)}
        self.frame = pd.DataFrame({"k": rng.integers(0, 10**9, ROWS), **values})
        self.split = RowPartitioner(count=reducers, column=["k"], keys=("k",))
        self.owned = [range(reducers)]
        self.packed = [
            self.split.cut([self.frame.iloc[i::reducers]], self.owned)[0][0]
            for i in range(reducers)
        ]

    def time_cut(self, dtype: str, reducers: int) -> None:
        """Hash, sort by reducer, pack."""
        self.split.cut([self.frame], self.owned)

    def time_assemble(self, dtype: str, reducers: int) -> None:
        """Put the first output together."""
        self.split.assemble(self.packed, 0, 0)
