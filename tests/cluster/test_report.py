"""Reports of computations on Ray: who ran what, what was spilled, and what Prometheus is told."""

from __future__ import annotations

import json
import re
import time
import urllib.request

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import ray

import dask_exo
from dask_exo import events, pipeline
from dask_exo.cluster.on_ray import services

pytestmark = pytest.mark.cluster


def shuffled() -> dd.DataFrame:
    source = pd.DataFrame({"k": np.arange(40_000) % 997, "v": np.arange(40_000) * 1.0})
    return dd.from_pandas(source, npartitions=8).shuffle("k", npartitions=6)


def test_it_knows_workers_and_their_times(cluster, tmp_path) -> None:
    with dask_exo.performance_report(tmp_path / "report.html") as report:
        result = shuffled().compute()
    record, figures = report._record, report.figures
    assert len(result) == 40_000
    assert figures.shuffles[0].rows == 40_000
    assert figures.nodes == 1
    assert figures.slots == 2
    assert 1 <= len({span.process for span in record.spans.all}) <= 3
    assert all(span.node for span in record.spans.all)
    # what workers say of their clock lies within what the driver has seen of the whole
    assert min(span.start for span in record.spans.all) > record.started - 1
    assert max(span.stop for span in record.spans.all) < record.started + figures.seconds + 1
    assert figures.peak_rss > 10**7
    ((_, matrix),) = record.matrices.items()
    assert matrix.totals.sum() == pytest.approx(figures.shuffled, rel=0.01)
    assert "Task stream" in (tmp_path / "report.html").read_text()


def test_a_pipeline_has_a_report(cluster) -> None:
    source = dd.from_pandas(pd.DataFrame({"v": np.arange(4_000) * 1.0}), npartitions=4)
    doubled = pipeline.of(source).map_batches(lambda batch: batch.assign(v=batch.v * 2))
    rows = sum(len(batch) for batch in doubled.iter_batches(batch_size=500))
    assert rows == 4_000
    stages = dask_exo.last_report().figures.stages
    assert sum(stage.outputs for stage in stages) > 0


def wait(part: pd.DataFrame) -> pd.DataFrame:
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
    return part


def fail(part: pd.DataFrame) -> pd.DataFrame:
    print("rows", len(part))
    raise KeyError("odd")


def test_the_profile_and_the_load_come_from_workers(cluster, tmp_path) -> None:
    source = dd.from_pandas(pd.DataFrame({"v": np.arange(40.0)}), npartitions=4)
    waited = pipeline.of(source).map_batches(wait)
    with dask_exo.performance_report(tmp_path / "report.html") as report:
        source.map_partitions(wait).shuffle("v").map_partitions(wait).compute()
        assert sum(len(batch) for batch in waited.iter_batches(batch_size=5)) == 40
    stacks = report._record.stacks
    found = {g for g, counts in stacks.items() if any("wait " in s[-1] for s in counts)}
    assert len(found) == 3, {group: list(counts)[:3] for group, counts in stacks.items()}
    assert list(report._record.loads.all) == [ray.nodes()[0]["NodeID"]]


def test_a_failed_task_brings_what_it_printed(cluster) -> None:
    source = dd.from_pandas(pd.DataFrame({"v": np.arange(40.0)}), npartitions=1)
    with pytest.raises(KeyError, match="odd"):
        source.map_partitions(fail, meta=source._meta).compute()
    (failure,) = dask_exo.last_report().figures.failures
    assert "in fail" in failure.traceback
    assert "rows 40" in failure.printed.splitlines()
    with pytest.raises(KeyError, match="odd"):
        list(pipeline.of(source).map_batches(fail).iter_batches())
    (failure,) = dask_exo.last_report().figures.failures
    assert "rows 40" in failure.printed.splitlines()


def test_the_live_page_of_enable(cluster) -> None:
    with dask_exo.enable() as inner:
        assert inner.live is not None
        assert inner.live in repr(inner)
        with urllib.request.urlopen(inner.live.replace("/?", "/now?"), timeout=10) as answer:
            assert json.load(answer)["footer"]


def test_counters_are_those_of_the_report(cluster, monkeypatch) -> None:
    counted: dict[str, float] = {}

    class Counter:
        """Stands for that of Ray, of which nothing can be read back."""

        def __init__(self, name, description="", tag_keys=()):
            assert re.fullmatch(r"[a-z_]+", name)
            self.name, self.keys = name, set(tag_keys)

        def inc(self, value=1.0, tags=None):
            assert set(tags or {}) == self.keys
            counted[self.name] = counted.get(self.name, 0) + value

    services._counter.cache_clear()
    monkeypatch.setattr(services.metrics, "Counter", Counter)
    with dask.config.set({"exo.report.prometheus": True}):
        shuffled().compute()
    figures = dask_exo.last_report().figures
    assert counted["dask_exo_tasks_total"] == figures.tasks
    assert counted["dask_exo_shuffled_bytes_total"] == figures.shuffled
    assert counted["dask_exo_runs_total"] == 1
    services.export(on=True)
    for event in (
        events.Recovered("late map run a second time", 2),
        events.CallsRepeated({"read": 3, "merge": 4}),
        events.GaveWay("read", 2),
    ):
        events.emit(event)
    assert counted["dask_exo_recovered_total"] == 2 + 3 + 4 + 1
    services._counter.cache_clear()
    shuffled().compute()  # without the key nothing is counted
    assert counted["dask_exo_runs_total"] == 1


def test_ray_takes_the_counters_and_exports_them(cluster) -> None:
    """Ray's own class takes the names, tags and amounts; its agent shows them, if it has one."""
    services._counter.cache_clear()
    with dask.config.set({"exo.report.prometheus": True}):
        shuffled().compute()
    assert services._counter.cache_info().currsize >= 4
    services.export(on=False)
    (node, *_) = ray.nodes()
    port = int(node["MetricsExportPort"] or -1)
    if port <= 0:  # Ray was installed without its metrics: ray[default]
        return
    address, end = f"http://{node['NodeManagerAddress']}:{port}/metrics", time.monotonic() + 30
    wanted = "ray_dask_exo_runs_total"
    while (seen := scraped(address)).get(wanted, 0) < 1 and time.monotonic() < end:
        time.sleep(1)
    assert seen[wanted] >= 1
    assert seen["ray_dask_exo_shuffled_bytes_total"] > 0


def scraped(address: str) -> dict[str, float]:
    """Sums of counters, as Prometheus gets them."""
    with urllib.request.urlopen(address, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if not line.startswith("#"):
            name, value = line.split("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
            found[name] = found.get(name, 0) + value
    return found
