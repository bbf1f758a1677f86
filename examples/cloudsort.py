"""CloudSort on the shuffle library: from an object store to an object store, checked and priced.

    python examples/cloudsort.py --size 2GB --skew 3 --store s3://bucket/sort

Records have 100 bytes, of which 10 are the key. Without ``--store`` all data are in a temporary
directory. The steps are those of Exoshuffle-CloudSort (thesis, chapter 4): *generate* writes the
input; bounds come from 20 records of each input partition; maps download, sort and cut; merges of a
bounded number of maps run on the nodes of the reducers, and maps wait for them (`push`); reducers
merge a chunk at a time and upload; *validate* reads every output back, as valsort does.

Downloads are ranged reads of 16 MiB, and uploads parts of 100 MB, as in the thesis. The 100 TB of
the thesis, with its 50,000 maps and 25,000 reducers, run simulated:
``python -m asv_bench.benchmarks.control_plane``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import dask
import numpy as np
import ray
from dask.utils import format_bytes, parse_bytes
from fsspec.core import url_to_fs

import dask_exo
from dask_exo import shuffle

RECORD, KEY = 100, 10  # bytes
SAMPLES = 20  # of each input partition
CHUNKS = 256 * 2**20  # bytes of its input that a reducer holds at a time
NODE = 1.373 + 0.0044  # dollars an hour of an i4i.4xlarge and its volume
HEAD = 0.504 + 0.0044  # of the head node
GET, PUT = 0.0004 / 1000, 0.005 / 1000  # dollars a request
STORED = 0.0225 / 730 / 1e9  # dollars an hour of a byte


def records(part: int, count: int, skew: float) -> np.ndarray:
    """(count, 100) bytes of one input partition; skew crowds the low keys."""
    rng = np.random.default_rng([part, count])
    made = rng.integers(0, 256, (count, RECORD), dtype=np.uint8)
    if skew:
        high = (rng.random(count) ** (1 + skew) * 2.0**64).astype(">u8")
        made[:, :8] = high[:, None].view(np.uint8)
    return made


def keys(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n,) the first 8 bytes of the keys and (n,) the other two, as numbers."""
    high = np.ascontiguousarray(rows[:, :8]).view(">u8").ravel().astype(np.uint64)
    return high, np.ascontiguousarray(rows[:, 8:KEY]).view(">u2").ravel()


def order(rows: np.ndarray) -> np.ndarray:
    """Positions of rows in the order of all 10 bytes; fast where the rows are sorted runs."""
    high, low = keys(rows)
    found = np.argsort(high, kind="stable")
    ascending = high[found]
    if (ascending[1:] == ascending[:-1]).any():
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


class Summary(NamedTuple):
    """Records of an object: number, checksum, equal neighbours, least and largest key."""

    rows: int = 0
    total: int = 0
    duplicates: int = 0
    first: bytes = b""
    last: bytes = b""

    def then(self, other: Summary) -> Summary:
        """Return the summary of both objects; raise if their records are not in order."""
        if not self.rows or not other.rows:
            return other if other.rows else self
        if self.last > other.first:
            raise ValueError(f"not sorted: {other.first.hex()} comes after {self.last.hex()}")
        rows, total = self.rows + other.rows, (self.total + other.total) % 2**64
        duplicates = self.duplicates + other.duplicates + (self.last == other.first)
        return Summary(rows, total, duplicates, self.first, other.last)


def summary(rows: np.ndarray) -> Summary:
    """Summarize records; raise if they are not in order."""
    if not len(rows):
        return Summary()
    high, low = keys(rows)
    equal = high[1:] == high[:-1]
    falls = (high[1:] < high[:-1]) | (equal & (low[1:] < low[:-1]))
    if falls.any():
        raise ValueError(f"not sorted: record {int(falls.argmax()) + 1} of a chunk")
    duplicates = int((equal & (low[1:] == low[:-1])).sum())
    first, last = (rows[i, :KEY].tobytes() for i in (0, -1))
    return Summary(len(rows), checksum(rows) % 2**64, duplicates, first, last)


class Store(NamedTuple):
    """Objects with records, in a directory or bucket; bytes of a download and of an upload."""

    url: str
    read_bytes: int = 16 * 2**20 // RECORD * RECORD
    part_bytes: int = 10**8

    def chunks(self, name: str) -> Iterator[np.ndarray]:
        """Read an object by ranges."""
        fs, path = url_to_fs(f"{self.url}/{name}")
        size = fs.info(path)["size"]
        for start in range(0, size, self.read_bytes):
            data = fs.cat_file(path, start=start, end=min(start + self.read_bytes, size))
            yield np.frombuffer(data, np.uint8).reshape(-1, RECORD)

    def read(self, name: str) -> np.ndarray:
        """Read an object."""
        chunks = [*self.chunks(name), np.empty((0, RECORD), np.uint8)]
        return np.concatenate(chunks)

    def write(self, name: str, pieces: Iterator[np.ndarray]) -> int:
        """Write an object in parts; return the number of its records."""
        fs, path = url_to_fs(f"{self.url}/{name}")
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        count = 0
        with fs.open(path, "wb", block_size=self.part_bytes) as file:
            for rows in pieces:
                data = memoryview(np.ascontiguousarray(rows)).cast("B")
                for start in range(0, len(data), self.part_bytes):
                    file.write(data[start : start + self.part_bytes])
                count += len(rows)
        return count


def generate(store: Store, part: int, count: int, skew: float) -> int:
    """Write an input partition; return its checksum."""
    rows = records(part, count, skew)
    store.write(f"input/{part:05}", iter([rows]))
    return checksum(rows)


def sample(store: Store, part: int, count: int) -> np.ndarray:
    """Keys of some records of an input partition, from one range of it."""
    fs, path = url_to_fs(f"{store.url}/input/{part:05}")
    start = int(np.random.default_rng(part).integers(0, max(count - SAMPLES, 1)))
    data = fs.cat_file(path, start=start * RECORD, end=(start + SAMPLES) * RECORD)
    return keys(np.frombuffer(data, np.uint8).reshape(-1, RECORD))[0]


def cut(store: Store, bounds: np.ndarray, part: int) -> list[np.ndarray]:
    """Download and sort a partition, and cut it at the bounds."""
    rows = ordered(store.read(f"input/{part:05}"))
    return np.split(rows, np.searchsorted(keys(rows)[0], bounds))


def merge(*runs: np.ndarray) -> np.ndarray:
    """One sorted run of several."""
    return ordered(np.concatenate(runs))


def upload(store: Store, *runs: np.ndarray) -> tuple[str, int]:
    """Merge and write one output, a chunk at a time; return its name and number of records."""
    first = min((run[0, :KEY].tobytes() for run in runs if len(run)), default=b"empty")
    name = f"output/{first.hex()}"
    return name, store.write(name, shuffle.merge_runs(runs, order, CHUNKS))


def validate(store: Store, name: str) -> Summary:
    """Read an output back, and summarize it."""
    found = Summary()
    for rows in store.chunks(name):
        found = found.then(summary(rows))
    return found


def cost(
    store: Store, inputs: Sequence[int], sizes: Sequence[int], seconds: float, nodes: int
) -> str:
    """Return a table of what a sort costs, by bytes of its objects (thesis, table 4.2)."""
    hours, nbytes = seconds / 3600, sum(sizes)
    gets = sum(-(-size // store.read_bytes) for size in inputs)
    puts = sum(-(-size // store.part_bytes) for size in sizes)
    lines = {
        f"computing, {nodes} nodes and a head": hours * (nodes * NODE + HEAD),
        "storing input and output": 2 * nbytes * STORED * hours,
        f"{gets} GET": gets * GET,
        f"{puts} PUT": puts * PUT,
    }
    total = sum(lines.values())
    per = "\n".join(f"  {name:36} ${dollars:.6f}" for name, dollars in lines.items())
    return f"{per}\n  {'all':36} ${total:.6f}, ${total * 1e12 / nbytes:.2f} per TB"


def parsed() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description="CloudSort on the shuffle library")
    parser.add_argument("--size", type=parse_bytes, default=100_000_000)
    parser.add_argument("--parts", type=int, default=16, help="M, input partitions")
    parser.add_argument("--reducers", type=int, default=12, help="R, output partitions")
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--no-sampling", action="store_true", help="equal ranges of keys")
    parser.add_argument("--algorithm", default="push", choices=["auto", *shuffle.names()])
    parser.add_argument("--address", help="of a Ray cluster; else one is started here")
    parser.add_argument("--store", help="a URL or directory where all nodes read and write")
    parser.add_argument("--upload", type=parse_bytes, default="100MB", help="of a part")
    return parser.parse_args()


def sort(store: Store, asked: argparse.Namespace, count: int) -> list[tuple[str, int]]:
    """Sort the input; return the names of the outputs in order, and their records."""
    share = np.arange(1, asked.reducers) / asked.reducers
    bounds = (share * 2.0**64).astype(np.uint64)
    if not asked.no_sampling:
        draw = dask.delayed(sample)
        points = dask.compute(*(draw(store, i, count) for i in range(asked.parts)))
        ascending = np.sort(np.concatenate(points))
        bounds = ascending[(share * len(ascending)).astype(int)]
    program = shuffle.Program(
        asked.reducers,
        map=partial(cut, store, bounds),
        reduce=partial(upload, store),
        combine=merge,
    )
    return ray.get(shuffle.run(range(asked.parts), program, asked.algorithm))


def main() -> None:
    """Generate, sort, check, and say what it would cost."""
    asked = parsed()
    count = asked.size // RECORD // asked.parts
    with dask_exo.enable(asked.address), tempfile.TemporaryDirectory() as scratch:
        store, make = Store(asked.store or scratch, part_bytes=asked.upload), dask.delayed(generate)
        sums = dask.compute(*(make(store, i, count, asked.skew) for i in range(asked.parts)))
        started = time.perf_counter()
        outputs = [(name, rows) for name, rows in sort(store, asked, count) if rows]
        seconds = time.perf_counter() - started

        check, found = dask.delayed(validate), Summary()
        for each in dask.compute(*(check(store, name) for name, _ in outputs)):
            found = found.then(each)
        if (found.rows, found.total) != (count * asked.parts, sum(sums) % 2**64):
            raise ValueError("records were lost or changed")
        nodes = len(ray.nodes())

    sizes = [rows * RECORD for _, rows in outputs]
    print(f"sorted {format_bytes(sum(sizes))} in {seconds:.1f} s on {nodes} nodes")
    print(f"valsort: {found.rows} records, checksum {found.total:x}, {found.duplicates} duplicate "
          f"keys, all in order")  # fmt: skip
    print(f"largest output: {max(sizes) * asked.reducers / sum(sizes):.2f} times the mean")
    print(cost(store, [count * RECORD] * asked.parts, sizes, seconds, nodes))


if __name__ == "__main__":
    main()
