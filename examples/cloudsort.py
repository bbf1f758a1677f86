"""CloudSort on the shuffle library: sample, map, merge in rounds, reduce; checked as valsort does.

    python examples/cloudsort.py --size 2GB --skew 3 --output /shared/sorted

Records have 100 bytes, of which 10 are the key. Without ``--output`` the sorted files go to a
temporary directory. The structure is that of Exoshuffle-CloudSort (thesis, chapter 4): bounds from
20 records of each input partition, maps that sort and cut, merges of a bounded number of maps at a
time on the nodes of the reducers (`push`), reducers that merge what was merged and write it a chunk
at a time. The 100 TB of the thesis, with its 50,000 maps and 25,000 reducers, run simulated:
``python -m asv_bench.benchmarks.control_plane``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import dask
import numpy as np
import ray
from dask.utils import format_bytes, parse_bytes

import dask_exo
from dask_exo import shuffle

RECORD, KEY = 100, 10  # bytes
SAMPLES = 20  # of each input partition
CHUNKS = 256 * 2**20  # bytes of its input that a reducer holds at a time
PRICE = 1.373  # dollars an hour of an i4i.4xlarge, on which the thesis ran


def records(part: int, count: int, skew: float) -> np.ndarray:
    """(count, 100) bytes of one input partition; skew crowds the low keys."""
    rng = np.random.default_rng([part, count])
    made = rng.integers(0, 256, (count, RECORD), dtype=np.uint8)
    if skew:
        high = (rng.random(count) ** (1 + skew) * 2.0**64).astype(">u8")
        made[:, :8] = high[:, None].view(np.uint8)
    return made


def keys(rows: np.ndarray) -> np.ndarray:
    """(n,) the first 8 bytes of the keys, as numbers."""
    return np.ascontiguousarray(rows[:, :8]).view(">u8").ravel().astype(np.uint64)


def order(rows: np.ndarray) -> np.ndarray:
    """Positions of rows in the order of all 10 bytes; fast where the rows are sorted runs."""
    high = keys(rows)
    found = np.argsort(high, kind="stable")
    ascending = high[found]
    if (ascending[1:] == ascending[:-1]).any():
        low = np.ascontiguousarray(rows[:, 8:KEY]).view(">u2").ravel()
        found = np.lexsort((low, high))
    return found


def ordered(rows: np.ndarray) -> np.ndarray:
    """Sort by all 10 bytes."""
    return rows[order(rows)]


def checksum(rows: np.ndarray) -> int:
    """Sum over all records of a hash of each, modulo 2**64."""
    words = np.ascontiguousarray(rows).view(np.uint32).astype(np.uint64)
    odd = np.arange(1, 2 * words.shape[1], 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (words * odd).sum(axis=1, dtype=np.uint64)
    return int(((mixed ^ (mixed >> np.uint64(29))) * odd[3]).sum(dtype=np.uint64))


def sample(part: int, count: int, skew: float) -> np.ndarray:
    """Keys of some records of an input partition."""
    rows = records(part, count, skew)
    chosen = np.random.default_rng(part).integers(0, count, SAMPLES)
    return keys(rows[chosen])


def cut(part: int, count: int, skew: float, bounds: np.ndarray) -> list[np.ndarray]:
    """Sort a partition and cut it at the bounds."""
    rows = ordered(records(part, count, skew))
    return np.split(rows, np.searchsorted(keys(rows), bounds))


def merge(*runs: np.ndarray) -> np.ndarray:
    """One sorted run of several."""
    return ordered(np.concatenate(runs))


def write(folder: Path, *runs: np.ndarray) -> tuple[int, int, bytes, bytes]:
    """Merge and write one output, a chunk at a time; what valsort wants to know of it."""
    count, found = 0, 0
    edges: list[bytes] = []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        for rows in shuffle.merge_runs(runs, order, CHUNKS):
            file.write(np.ascontiguousarray(rows).data)
            count, found = count + len(rows), found + checksum(rows)
            edges += [rows[i, :KEY].tobytes() for i in (0, -1)]
    first, last = (edges[0], edges[-1]) if edges else (b"", b"")
    Path(file.name).rename(folder / f"{first.hex() or 'empty'}.dat")
    return count, found % 2**64, first, last


def main() -> None:
    """Sort, check, and say what it would cost."""
    parser = argparse.ArgumentParser(description="CloudSort on the shuffle library")
    parser.add_argument("--size", type=parse_bytes, default=100_000_000)
    parser.add_argument("--parts", type=int, default=16, help="M, input partitions")
    parser.add_argument("--reducers", type=int, default=12, help="R, output partitions")
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--no-sampling", action="store_true", help="equal ranges of keys")
    parser.add_argument("--algorithm", default="push", choices=["auto", *shuffle.names()])
    parser.add_argument("--address", help="of a Ray cluster; else one is started here")
    parser.add_argument("--output", type=Path, help="where all nodes can write")
    parser.add_argument("--price", type=float, default=PRICE, help="dollars per node and hour")
    asked = parser.parse_args()
    count = asked.size // RECORD // asked.parts
    made = (count, asked.skew)

    with dask_exo.enable(asked.address), tempfile.TemporaryDirectory() as scratch:
        folder = asked.output or Path(scratch)
        started = time.perf_counter()
        share = np.arange(1, asked.reducers) / asked.reducers
        if asked.no_sampling:
            bounds = (share * 2.0**64).astype(np.uint64)
        else:
            points = dask.compute(*(dask.delayed(sample)(i, *made) for i in range(asked.parts)))
            ascending = np.sort(np.concatenate(points))
            bounds = ascending[(share * len(ascending)).astype(int)]
        program = shuffle.Program(
            asked.reducers,
            map=lambda part: cut(part, *made, bounds),
            reduce=partial(write, folder),
            combine=merge,
        )
        outputs = ray.get(shuffle.run(range(asked.parts), program, asked.algorithm))
        seconds = time.perf_counter() - started

        sums = [dask.delayed(lambda i: checksum(records(i, *made)))(i) for i in range(asked.parts)]
        rows, found = (sum(part[i] for part in outputs) for i in (0, 1))
        assert rows == count * asked.parts, "records were lost"
        assert found % 2**64 == sum(dask.compute(*sums)) % 2**64, "records were changed"
        edges = [edge for n, _, *both in outputs if n for edge in both]
        assert edges == sorted(edges), "outputs are not in order"
        nodes = len(ray.nodes())

    nbytes = rows * RECORD
    largest = max(part[0] for part in outputs) * asked.reducers / rows
    terabyte = nodes * asked.price * seconds / 3600 * 1e12 / nbytes
    print(f"sorted and checked {format_bytes(nbytes)} in {seconds:.1f} s on {nodes} nodes")
    print(f"largest output: {largest:.2f} times the mean")
    print(f"at ${asked.price} per node and hour: ${terabyte:.2f} per TB of compute")


if __name__ == "__main__":
    main()
