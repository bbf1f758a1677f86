"""Online aggregation of Zipf page views: how soon it knows what, and what that costs at its end.

``python -m asv_bench.benchmarks.online`` writes page views to a folder of Parquet files, runs the
ordinary groupby and `agg_online` in turns on a private Ray of two slots, and prints the table of
``docs/performance-pipelines.md``.

References: Exoshuffle section 3.5.3.2 and figure 3.5 (1 TB of page views of Wikipedia: within 8 %
after 1/22 of the time of an ordinary groupby, and complete after 1.4 of it).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from dask.utils import parse_bytes

import dask_exo
from asv_bench.benchmarks.common import OnRay, unit

NBYTES = parse_bytes(os.environ.get("EXO_BENCH_ONLINE", "1GB"))
"""Of Parquet."""
ROWS = 1_000_000  # of a file
LANGUAGES = 300
SKEW = 1.2
ROUNDS = 3
CLOSE = 0.08
"""Kullback-Leibler divergence of an estimate that is good enough: that of the paper."""


def languages() -> np.ndarray:
    """(300,) codes."""
    return np.array([f"{a}{b}" for a in "abcdefghijklmnopqrst" for b in "abcdefghijklmno"])


def views(file: int) -> pa.Table:
    """The page views of an hour: which languages are awake changes from hour to hour."""
    rng = np.random.default_rng(file)
    awake = 1 + 0.5 * np.sin(2 * np.pi * (file / 24 + np.arange(LANGUAGES) / LANGUAGES))
    weights = awake / np.arange(1, LANGUAGES + 1) ** SKEW
    codes = rng.choice(LANGUAGES, ROWS, p=weights / weights.sum()).astype("int16")
    lang = pa.DictionaryArray.from_arrays(codes, languages()).cast(pa.string())
    pages = rng.integers(0, 10**7, ROWS, dtype="int32")
    seen = rng.zipf(2.0, ROWS).clip(max=10**5)
    return pa.table({"lang": lang, "page": pages, "views": seen})


def write(folder: Path, nbytes: int) -> int:
    """Write so many bytes of Parquet, or a little more; return the number of files."""
    written = count = 0
    while written < nbytes:
        file = folder / f"{count:05}.parquet"
        pq.write_table(views(count), file)
        written += file.stat().st_size
        count += 1
    return count


def divergence(truth: pd.Series, estimate: pd.Series) -> float:
    """Kullback-Leibler divergence of the shares of all groups."""
    p, q = truth / truth.sum(), estimate.reindex(truth.index).fillna(0) / estimate.sum()
    return float((p * np.log(p / q.clip(lower=1e-12))).sum())


class Outcome(NamedTuple):
    """Seconds of the ordinary groupby, and until each estimate; their divergences and shares."""

    regular: float
    seconds: list[float]
    divergences: list[float]
    shares: list[float]

    @property
    def close(self) -> int:
        """The first estimate from which on all are `CLOSE`."""
        far = [i for i, one in enumerate(self.divergences) if one > CLOSE]
        return far[-1] + 1 if far else 0


def run(folder: str) -> Outcome:
    """Measure both once."""
    started = time.perf_counter()
    truth = dd.read_parquet(folder).groupby("lang").views.sum().compute()
    regular = time.perf_counter() - started
    seconds, divergences, shares = [], [], []
    started = time.perf_counter()
    for estimate in dd.read_parquet(folder).exo.groupby("lang").agg_online({"views": "sum"}):
        seconds.append(time.perf_counter() - started)
        divergences.append(divergence(truth, estimate.frame.views))
        shares.append(estimate.share)
    pd.testing.assert_series_equal(
        estimate.frame.views.sort_index(), truth.sort_index(), check_index_type=False
    )
    return Outcome(regular, seconds, divergences, shares)


class Online(OnRay):
    """A tenth of the data of ``main``."""

    def setup_cache(self) -> str:
        """Write the files."""
        folder = Path.cwd() / "views"
        folder.mkdir(exist_ok=True)
        write(folder, NBYTES // 10)
        return str(folder)

    def setup(self, folder: str) -> None:
        """Start Ray."""
        self.start()

    @unit("of an ordinary groupby")
    def track_close(self, folder: str) -> float:
        """Time until an estimate is close, over that of an ordinary groupby."""
        found = run(folder)
        return found.seconds[found.close] / found.regular

    @unit("of an ordinary groupby")
    def track_complete(self, folder: str) -> float:
        """Time until the result is complete, over that of an ordinary groupby."""
        found = run(folder)
        return found.seconds[-1] / found.regular


def main() -> None:
    """Print medians, and the estimates of the last round."""
    with (
        tempfile.TemporaryDirectory() as folder,
        dask_exo.enable(num_cpus=2, object_store_memory="1GB"),
    ):
        files = write(Path(folder), NBYTES)
        print(f"{files} files, {files * ROWS:,} rows")
        run(folder)  # workers started, files in the page cache
        found = [run(folder) for _ in range(ROUNDS)]
    regular = statistics.median(one.regular for one in found)
    close = statistics.median(one.regular / one.seconds[one.close] for one in found)
    complete = statistics.median(one.seconds[-1] / one.regular for one in found)
    print(f"ordinary groupby {regular:.2f} s; 1/{close:.1f} of it to {CLOSE:.0%}; "
          f"complete in {complete:.2f} of it")  # fmt: skip
    print("| seconds | share seen | divergence |")
    print("|---|---|---|")
    for seconds, far, share in zip(*found[-1][1:], strict=True):
        print(f"| {seconds:.2f} | {share:.1%} | {far:.2%} |")


if __name__ == "__main__":
    main()
