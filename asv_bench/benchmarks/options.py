"""Plain Dask code with a GPU in the middle: read, decode | model | encode, and who holds what.

``python -m asv_bench.benchmarks.options`` runs the same ``map_partitions`` three times on a private
Ray of two CPUs and one GPU, which need not exist: stages sleep. Prints the table of
``docs/performance-pipelines.md``: seconds, and processes that ran the model.
"""

from __future__ import annotations

import os
import time
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo

PARTS = 24
DECODE, MODEL, ENCODE = 0.2, 0.2, 0.05
"""Seconds for a partition."""
LOAD = 1.0
"""Seconds that a process needs to load the model."""
ROWS = 1000
META = {"n": "i8", "x": "i8", "y": "i8", "pid": "i8"}

_loaded: list[bool] = []


def read(number: int) -> pd.DataFrame:
    """One partition."""
    return pd.DataFrame({"n": np.arange(ROWS) + ROWS * number})


def decode(frame: pd.DataFrame) -> pd.DataFrame:
    """What a CPU does before."""
    time.sleep(DECODE)
    return frame.assign(x=frame.n * 2)


class Model:
    """What a GPU does."""

    def __init__(self) -> None:
        time.sleep(LOAD)

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        """One partition."""
        time.sleep(MODEL)
        return frame.assign(y=frame.x, pid=os.getpid())


def modelled(frame: pd.DataFrame) -> pd.DataFrame:
    """Load the model where this process has not, and call it: what a function can do at best."""
    if not _loaded:
        time.sleep(LOAD)
        _loaded.append(True)
    time.sleep(MODEL)
    return frame.assign(y=frame.x, pid=os.getpid())


def encode(frame: pd.DataFrame) -> pd.DataFrame:
    """What a CPU does after it."""
    time.sleep(ENCODE)
    return frame.assign(z=frame.y + 1)


def chain(model: Any) -> dd.DataFrame:
    """All of it."""
    frame = dd.from_map(read, range(PARTS), meta=read(0).iloc[:0])
    frame = frame.map_partitions(decode, meta={"n": "i8", "x": "i8"})
    frame = frame.map_partitions(model, meta=META)
    return frame.map_partitions(encode, meta={**META, "z": "i8"})


def main() -> None:
    """Run and print."""
    cpu = {"num_gpus": 1, "num_cpus": 0}
    variants = [
        ("`options(num_gpus=1, num_cpus=0)(Model)`", chain(dask_exo.options(**cpu)(Model)), {}),
        ("`options(num_gpus=1)(Model)`", chain(dask_exo.options(num_gpus=1)(Model)), {}),
        ("`compute(num_gpus=1)`", chain(modelled), {"num_gpus": 1}),
    ]
    with dask_exo.enable(num_cpus=2, num_gpus=1, object_store_memory="200MB"):
        dd.from_map(read, range(PARTS)).sum().compute()
        for name, frame, keywords in variants:
            start = time.perf_counter()
            got = frame.compute(**keywords)
            seconds = time.perf_counter() - start
            assert len(got) == PARTS * ROWS
            print(f"| {name} | {seconds:.1f} | {got.pid.nunique()} |")


if __name__ == "__main__":
    main()
