"""What checkpoints of a workflow cost, and what they save: figure 6.6 of ExoFlow.

A workflow loads partitions, augments them anew in each epoch, trains on them, and publishes the
model. Loading takes long, augmenting makes much data and returns others each time.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
from matplotlib.figure import Figure

import dask_exo

PARTS, EPOCHS = 4, 6
LOAD, TRAIN = 2.0, 0.5  # seconds of a task
MODES = {
    "no checkpoints": {"ingest": {}, "augment": {}, "train": {}},
    "synchronous": {
        "ingest": {"checkpoint": True},
        "augment": {"deterministic": False, "checkpoint": True, "external": True},
        "train": {"checkpoint": True, "external": True},
    },
    "asynchronous": {
        "ingest": {"checkpoint": True},
        "augment": {"deterministic": False, "checkpoint": True},
        "train": {"checkpoint": True},
    },
    "selective": {"ingest": {"checkpoint": True}, "augment": {}, "train": {"checkpoint": True}},
}
"""Annotations of the tasks. A task with an external output waits until all before it are stored."""


def load(part: int, nbytes: int) -> np.ndarray:
    """Read and clean a part, which takes long."""
    time.sleep(LOAD)
    return np.random.default_rng(part).random(nbytes // 8)


def augment(data: np.ndarray, epoch: int) -> np.ndarray:
    """Return changed data."""
    return data + np.random.default_rng([epoch, len(data)]).random(len(data))


def train(model: float, slow: float, *parts: np.ndarray) -> float:
    """Return the next model."""
    time.sleep(slow)
    return model / 2 + sum(float(part.mean()) for part in parts)


def publish(model: float, target: str) -> float:
    """Write the model."""
    Path(target).write_text(str(model), encoding="utf-8")
    return model


def workflow(mode: str, nbytes: int, target: str) -> Any:
    """Return the graph: each epoch reads the parts and the model before it."""
    each, nothing = MODES[mode], dask.delayed(0.0, name="model-0")
    with dask.annotate(**each["ingest"]):
        parts = [dask.delayed(load)(i, nbytes, dask_key_name=f"load-{i}") for i in range(PARTS)]
    model = nothing
    for epoch in range(EPOCHS):
        with dask.annotate(**each["augment"]):
            more = [dask.delayed(augment)(part, epoch, dask_key_name=f"augment-{epoch}-{i}")
                    for i, part in enumerate(parts)]  # fmt: skip
        with dask.annotate(**each["train"]):
            # parts in a list would be annotated, too
            model = dask.delayed(train)(model, TRAIN, *more, dask_key_name=f"train-{epoch}")
    with dask.annotate(external=True):
        return dask.delayed(publish)(model, target, dask_key_name="publish")


def drive(mode: str, nbytes: int, directory: str) -> None:
    """One program: say when it begins, and what it took."""
    with dask_exo.enable(num_cpus=2, object_store_memory="3GB"):
        dask.compute([dask.delayed(time.sleep)(0.5) for _ in range(4)])
        print("begin", flush=True)
        begin = time.perf_counter()
        with dask.config.set({"exo.checkpoint.path": f"{directory}/kept"}):
            workflow(mode, nbytes, f"{directory}/model").compute()
        print(f"took {time.perf_counter() - begin:.3f}", flush=True)


def run(mode: str, nbytes: int, kill: float | None = None) -> float:
    """Return the seconds of the workflow; with ``kill``, of both programs until it is done."""
    with tempfile.TemporaryDirectory(prefix="exo-figures-") as directory:
        lost = 0.0 if kill is None else _program(mode, nbytes, directory, kill)
        return lost + _program(mode, nbytes, directory, None)


def _program(mode: str, nbytes: int, directory: str, kill: float | None) -> float:
    call = "import sys; from asv_bench.figures.workflows import drive; "
    call += "drive(sys.argv[1], int(sys.argv[2]), sys.argv[3])"
    command = [sys.executable, "-W", "ignore", "-c", call, mode, str(nbytes), directory]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline().strip() == "begin"
        if kill is not None:
            time.sleep(kill)
            os.killpg(program.pid, signal.SIGKILL)  # the program and its Ray
            return kill
        return float(program.stdout.readline().split()[1])


def measure(rounds: int, megabytes: list[int]) -> list[dict[str, Any]]:
    """Each mode by sizes of the data; then with the loss of the program and its whole cluster."""
    found = []
    for _, size, mode in itertools.product(range(rounds), megabytes, MODES):
        nbytes = size * 10**6 // PARTS
        seconds = run(mode, nbytes)
        found.append({"mode": mode, "megabytes": size, "killed": False, "seconds": seconds})
        print(found[-1], flush=True)
    for _, mode in itertools.product(range(rounds), MODES):
        size = megabytes[-1]
        whole = [one["seconds"] for one in found if one["mode"] == mode
                 and one["megabytes"] == size and not one["killed"]]  # fmt: skip
        seconds = run(mode, size * 10**6 // PARTS, 0.7 * statistics.median(whole))
        found.append({"mode": mode, "megabytes": size, "killed": True, "seconds": seconds})
        print(found[-1], flush=True)
    return found


def draw(found: list[dict[str, Any]]) -> Figure:
    """Seconds over sizes; bars with and without the loss of the cluster."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = sorted({one["megabytes"] for one in found})
    modes = list(dict.fromkeys(one["mode"] for one in found))

    def median(mode: str, size: int, killed: bool) -> float:
        key = (mode, size, killed)
        return statistics.median(
            one["seconds"] for one in found if (one["mode"], one["megabytes"], one["killed"]) == key
        )

    for mode in modes:
        left.plot(sizes, [median(mode, size, False) for size in sizes], "o-", label=mode)
    right.bar(modes, [median(mode, sizes[-1], True) for mode in modes], alpha=0.4, label="killed")
    right.bar(modes, [median(mode, sizes[-1], False) for mode in modes], label="undisturbed")
    left.set(xlabel="MB of data in an epoch", ylabel="seconds", title="without failure", ylim=0)
    right.set(ylabel="seconds", title="program and cluster killed after 70 %")
    left.legend()
    right.legend()
    figure.suptitle("ExoFlow, figure 6.6")
    return figure
