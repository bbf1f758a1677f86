"""What a private Ray spills, and where."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo.cluster.on_ray import RayFutures
from dask_exo.errors import IntegrityError, SerializationError
from dask_exo.report import recording


def test_what_is_spilled_is_seen_in_its_directory(cluster) -> None:
    futures = RayFutures()
    (before,) = futures.disks()
    (node,) = futures.nodes()
    assert 0 < node.disk <= before.room + 10**9  # others write to that disk too
    with recording() as stats:
        random = da.random.default_rng(0)  # da.ones would be a single number until it is read
        kept = random.random((50, 10**6), chunks=(5, 10**6)).persist()  # 300 of 400 MB fit
        assert 0 < kept.sum().compute() < 50 * 10**6
        (during,) = futures.disks()
        deadline = time.monotonic() + 5
        while during.used <= before.used and time.monotonic() < deadline:
            time.sleep(0.5)  # a joined node reports once a second
            (during,) = futures.disks()
    assert stats.spilled > 0
    assert during.used > before.used
    del kept


def collect(i: int) -> None:
    gc.collect()
    time.sleep(0.2)  # so that each worker does so


def drawn(i: int) -> pd.DataFrame:
    return pd.DataFrame({"x": np.random.default_rng(i).random(4_000_000)})


@pytest.mark.parametrize(("offset", "error"), [(700, SerializationError), (10**6, IntegrityError)])
def test_a_task_refuses_a_value_that_has_changed_on_the_disk(cluster, offset, error) -> None:
    """A spilled frame, or the pickle around it, that has other bytes than were written."""
    kept = dd.from_map(drawn, range(24), meta=drawn(0).iloc[:0]).persist()  # 768 of 400 MB
    assert kept.x.sum().compute() > 0
    (disk,) = RayFutures().disks()
    for path in filter(Path.is_file, Path(disk.path).rglob("*")):
        with path.open("r+b") as file:
            file.seek(offset)
            read = file.read(8)
            file.seek(offset)
            file.write(bytes(byte ^ 0xFF for byte in read))
    with pytest.raises(error, match="look at that disk"):
        kept.x.sum().compute()
    assert da.ones(10, chunks=5).sum().compute() == 10
    del kept
    for _ in range(10):  # Ray's error keeps the call's inputs until its worker collects garbage
        if RayFutures().store().used:
            dask.compute(*(dask.delayed(collect)(i) for i in range(4)))


def views(part: int) -> pd.DataFrame:
    rng = np.random.default_rng(part)
    keys = np.where(rng.random(10**6) < 0.95, 7, rng.integers(0, 1000, 10**6))
    return pd.DataFrame({"key": keys, **{f"v{i}": rng.random(10**6) for i in range(6)}})


def test_a_reducer_that_is_larger_than_the_store_is_read(cluster) -> None:
    """1.27 GB of one key, of a store of 400 MB."""
    with recording() as stats:
        rows = dd.from_map(views, range(24)).shuffle("key").map_partitions(len).compute()
    assert rows.sum() == 24 * 10**6
    assert rows.max() > 0.95 * rows.sum() * 0.99
    assert stats.spilled > 0


def test_a_large_reducer_of_a_join_is_divided(cluster) -> None:
    pages = pd.DataFrame({"key": np.arange(1000), "y": np.arange(1000) % 7})
    left = dd.from_map(views, range(8))[["key", "v0"]]
    joined = left.merge(dd.from_pandas(pages, npartitions=8), on="key", broadcast=False)
    with recording() as stats:
        found = joined.groupby("y").v0.agg(["count", "max"]).compute().sort_index()
    expected = pd.concat(map(views, range(8))).merge(pages, on="key").groupby("y").v0
    pd.testing.assert_frame_equal(found, expected.agg(["count", "max"]), check_dtype=False)
    shuffles = stats.figures().shuffles
    assert [shuffle.divided for shuffle in shuffles] == [1, 1]
    assert max(shuffles, key=lambda shuffle: shuffle.nbytes).skew < 2
