"""The program of a user on a cluster of its own, whose nodes come and go.

Run as ``python -m tests.faults.driver DIRECTORY``: takes a cell a line, and answers with a
line of JSON that says what came of it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import ray
from ray.cluster_utils import Cluster

import dask_exo
from dask_exo.cluster import failpoints
from dask_exo.report import recording
from tests.faults.cells import Cell
from tests.faults.jobs import JOBS, MAKES, check

NODES = 2
SOON = {  # seen to be dead within a few seconds
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
    "health_check_initial_delay_ms": 500,
}
STORE = 100 * 2**20
SETTINGS = {"exo.shuffle.algorithm": "push", "exo.shuffle.late-floor": "1s"}
ALONE = {"exo.shuffle.late-floor": "60s"}  # else the repeated attempt may end second, uncounted
SOONER = {"spilled": {"exo.fault.stall-timeout": "5s"}}  # where Ray itself waits for ever
HANGS = 55.0  # seconds after which it is shown where each thread is
LONGEST = 60.0  # seconds until a process has come to the point


class Place:
    """A cluster of nodes with two slots each; the head has none, since it cannot be lost."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.spill = directory, directory.parent / "spill"
        self.cluster = Cluster(
            initialize_head=True,
            shutdown_at_exit=False,  # whose signal handlers only the main thread can set
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": STORE,
                "object_spilling_directory": str(self.spill),
                "_system_config": SOON,
            },
        )
        self.nodes: list[Any] = []
        self.fill()
        dask_exo.enable(address=self.cluster.address)

    def fill(self) -> None:
        """Have as many nodes as at the beginning."""
        while len(self.nodes) < NODES:
            self.nodes.append(self.cluster.add_node(num_cpus=2, object_store_memory=STORE))
        self.cluster.wait_for_nodes()

    def lose(self, what: str, process: int) -> None:
        """Take away the node of a process, or another one; or all files of spilled objects."""
        if what == "spilled":
            for path in self.spill.rglob("*"):
                if path.is_file():
                    path.unlink()
            return
        above = {parent.pid for parent in psutil.Process(process).parents()}
        mine = [n for n in self.nodes if n.all_processes["raylet"][0].process.pid in above]
        node = (mine or self.nodes)[0]
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)
        if what == "node and back":
            self.nodes.append(self.cluster.add_node(num_cpus=2, object_store_memory=STORE))

    def wait_and_lose(self, what: str, first: int, over: threading.Event) -> None:
        """When a process has come to the point: take away what is to be lost, let it go on."""
        end = time.monotonic() + LONGEST
        while not over.is_set() and time.monotonic() < end:
            process = failpoints.arrivals(self.directory).get(first)
            if process:
                self.lose(what, process)
                break
            time.sleep(0.02)
        failpoints.go_on(self.directory)

    @contextlib.contextmanager
    def losing(self, cell: Cell) -> Iterator[None]:
        """While a job runs."""
        over = threading.Event()
        args = (cell.lose, cell.planted.first, over)
        thread = threading.Thread(target=self.wait_and_lose, args=args, daemon=True)
        failpoints.plant(self.directory, cell.planted)
        if cell.lose:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if cell.lose:
                thread.join()

    def run(self, cell: Cell) -> dict[str, Any]:
        """Let it happen, and say what came of it."""
        self.fill()
        files = Path(tempfile.mkdtemp(dir=self.directory.parent))
        answer: dict[str, Any] = {"outcome": "same result", "text": ""}
        settings = SETTINGS | SOONER.get(cell.lose, {})
        settings |= ALONE if cell.planted.action == "kill" else {}
        started = time.perf_counter()
        faulthandler.dump_traceback_later(HANGS)
        with (
            recording() as stats,
            self.losing(cell),
            dask.config.set(settings),
            dask.annotate(retries=cell.retries),
        ):
            try:
                check(JOBS[cell.job](files, MAKES[cell.make]), cell.make)
            except Exception as error:  # noqa: BLE001  it is the answer
                answer["outcome"] = type(error).__name__
                answer["text"] = "\n".join([str(error), *getattr(error, "__notes__", [])])
        faulthandler.cancel_dump_traceback_later()
        answer["seconds"] = time.perf_counter() - started
        answer["repeated"] = stats.repeated
        answer["partitions"] = sum(stats.tasks.values())
        answer["partitions"] += sum(stage.finished for stage in stats.stages.values())
        answer["struck"] = cell.planted.first in failpoints.arrivals(self.directory)
        shutil.rmtree(files)
        return answer


def main() -> None:
    """Answer until nobody asks."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints
    place = Place(Path(sys.argv[1]))
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        cell = Cell.read(line)
        answers.write(json.dumps(place.run(cell)) + "\n")
        answers.flush()
    dask_exo.disable()
    ray.shutdown()
    place.cluster.shutdown()


if __name__ == "__main__":
    main()
