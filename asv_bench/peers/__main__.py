"""Compare: ``python -m asv_bench.peers``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from asv_bench.peers import data, h2o, tpch
from asv_bench.peers.jobs import MADE_UP
from asv_bench.peers.memory import Watch
from asv_bench.peers.systems import SYSTEMS, can

WARM = 20_000  # rows of the run that is not counted
USUAL = [name for name, system in SYSTEMS.items() if system.usual]
PACKAGES = ("dask", "distributed", "ray", "pandas", "pyarrow", "polars", "duckdb")


class Peer:
    """A `worker` process that runs one system."""

    def __init__(self, name: str, cores: int, memory: int, log: Any) -> None:
        limits = {"POLARS_MAX_THREADS": str(cores), "RAY_USAGE_STATS_ENABLED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "asv_bench.peers.worker", name, str(cores), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **limits, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._watch = Watch(self._process.pid)
        self._answer()

    def run(self, job: str, folder: Path, out: Path) -> dict[str, Any]:
        """Seconds and peak bytes of one run, or its error."""
        assert self._process.stdin is not None
        self._watch.take()
        asked = {"job": job, "data": str(folder), "out": str(out)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return {**self._answer(), "peak": self._watch.take()}

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": "the process has died"}

    def close(self) -> None:
        """End the process, and whatever it started."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        self._watch.stop()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=60)
        for process in below:
            with contextlib.suppress(psutil.Error):
                process.kill()


def compare(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Run everything, round after round; a line of the result for each run."""
    if options.tpch:
        jobs: dict[str, Any] = tpch.QUERY_JOBS
        full, warm = tpch.make(folder, options.tpch), tpch.make(folder, tpch.SMALL)
    elif options.h2o:
        jobs = h2o.QUESTIONS
        full, warm = h2o.make(folder, options.h2o), h2o.make(folder, WARM)
    else:
        jobs = MADE_UP
        full, warm = data.make(folder, options.rows), data.make(folder, WARM)
    out, runs = folder / "out", []
    for _ in range(options.rounds):
        for name in options.systems:
            with (folder / f"{name.replace(' ', '-')}.log").open("a") as log:
                peer = Peer(name, options.cores, options.memory, log)
            with contextlib.closing(peer):
                for job in options.jobs or jobs:
                    if not can(name, jobs[job]):
                        continue
                    peer.run(job, warm, out)
                    for first in (True, False):
                        run = peer.run(job, full, out)
                        if "seconds" in run:
                            run["outcome"] = jobs[job].outcome(full, out)
                        runs.append({"system": name, "job": job, "first": first, **run})
                        print(json.dumps(runs[-1]), file=sys.stderr)
    shutil.rmtree(out, ignore_errors=True)
    return runs


def table(runs: list[dict[str, Any]]) -> str:
    """Medians, spread, ratios to dask_exo, and peak memory, a line for each system and job.

    A system runs each job twice in a round. The first time it touches memory that it has not used
    before, which is slow on virtual machines; the spread and the ratio are of the second time.
    """
    lines = ["| job | system | second run | least to most | ratio | first run | peak | result |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for job in dict.fromkeys(run["job"] for run in runs):
        mine = [run for run in runs if run["job"] == job]
        results = [json.dumps(run["outcome"]) for run in mine if "outcome" in run]
        agreed = statistics.mode(results) if results else ""
        ours = _seconds(mine, "dask_exo")
        for system in dict.fromkeys(run["system"] for run in mine):
            its = [run for run in mine if run["system"] == system]
            seconds, first = _seconds(its, system), _seconds(its, system, first=True)
            peak = f"{statistics.median(run['peak'] for run in its) / 1e9:.2f} GB"
            if not seconds:
                lines.append(f"| {job} | {system} | failed | | | | {peak} | {its[0]['error']} |")
                continue
            median = statistics.median(seconds)
            ratio = f"{median / statistics.median(ours):.2f}" if ours else ""
            right = all(json.dumps(run.get("outcome")) == agreed for run in its)
            lines.append(
                f"| {job} | {system} | {median:.2f} s | {min(seconds):.2f} to {max(seconds):.2f} "
                f"| {ratio} | {statistics.median(first):.2f} s | {peak} "
                f"| {'equal' if right else 'DIFFERENT'} |"
            )
    return "\n".join(lines)


def _seconds(runs: list[dict[str, Any]], system: str, *, first: bool = False) -> list[float]:
    mine = [run for run in runs if run["system"] == system and run["first"] == first]
    return [run["seconds"] for run in mine if "seconds" in run]


def main() -> None:
    """Parse, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m asv_bench.peers", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--tpch", type=float, metavar="SCALE", help="instead of made-up rows")
    parser.add_argument("--h2o", type=int, metavar="ROWS", help="questions of the db-benchmark")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--memory", type=int, default=int(psutil.virtual_memory().total * 0.8))
    parser.add_argument("--jobs", type=lambda text: text.split(","), default=None)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=USUAL)
    parser.add_argument("--folder", type=Path, default=None, help="where data and logs go")
    parser.add_argument("--json", type=Path, default=None, help="where the figures go")
    options = parser.parse_args()
    if unknown := [name for name in options.systems if name not in SYSTEMS]:
        parser.error(f"no system is called {unknown[0]!r}: --systems takes {', '.join(SYSTEMS)}")
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        runs = compare(options, folder)
    about = {
        **({"tpch": options.tpch} if options.tpch else {"rows": options.h2o or options.rows}),
        "cores": options.cores,
        "memory": options.memory,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "seconds": round(time.perf_counter() - started),
    }
    if options.json:
        options.json.write_text(json.dumps({"about": about, "runs": runs}, indent=1))
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(table(runs))


if __name__ == "__main__":
    main()
