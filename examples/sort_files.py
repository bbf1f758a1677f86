"""Sort Parquet files by two columns, on a private Ray, and read a range of the result.

python examples/sort_files.py
"""

import tempfile
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo


def visits(number: int, rows: int) -> pd.DataFrame:
    """Make one file's rows: in order of time, as logs are."""
    rng = np.random.default_rng(number)
    times = pd.Timestamp("2026-01-01") + pd.to_timedelta(
        np.sort(rng.integers(0, 86_400, rows)), "s"
    )
    return pd.DataFrame({"user": rng.integers(0, rows // 10, rows), "at": times, "n": number})


def main(files: int = 8, rows: int = 50_000) -> pd.DataFrame:
    """All visits of one user, the latest first."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "visits", Path(folder) / "sorted"
        source.mkdir()
        for number in range(files):
            visits(number, rows).to_parquet(source / f"{number}.parquet")
        with dask_exo.enable(num_cpus=2, object_store_memory="300MB"):
            ddf = dd.read_parquet(source)
            ordered = ddf.exo.sort_values(["user", "at"], ascending=[True, False])
            ordered.to_parquet(target, write_index=False)
            found = dd.read_parquet(target, filters=[("user", "==", 7)]).compute()
        whole = [pd.read_parquet(path) for path in sorted(target.glob("*.parquet"), key=number_of)]
    users = pd.concat(whole).user
    print(f"{len(users):,} rows, in order: {users.is_monotonic_increasing}")
    print(found.head().to_string(index=False))
    return found


def number_of(path: Path) -> int:
    """Place of a file among those that Dask has written."""
    return int(path.stem.split(".")[1])


if __name__ == "__main__":
    main()
