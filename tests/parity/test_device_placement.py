"""Tasks on partitions of a device run where there is a GPU, and nothing else does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo import Scheduler
from dask_exo.cluster.futures import Node
from dask_exo.errors import ConfigError, DeviceError
from dask_exo.partitions.gpu_frames import DeviceFrame, DeviceSeries
from dask_exo.report import recording
from dask_exo.testing import InlineFutures

GPU = {"num_cpus": 0.0, "num_gpus": 1.0}
pytestmark = pytest.mark.filterwarnings("ignore:Merging dataframes with merge column data")


class Places(InlineFutures):
    """Says where a call runs, while it does: None is a plain task."""

    def __init__(self, *nodes: Node) -> None:
        super().__init__(nodes)
        self.here: Any = None
        self.lent: list[Any] = []
        self.started: list[Any] = []
        self.stopped = 0

    def actor(self, options: Any, cls=None, *args) -> Any:
        self.started.append(dict(options))
        return Kept(self, dict(options))


class Kept:
    """A worker."""

    def __init__(self, futures: Places, needs: Any) -> None:
        self._futures, self._needs = futures, needs

    def submit(self, fn: Any, *args: Any) -> Any:
        return self._in(self._futures.submit, fn, *args)

    def split(self, count: int, fn: Any, *args: Any) -> Any:
        return self._in(self._futures.split, count, fn, *args)

    def _in(self, call: Any, *args: Any) -> Any:
        self._futures.here = self._needs
        self._futures.lent.append(self._needs)
        try:
            return call(*args)
        finally:
            self._futures.here = None

    def stop(self) -> None:
        self._futures.stopped += 1

    retire = stop


def cluster(gpus: float = 1, count: int = 1) -> Places:
    nodes = [
        Node(f"n{i}", 2, 10**9, None, {"CPU": 2.0, **({"GPU": gpus} if gpus else {})})
        for i in range(count)
    ]
    return Places(*nodes)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    """A cluster with a GPU; whatever makes or reads a partition of a device elsewhere fails."""
    made = cluster()

    def checked(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            rows = len(self)
            assert made.here == GPU or rows <= 4 or not made.running  # Dask tries few rows
            return run(self, *args, **options)

        return call

    made.running = False  # type: ignore[attr-defined]
    for name in ("take_rows", "to_pandas", "groupby", "merge", "assign", "__getitem__"):
        monkeypatch.setattr(DeviceFrame, name, checked(getattr(DeviceFrame, name)))
    for name in ("sum", "to_pandas", "drop_duplicates", "take_rows"):
        monkeypatch.setattr(DeviceSeries, name, checked(getattr(DeviceSeries, name)))
    return made


def rows(n: int = 200) -> pd.DataFrame:
    random = np.random.default_rng(3)
    return pd.DataFrame({"k": random.integers(0, 9, n), "f": random.random(n).round(3)})


def device(frame: pd.DataFrame, parts: int = 4) -> dd.DataFrame:
    with dask.config.set({"exo.gpu.simulate": True}):
        return dd.from_pandas(frame, npartitions=parts, sort=False).exo.to_gpu()


def compute(futures: Any, collection: Any, **settings: Any) -> Any:
    keys = {"dataframe.shuffle.method": "tasks", **settings}
    with dask.config.set({"scheduler": Scheduler(futures), **keys}):
        futures.running = True
        try:
            return collection.compute()
        finally:
            futures.running = False


QUERIES: dict[str, tuple[Callable[[Any], Any], Callable[[pd.DataFrame], Any]]] = {
    "chain": (lambda d: d.assign(z=d.f * 2).exo.to_pandas(), lambda p: p.assign(z=p.f * 2)),
    "one value": (lambda d: d.f.sum(), lambda p: p.f.sum()),
    "tree": (lambda d: d.k.nunique(split_every=2), lambda p: p.k.nunique()),
    "groups": (
        lambda d: d.groupby("k").f.sum(split_out=3).exo.to_pandas(),
        lambda p: p.groupby("k").f.sum(),
    ),
    "join": (
        lambda d: d.merge(d[["k"]].drop_duplicates(), on="k", broadcast=False).exo.to_pandas(),
        lambda p: p,
    ),
    "sort": (
        lambda d: d.exo.sort_values(["k", "f"]).exo.to_pandas(),
        lambda p: p.sort_values(["k", "f"], kind="stable"),
    ),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("algorithm", ["simple", "push"])
def test_all_that_touches_a_device_runs_on_workers_with_a_gpu(
    places: Places, query: str, algorithm: str
) -> None:
    there, here = QUERIES[query]
    found = compute(places, there(device(rows())), **{"exo.shuffle.algorithm": algorithm})
    expected = here(rows())
    if isinstance(expected, (pd.DataFrame, pd.Series)):
        by = ["k", "f"] if isinstance(expected, pd.DataFrame) else None
        found = found.sort_values(by) if by else found.sort_index()
        expected = expected.sort_values(by) if by else expected.sort_index()
        np.testing.assert_allclose(found.to_numpy(), expected.to_numpy())
    else:
        assert found == pytest.approx(expected)
    assert places.lent
    assert places.started == [GPU]  # one at a time, kept from the beginning to the end
    assert places.stopped == 1


SEEN: list[Any] = []
CLUSTERS: dict[int, Places] = {}


def noted(part: pd.DataFrame, cluster: int) -> pd.DataFrame:
    """Notes where it is called."""
    SEEN.append(CLUSTERS[cluster].here)
    return part


def test_what_reads_on_the_host_and_what_comes_after_needs_none(places: Places) -> None:
    SEEN.clear()
    CLUSTERS[id(places)] = places
    ddf = dd.from_pandas(rows(), npartitions=3).map_partitions(noted, id(places), meta=rows(0))
    with dask.config.set({"exo.gpu.simulate": True}):
        back = ddf.exo.to_gpu().assign(g=1.0).exo.to_pandas()
    back = back.map_partitions(noted, id(places), meta=back._meta)
    assert len(compute(places, back)) == 200
    assert SEEN == [None] * 6
    assert places.lent == [GPU] * len(places.lent)


def test_fused_by_dask_or_persisted_it_is_the_same(places: Places) -> None:
    there = device(rows())
    fused = there.assign(z=there.f * 2).exo.to_pandas().optimize()
    assert len(compute(places, fused)) == 200
    before = len(places.lent)
    assert before
    with dask.config.set(scheduler=Scheduler(places)):
        kept = there.persist()
        for thread in threading.enumerate():  # its tasks change the settings of this process
            if thread.name == "dask_exo-run":
                thread.join(timeout=30)
        dask.compute(kept.f.sum())
        before = len(places.lent)
    assert compute(places, kept.f.sum()) == pytest.approx(rows().f.sum())
    assert len(places.lent) > before
    SEEN.clear()
    cluster = id(places)
    CLUSTERS[cluster] = places
    counted = kept.map_partitions(lambda part: noted(part, cluster) is None, meta=("x", bool))
    assert not any(compute(places, counted))
    assert [GPU] * there.npartitions == SEEN


def test_how_much_of_a_gpu_is_said_by_a_key_or_by_annotations(places: Places) -> None:
    places.running = False  # type: ignore[attr-defined]
    total = device(rows()).f.sum()
    with dask.config.set({"scheduler": Scheduler(places), "exo.gpu.per-task": 0.25}):
        total.compute()
    with dask.config.set(scheduler=Scheduler(places)), dask.annotate(num_gpus=0.5, num_cpus=1):
        total.compute()
    quarters = [needs for needs in places.started if needs["num_gpus"] == 0.25]
    assert 1 <= len(quarters) <= 4
    assert places.started[len(quarters) :][0] == {"num_cpus": 1.0, "num_gpus": 0.5}
    with dask.config.set({"exo.gpu.per-task": 2}), pytest.raises(ConfigError, match="per-task"):
        total.compute(scheduler=Scheduler(places))


def test_what_a_function_asks_for_it_gets_beside_the_gpu(places: Places) -> None:
    places.running = False  # type: ignore[attr-defined]

    @dask_exo.options(num_cpus=2)
    def twice(part: Any) -> Any:
        return part.assign(f=part.f * 2)

    there = device(rows())
    found = there.map_partitions(twice, meta=there._meta).f.sum()
    with dask.config.set(scheduler=Scheduler(places)):
        assert found.compute() == pytest.approx(2 * rows().f.sum())
    assert {"num_cpus": 2.0, "num_gpus": 1.0} in places.started


def test_without_a_gpu_a_job_is_refused_before_anything_runs() -> None:
    futures = cluster(gpus=0, count=2)
    total = device(rows()).f.sum()
    message = (
        r"need 1 GPU each, and the 2 nodes have 0 GPUs.*exo\.num-gpus.*per-task.*"
        r"to_backend\('pandas'\).*exo\.gpu\.simulate"
    )
    with pytest.raises(DeviceError, match=message):
        compute(futures, total)
    assert not futures.started
    with recording() as record, pytest.raises(DeviceError):
        compute(futures, device(rows()).shuffle("k").exo.to_pandas())
    assert not record.shuffles


def test_simulated_gpus_need_no_slots() -> None:
    futures = cluster(gpus=0)
    total = device(rows()).shuffle("k").f.sum()
    assert compute(futures, total, **{"exo.gpu.simulate": True}) == pytest.approx(rows().f.sum())
    assert not futures.started


def test_plain_collections_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    monkeypatch.setattr("dask_exo.planning.placement._on_gpu", lambda *a: looked.append(a))
    ddf = dd.from_pandas(rows(), npartitions=3)
    assert compute(cluster(), ddf.groupby("k").f.sum().sum()) == pytest.approx(rows().f.sum())
    assert not looked
