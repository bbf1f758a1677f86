"""Checkpoints: what writing them costs, and what a program that died has left to do.

``python -m asv_bench.benchmarks.resume`` prints the table of ``docs/performance-costs.md``: a job
of two sorts, with work before, between and behind them, whose driver is killed at ten random
moments and started again. ``--kills`` and ``--work`` (its seconds for each partition and step) make
it shorter.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from asv_bench.benchmarks.common import BRIEF, ROWS, OnRay, frames
from dask_exo.report import Collector, recording

PARTS, EACH = 32, 100_000


class Overhead(OnRay):
    """A shuffle and a groupby of ``ROWS`` rows, with and without checkpoints."""

    params = ("off", "auto") if BRIEF else ("off", "auto", "all")
    param_names = ("keep",)

    def setup(self, keep: str) -> None:
        """Start Ray; make the input."""
        self.start()
        self.directory = tempfile.TemporaryDirectory()
        self.ddf = frames(ROWS, 20)
        dask.compute(self.ddf.map_partitions(len))

    def time_shuffle(self, keep: str) -> None:
        """Seconds."""
        path = None if keep == "off" else tempfile.mkdtemp(dir=self.directory.name)
        with dask.config.set(
            {"exo.checkpoint.path": path, "exo.checkpoint.keep": "auto" if path is None else keep}
        ):
            self.ddf.shuffle("id6").groupby("id1").v1.sum().compute()

    def teardown(self, *args: object) -> None:
        """Stop Ray; delete what was kept."""
        super().teardown()
        self.directory.cleanup()


def load(i: int, seconds: float) -> pd.DataFrame:
    """Make a partition, which takes a while."""
    rng = np.random.default_rng(i)
    return work(pd.DataFrame({"v": rng.random(EACH), "w": rng.random(EACH)}), seconds)


def work(rows: pd.DataFrame, seconds: float) -> pd.DataFrame:
    """Compute for some seconds."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        np.sort(rows.v.to_numpy())
    return rows


def job(out: str, seconds: float) -> Collector:
    """Two sorts, and work around them."""
    meta = pd.DataFrame({"v": [0.0], "w": [0.0]})
    ddf = dd.from_map(load, range(PARTS), seconds=seconds, meta=meta)
    ddf = ddf.exo.sort_values("v").map_partitions(work, seconds, meta=meta)
    ddf = ddf.exo.sort_values("w").map_partitions(work, seconds, meta=meta)
    with recording() as stats:
        ddf.exo.to_parquet(out)
    return stats


def drive(kept: str, out: str, seconds: float) -> None:
    """One program: say when the job begins, and what it took."""
    dask_exo.enable(num_cpus=2, object_store_memory="1GB")
    dask.compute([dask.delayed(frame_of)(i) for i in range(4)])
    print("begin", flush=True)
    started = time.perf_counter()
    path = None if kept == "off" else kept
    with dask.config.set({"exo.checkpoint.path": path}):
        stats = job(out, seconds)
    took = time.perf_counter() - started
    found = sum(one.found for one in stats.checkpoints)
    kinds = [one.stored for one in stats.checkpoint_decisions]
    print("took", f"{took:.2f}", f"found {found}, shuffles kept: {kinds}", flush=True)


def frame_of(i: int) -> int:
    """A task that has pandas imported."""
    return len(load(i, 0.0))


def program(kept: Path | str, out: Path, seconds: float) -> subprocess.Popen:
    """Start one; return when its job has begun."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--drive"]
    running = subprocess.Popen(
        [*command, str(kept), str(out), "--work", str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None
    assert "begin" in running.stdout.readline()
    return running


def finished(running: subprocess.Popen) -> tuple[float, str]:
    """Seconds that its job took, and what it found."""
    said, _ = running.communicate()
    _, seconds, rest = said.split(" ", 2)
    return float(seconds), rest.strip()


def tree(folder: Path) -> dict[str, bytes]:
    """All files, to be compared."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def main(kills: int, seconds: float, seed: int) -> None:
    """Print what checkpoints cost, and what is left after each kill."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        runs: dict[str, Any] = {}
        for name in ("off", "on", "off", "on"):
            kept = "off" if name == "off" else place / f"kept-{len(runs)}-{time.monotonic_ns()}"
            out = place / f"out-{time.monotonic_ns()}"
            took, said = finished(program(kept, out, seconds))
            runs.setdefault(name, []).append(took)
            print(f"{name:>4} {took:8.2f} s  {said}", flush=True)
        whole, expected = min(runs["on"]), tree(out)
        print(f"overhead {whole / min(runs['off']) - 1:.1%}")
        print("killed after    resumed in    remaining    ratio")
        for i in range(kills):
            kept, out, after = (
                place / f"kept{i}",
                place / f"out{i}",
                rng.uniform(0.05, 0.95) * whole,
            )
            running = program(kept, out, seconds)
            time.sleep(after)
            running.send_signal(signal.SIGKILL)
            running.wait()
            time.sleep(2)
            again, said = finished(program(kept, out, seconds))
            assert tree(out) == expected
            left = whole - after
            print(
                f"{after:10.1f} s {again:11.1f} s {left:10.1f} s {again / left:8.2f}   {said}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drive", nargs=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--work", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.drive:
        drive(*given.drive, given.work)
    else:
        main(given.kills, given.work, given.seed)
