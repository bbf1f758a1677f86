"""Load | model | after on logical GPUs: plain Dask code and a pipeline against their bound.

``python -m asv_bench.benchmarks.gpu_chain [plain] [free] [pipeline]`` runs the same three
functions, which sleep, on a private Ray of 8 CPUs and 2 GPUs, which need not exist. Each variant
has a Ray of its own, whose workers have run tasks before; in ``free`` the GPU function requests no
CPU. Prints seconds, their ratio to the bound, and the share of the time that the GPUs were busy,
for three runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import dask
import dask.dataframe as dd
import pandas as pd

import dask_exo

PARTS, CPUS, GPUS, RUNS = 64, 8, 2, 3
LOAD, MODEL, AFTER = 0.6, 0.2, 0.1
"""Seconds for a partition."""
BOUND = LOAD + PARTS * MODEL / GPUS + AFTER
"""Seconds: GPUs that wait for the first partition only, and the CPU's part of the last one."""


def read(number: int) -> pd.DataFrame:
    """One partition."""
    return pd.DataFrame({"n": [number], "start": [0.0], "end": [0.0]})


def load(frame: pd.DataFrame) -> pd.DataFrame:
    """What a CPU does before."""
    time.sleep(LOAD)
    return frame


def model(frame: pd.DataFrame) -> pd.DataFrame:
    """What a GPU does."""
    start = time.time()
    time.sleep(MODEL)
    return frame.assign(start=start, end=time.time())


def after(frame: pd.DataFrame) -> pd.DataFrame:
    """What a CPU does after it."""
    time.sleep(AFTER)
    return frame


def source() -> dd.DataFrame:
    """The input."""
    return dd.from_map(read, range(PARTS), meta=read(0).iloc[:0])


def plain(num_cpus: float = 1) -> pd.DataFrame:
    """Run plain Dask code."""
    frame = source()
    for function in load, dask_exo.options(num_gpus=1, num_cpus=num_cpus)(model), after:
        frame = frame.map_partitions(function, meta=frame._meta)  # inferring it would sleep
    return frame.compute()


def pipeline() -> pd.DataFrame:
    """Run a pipeline."""
    pipe = source().exo.pipeline().map_partitions(load)
    pipe = pipe.map_partitions(model, num_gpus=1).map_partitions(after)
    return pipe.materialize().compute()


VARIANTS: dict[str, Callable[[], pd.DataFrame]] = {
    "plain": plain,
    "free": partial(plain, 0),
    "pipeline": pipeline,
}


def main(names: list[str]) -> None:
    """Run and print."""
    print(f"bound: {BOUND:.1f} s", flush=True)
    for name in names or VARIANTS:
        with dask_exo.enable(num_cpus=CPUS, num_gpus=GPUS, object_store_memory="1GB"):
            with dask.config.set(
                {"exo.engine": "ray"}
            ):  # all workers run tasks, and are CPU workers
                source().map_partitions(after, meta=read(0)).sum().compute()
            for run in range(RUNS):
                start, began = time.perf_counter(), time.time()
                got = VARIANTS[name]()
                seconds = time.perf_counter() - start
                assert sorted(got.n) == list(range(PARTS))
                busy = (got.end - got.start).sum() / GPUS / seconds
                print(
                    f"{name}, run {run + 1}: {seconds:.1f} s, {seconds / BOUND:.2f} x, GPUs busy "
                    f"{busy:.0%}, first after {got.start.min() - began:.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
