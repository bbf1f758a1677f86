"""What a private Ray spills, and where."""

from __future__ import annotations

from pathlib import Path

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
    assert stats.spilled > 0
    assert during.used > before.used
    assert during.written >= during.used
    assert stats.directories[during.path] > 0
    del kept


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
