"""From `python script.py` to the result, over Parquet files: fresh processes, in turns.

``python -m asv_bench.benchmarks.cold_start 10 170 --rounds 5`` prints medians for sizes in MB, with
ratios of time and of peak memory to Dask's threads. Programs find bytecode, as after an
installation. Engines are ``threads`` (Dask's), ``auto``, ``local``, ``ray`` and ``LocalCluster``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from asv_bench.peers.tpch import make

BYTES = 12  # of a row in the files
SCALE = 340  # megabytes in files of TPC-H at scale 1
READ = "df = dd.read_parquet({path!r}); "
JOBS = {
    "groupby": READ + "df.groupby('k').v.sum().compute()",
    "shuffle": READ + "df.shuffle('k').compute()",
    "sort": READ + "df.sort_values('v').compute()",
    "merge": READ + "df.merge(df[['k', 'w']].drop_duplicates('k'), on='k').compute()",
    "tpch": "from pathlib import Path; from examples.tpch import queries, tables; "
    "queries.QUERIES[3](tables.read(Path({tpch!r}), {scale})).compute()",
    "hundred": "from asv_bench.benchmarks.hundred import frame, shuffle; "
    "shuffle(frame()).compute()",
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
import resource
import dask, dask.dataframe as dd
if __name__ == "__main__":
    {settings}
    {job}
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print("seconds, megabytes", seconds, peak, flush=True)
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


def run(engine: str, job: str, path: Path, folder: Path) -> tuple[float, float]:
    """Run one job in a fresh process; return its seconds and its peak memory in megabytes."""
    scale = int(path.name) / SCALE
    tpch = str(make(folder, scale)) if job == "tpch" else ""
    script = folder / "script.py"
    code = JOBS[job].format(path=str(path), tpch=tpch, scale=scale)
    script.write_text(PROGRAM.format(settings=SETTINGS[engine], job=code))
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    env["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    ended = subprocess.run(
        [sys.executable, str(script)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    seconds, peak = ended.stdout.split()[-2:]
    return float(seconds), float(peak)


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
                run(args.engines[-1], job, path, folder)  # writes bytecode
                runs: dict[str, list[tuple[float, float]]] = {e: [] for e in args.engines}
                for _ in range(args.rounds):
                    for engine in args.engines:
                        runs[engine].append(run(engine, job, path, folder))
                medians = {
                    engine: [statistics.median(column) for column in zip(*found, strict=True)]
                    for engine, found in runs.items()
                }
                base, room = medians[args.engines[0]]
                line = ", ".join(
                    f"{engine} {seconds:.2f} s ({seconds / base:.2f}) "
                    f"{peak:.0f} MB ({peak / room:.2f})"
                    for engine, (seconds, peak) in medians.items()
                )
                print(f"{size} MB {job}: {line}", flush=True)


if __name__ == "__main__":
    main()
