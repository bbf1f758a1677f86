"""What a piece of a pipeline costs, and how busy the GPUs are kept.

``python -m asv_bench.benchmarks.pieces cost`` sends pieces of 1 KB to 100 MB through two stages
that do nothing, and says which process worked for each. ``... size`` is the thesis's figure 2.12,
with less data: 4096 rows of 10 KB, 2 ms a row in each of two stages, on eight (logical) CPUs, by
rows in a partition. ``... busy`` has a GPU stage that needs 1.2 times what the CPUs before it need.

References: thesis section 2.5.3.2.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil

import dask_exo

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)  # bytes
TOTAL, MOST, LEAST = 2_000_000_000, 400, 20  # bytes, pieces
ROWS, WIDTH, EACH = 4096, 1250, 0.002  # rows; floats of a row; seconds
BOUND = ROWS * 2 * EACH / 8  # seconds
GPUS, CPUS, FASTER = 2, 4, 1.2
INFER, BUSY = (0.1, 0.3, 1.0), 20.0  # seconds of a call, of all of a GPU


def cpu() -> dict[tuple[str, int], float]:
    """Seconds of processor time of the driver, the workers, and Ray's own processes."""
    me, seconds = psutil.Process(), {}
    for one in [me, *me.children(recursive=True)]:
        try:
            used = one.cpu_times()
            line = " ".join(one.cmdline()[:3])
        except psutil.Error:
            continue
        worker = "ray::" in line or "default_worker" in line
        who = "driver" if one.pid == me.pid else "workers" if worker else "Ray"
        seconds[who, one.pid] = used.user + used.system
    return seconds


def spent(before: dict[tuple[str, int], float]) -> Counter[str]:
    """Processor time since then; not of processes that have ended."""
    seconds = Counter[str]()
    for (who, pid), now in cpu().items():
        seconds[who] += now - before.get((who, pid), 0.0)
    return seconds


def zeros(i: int, nbytes: int) -> pd.DataFrame:
    return pd.DataFrame({"x": np.zeros(max(1, nbytes // 8))})


def same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def drained(pipeline: Any) -> tuple[float, float, int]:
    """Seconds to the first piece and from it to the last one, and how many came."""
    start, first, count = time.perf_counter(), 0.0, 0
    for _ in pipeline.iter_batches():
        first = first or time.perf_counter()
        count += 1
    return first - start, time.perf_counter() - first, count


def cost() -> None:
    """Print the table of sizes."""
    print("| bytes | pieces | ms a piece | MB/s | driver | workers | Ray: ms of processor time |")
    print("|---|---|---|---|---|---|---|")
    with dask_exo.enable(num_cpus=2, object_store_memory="3GB"):
        for nbytes in (SIZES[0], *SIZES):  # the first one starts processes
            many = max(LEAST, min(MOST, TOTAL // nbytes))
            before, start = cpu(), time.perf_counter()
            source = dd.from_map(zeros, range(many), nbytes=nbytes, meta=zeros(0, 8))
            pipeline = source.exo.pipeline(memory="2GB", target=max(1000, nbytes))
            _, _, count = drained(pipeline.map_partitions(same, concurrency=2))
            took, used = time.perf_counter() - start, spent(before)
            each = [f"{1000 * used[who] / count:.1f}" for who in ("driver", "workers", "Ray")]
            print(
                f"| {nbytes:,} | {count} | {1000 * took / count:.1f} "
                f"| {count * nbytes / took / 1e6:.0f} | {' | '.join(each)} |",
                flush=True,
            )


def rows(i: int, count: int) -> pd.DataFrame:
    time.sleep(EACH * count)
    return pd.DataFrame(np.zeros((count, WIDTH)))


def slowly(frame: pd.DataFrame) -> pd.DataFrame:
    time.sleep(EACH * len(frame))
    return frame


def sizes() -> Iterator[tuple[int, float]]:
    """Yield the rows of a partition, and the seconds of all rows."""
    with dask_exo.enable(num_cpus=8, object_store_memory="2GB"):
        for count in (64, 4, 16, 64, 256, 1024):  # the first one starts processes
            source = dd.from_map(rows, range(ROWS // count), count=count, meta=rows(0, 0))
            pipeline = source.exo.pipeline(memory="500MB", target=count * WIDTH * 8)
            first, rest, _ = drained(pipeline.map_partitions(slowly, concurrency=8))
            yield count, first + rest


def size() -> None:
    """Print the table of rows in a partition."""
    print(f"| rows | seconds, bound {BOUND:.1f} | over the bound |")
    print("|---|---|---|")
    for count, took in sizes():
        print(f"| {count} | {took:.1f} | {took / BOUND:.2f} |", flush=True)


def prepare(i: int, infer: float) -> pd.DataFrame:
    time.sleep(infer * CPUS / GPUS / FASTER)
    return pd.DataFrame({"x": np.full(125_000, infer)})


def infer(frame: pd.DataFrame) -> pd.DataFrame:
    begin = time.perf_counter()
    time.sleep(frame.x.iloc[0])
    return pd.DataFrame({"begin": [begin], "end": [time.perf_counter()]})


def busy() -> None:
    """Print the share of the time that the GPUs work, without their first fifth of the calls."""
    print("| seconds a call | calls | GPUs busy |")
    print("|---|---|---|")
    with dask_exo.enable(num_cpus=CPUS, num_gpus=GPUS, object_store_memory="1GB"):
        for seconds in INFER:
            many = int(BUSY * GPUS / seconds)
            meta = pd.DataFrame({"x": [1.0]})
            source = dd.from_map(prepare, range(many), infer=seconds, meta=meta)
            pipeline = source.exo.pipeline(memory="40MB")
            calls = pd.concat(
                pipeline.map_partitions(infer, num_cpus=0, num_gpus=1).iter_batches()
            ).sort_values("begin")[many // 5 :]
            work = (calls.end - calls.begin).sum()
            share = work / GPUS / (calls.end.max() - calls.begin.min())
            print(f"| {seconds} | {len(calls)} | {share:.1%} |", flush=True)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m asv_bench.benchmarks.pieces")
    parser.add_argument("what", choices=["cost", "size", "busy"])
    {"cost": cost, "size": size, "busy": busy}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
