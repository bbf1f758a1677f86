"""A user's program in a process of its own, to which faults happen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dask_exo.cluster.failpoints import VARIABLE
from tests.faults.cells import Cell

ANSWERS = "FAULTS_ANSWERS"  # file for `tests.faults.table`
LONGEST = 60.0  # seconds that a cell may take: what takes longer hangs


class Program:
    """`tests.faults.driver`, started when it is needed, and anew after it hung."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def run(self, cell: Cell) -> dict[str, Any]:
        """What came of a cell."""
        if self._process is None:
            self._process = self._start()
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == "ready\n"
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(cell.line() + "\n")
        process.stdin.flush()
        timer = threading.Timer(LONGEST, self.stop)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if not line:
            self.stop()
            process.stdin.close()
            process.stdout.close()
            text = (self._directory / "errors").read_text()[-3000:]
            return {"outcome": "hung or died", "text": text, "struck": True, "seconds": LONGEST}
        answer: dict[str, Any] = json.loads(line)
        if path := os.environ.get(ANSWERS):
            told = {"fault": cell.fault, "place": cell.place, "job": cell.job, **answer}
            with Path(path).open("a") as file:
                file.write(json.dumps(told) + "\n")
        return answer

    def stop(self) -> None:
        """End it and all that it has started."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """Let it end by itself."""
        if self._process is not None:
            with self._process as process:  # closes what it listens to
                assert process.stdin is not None
                process.stdin.close()
                timer = threading.Timer(LONGEST, self.stop)
                timer.start()
                process.wait()
                timer.cancel()

    def _start(self) -> subprocess.Popen[str]:
        points = self._directory / "points"
        points.mkdir(exist_ok=True)
        with (self._directory / "errors").open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.driver", str(points)],
                env={**os.environ, VARIABLE: str(points), "RAY_USAGE_STATS_ENABLED": "0"},
                cwd=Path(__file__).parents[2],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )


@pytest.fixture(scope="session")
def program() -> Iterator[Program]:
    """The program on a cluster whose nodes come and go."""
    with tempfile.TemporaryDirectory(prefix="faults") as directory:
        found = Program(Path(directory))
        yield found
        found.close()
