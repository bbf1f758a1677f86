"""From `python script.py` to the result, over Parquet files: fresh processes, in turns.

``python -m asv_bench.benchmarks.cold_start 10 170 --rounds 5`` prints medians for sizes in MB, with
ratios to Dask's threads. Engines are ``threads`` (Dask's), ``auto``, ``local``, ``ray`` and
``LocalCluster``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

BYTES = 12  # of a row in the files
JOBS = {
    "groupby": "df.groupby('k').v.sum().compute()",
    "shuffle": "df.shuffle('k').compute()",
    "sort": "df.sort_values('v').compute()",
    "merge": "df.merge(df[['k', 'w']].drop_duplicates('k'), on='k').compute()",
}
SETTINGS = {
    "threads": "dask.config.set(scheduler='threads')",
    "LocalCluster": "from distributed import Client; client = Client(n_workers=2, "
    "threads_per_worker=1, dashboard_address=None)",
    **{
        engine: "import dask_exo; dask.config.set(scheduler=dask_exo.get, "
        f"**{{'exo.engine': '{engine}'}})"
        for engine in ("auto", "local", "ray")
    },
}
PROGRAM = """
import time
start = time.perf_counter()
import dask, dask.dataframe as dd
if __name__ == "__main__":
    {settings}
    df = dd.read_parquet({path!r})
    {job}
    print("seconds", time.perf_counter() - start, flush=True)
"""


def write(folder: Path, megabytes: int) -> Path:
    """Write files of about so many megabytes, at most 16 MB each."""
    path = folder / f"{megabytes}"
    path.mkdir()
    files = max(4, megabytes // 16)
    rows = megabytes * 10**6 // BYTES // files
    for i in range(files):
        rng = np.random.default_rng(i)
        frame = pd.DataFrame(
            {
                "k": rng.integers(0, 10**5, rows),
                "v": rng.random(rows),
                "w": rng.integers(0, 100, rows),
            }
        )
        frame.to_parquet(path / f"{i:03}.parquet")
    return path


def run(engine: str, job: str, path: Path, folder: Path) -> float:
    """Run one job in a fresh process; return its seconds."""
    script = folder / "script.py"
    script.write_text(PROGRAM.format(settings=SETTINGS[engine], path=str(path), job=JOBS[job]))
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=600
    )
    return float(ended.stdout.split()[1])


def main() -> None:
    """Run all engines in turns, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megabytes", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", default=["threads", "auto"], choices=SETTINGS)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in args.megabytes:
            path = write(folder, size)
            for job in args.jobs:
                seconds: dict[str, list[float]] = {engine: [] for engine in args.engines}
                for _ in range(args.rounds):
                    for engine in args.engines:
                        seconds[engine].append(run(engine, job, path, folder))
                medians = {engine: statistics.median(times) for engine, times in seconds.items()}
                base = medians[args.engines[0]]
                line = ", ".join(f"{e} {t:.2f} s ({t / base:.2f})" for e, t in medians.items())
                print(f"{size} MB {job}: {line}", flush=True)


if __name__ == "__main__":
    main()
