"""What a private Ray spills, and where."""

from __future__ import annotations

import dask.array as da

from dask_exo.cluster.on_ray import RayFutures
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
