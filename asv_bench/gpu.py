"""Kernels of device frames against the copies they cannot do without: on a GPU, or on numpy.

``python -m asv_bench.gpu --module cupy --rows 50_000_000``

With ``--module strict``, a stand-in counts what a GPU would do: launches, waits of the host, and
bytes that kernels read and write for each byte of the frame.

Each kernel moves bytes that it must read and write; what a copy of as many takes, in the same
memory, is its bound. pandas does the same beside it. Then the way from one process to another one
on the same GPU, through pinned memory of the host. Needs numpy, pandas, pyarrow, Dask, click and,
on a GPU, cupy; no Ray.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

if importlib.util.find_spec("ray") is None:  # the front door of the package imports it
    _root = Path(__file__).parents[1] / "dask_exo"
    _spec = importlib.util.spec_from_file_location(
        "dask_exo", _root / "__init__.py", submodule_search_locations=[str(_root)]
    )
    sys.modules["dask_exo"] = importlib.util.module_from_spec(_spec)
    importlib.import_module("dask_exo.config").register_defaults()

from dask_exo.partitions.gpu import arrays, memory, shuffle
from dask_exo.partitions.gpu.shuffle import start_copy
from dask_exo.partitions.gpu_frames import DeviceFrame, concat
from dask_exo.testing import strict_cupy

KEYS = 1000


def data(rows: int) -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "k": random.integers(0, KEYS, rows),
            "i": random.permutation(rows),
            "f": random.random(rows),
            "g": random.random(rows).astype("float32"),
        }
    )


def seconds(work: Callable[[], Any], module: str, repeats: int) -> float:
    """The least time of several runs, all of the device's work included."""
    wait = (lambda: None) if module == "numpy" else arrays.module(module).cuda.Device().synchronize
    best = float("inf")
    for _ in range(repeats + 1):  # the first compiles
        start = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - start)
    return best


def kernels(frame: Any, other: Any, put: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """By name, what is done, and bytes that it must move for each byte of the frame."""
    half = frame.f > 0.5
    return {
        "filter": (lambda: frame[half], 1.5),
        "concat": (lambda: put([frame, frame]), 4),
        "sort": (lambda: frame.sort_values("i"), 2),
        "sort, 1000 keys": (lambda: frame.sort_values("k"), 2),
        "sort by two": (lambda: frame.sort_values(["k", "f"]), 2),
        "groupby sum": (lambda: frame.groupby("k").sum(), 1),
        "groupby min": (lambda: frame.groupby("k").min(), 1),
        "merge": (lambda: frame.merge(other, on="k"), 2.3),
        "drop_duplicates": (lambda: frame.drop_duplicates("k"), 0.3),
    }


def count(frame: Any, other: Any) -> None:
    """Print for each kernel what a GPU would have done."""
    counters = strict_cupy.counters

    def split() -> None:
        ids = shuffle.partition_ids(frame, ["k"], 100)
        shuffle.to_wire(frame, shuffle.counting_argsort(ids, 100)[0])

    works = {name: work for name, (work, _) in kernels(frame, other, concat).items()}
    works |= {"hash and split": split, "groupby 1 M": lambda: frame.groupby("i").f.sum()}  # noqa: PLW0108
    for name, work in works.items():
        counters.reset()
        work()
        c, size = counters, frame.nbytes
        print(
            f"{name:16} {c.launches:4} launches {c.waits:3} waits {c.moved / size:6.1f} moved "
            f"{c.allocated / size:6.1f} allocated {c.unordered_sums} unordered sums"
        )


def between(module: str, nbytes: int, repeats: int) -> None:
    """Print what it takes to bring so many bytes to another process on the same GPU."""
    xp = arrays.module(module)
    buffer = xp.zeros(nbytes, np.uint8)
    there = seconds(lambda: memory.to_device(memory.to_host(buffer)(), xp), module, repeats)
    print(
        f"{'through the host':16} {1e3 * there:8.1f} ms, {nbytes / 1e9 / there:.1f} GB/s for "
        f"{nbytes / 1e6:.0f} MB to the host and back, without the object store between"
    )


def shuffling(device: Any, copied: Any, module: str, repeats: int) -> None:
    """Print what it takes to get rows ready to leave the device."""

    def split() -> Any:
        ids = shuffle.partition_ids(device, ["k"], 100)
        return shuffle.to_wire(device, shuffle.counting_argsort(ids, 100)[0])

    print(f"{'hash and split':16} {1e3 * seconds(split, module, repeats):8.1f} ms, to host memory")
    pack = seconds(lambda: tuple(start_copy(device)()), module, repeats)
    plain = seconds(lambda: arrays.host(copied), module, repeats)
    print(
        f"{'pack and copy':16} {1e3 * pack:8.1f} ms, to host memory; an array of "
        f"{copied.nbytes / 1e6:.0f} MB takes {1e3 * plain:.1f} ms without pinned memory"
    )


@click.command()
@click.option("--module", type=click.Choice(["cupy", "numpy", "strict"]), default="numpy")
@click.option("--rows", default=2_000_000)
@click.option("--repeats", default=3)
@click.option("--peer/--no-peer", default=True, help="Time pandas, too.")
def main(module: str, rows: int, repeats: int, *, peer: bool) -> None:
    """Print a line for each kernel, and for each way out of the device."""
    if module == "cupy" and not arrays.devices():
        raise click.ClickException("no GPU, or no cupy: take --module numpy")
    if module == "strict":
        strict_cupy.install()
        names = pd.DataFrame({"k": np.arange(KEYS), "z": np.arange(KEYS) * 0.5})
        count(*(DeviceFrame.from_pandas(frame, "cupy") for frame in (data(rows), names)))
        return
    pandas = data(rows)
    device = DeviceFrame.from_pandas(pandas, module)
    names = pd.DataFrame({"k": np.arange(KEYS), "z": np.arange(KEYS) * 0.5})
    copied = arrays.module(module).ones(rows)
    bandwidth = 2 * copied.nbytes / seconds(copied.copy, module, repeats)
    print(
        f"{module}, {rows:,} rows, {device.nbytes / 1e6:.0f} MB, copies {bandwidth / 1e9:.1f} GB/s"
    )
    mine = kernels(device, DeviceFrame.from_pandas(names, module), concat)
    theirs = kernels(pandas, names, pd.concat)
    for name, (work, moved) in mine.items():
        took = seconds(work, module, repeats)
        share = moved * device.nbytes / bandwidth / took
        line = f"{name:16} {1e3 * took:8.1f} ms {share:6.0%} of a copy"
        other = f"   pandas {1e3 * seconds(theirs[name][0], 'numpy', 1):8.1f} ms" if peer else ""
        print(f"{line}{other}", flush=True)
    shuffling(device, copied, module, repeats)
    between(module, device.nbytes, repeats)


if __name__ == "__main__":
    main()
