"""A pytest plugin: run distributed's own tests with `dask_exo.Client`.

The tests are those of a checkout of distributed, which its wheels leave out. Fixtures and names of
the tests that create a cluster create ours. ``EXO_CONFORMANCE=none`` runs them on a `LocalCluster`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator
from typing import Any

import dask.config
import distributed
import pytest

import dask_exo
from dask_exo.client.cluster import RayCluster
from dask_exo.config import Config
from dask_exo.scheduler import connect

THROUGH_EXO = os.environ.get("EXO_CONFORMANCE", "exo") != "none"
CLIENT: Any = dask_exo.Client if THROUGH_EXO else distributed.Client


@contextlib.contextmanager
def cluster(nworkers: int = 2, nanny: bool = False, **kwargs: Any) -> Iterator[Any]:
    """Start workers with one thread each, as ``distributed.utils_test.cluster`` does."""
    if THROUGH_EXO:
        made: Any = RayCluster(n_workers=nworkers)
        made.sync(made.start_workers)
    else:
        made = distributed.LocalCluster(
            n_workers=nworkers, threads_per_worker=1, dashboard_address=":0"
        )
    try:
        addresses = [worker.address for worker in made.scheduler.workers.values()]
        yield {"address": made.scheduler_address}, [{"address": a} for a in addresses]
    finally:
        with contextlib.suppress(ValueError):
            distributed.default_client().close()
        made.close()


@pytest.fixture
def cleanup() -> None:
    """Check nothing: Ray has threads of its own."""


@pytest.fixture
def cluster_fixture() -> Iterator[Any]:
    """Two workers."""
    with cluster() as made:
        yield made


@pytest.fixture
def client(cluster_fixture: Any, loop: Any) -> Iterator[Any]:
    """A client of these."""
    with CLIENT(cluster_fixture[0]["address"], loop=loop) as made:
        yield made


c = client


def pytest_configure() -> None:
    """Connect to Ray once; every test starts its own workers."""
    if THROUGH_EXO:
        dask.config.set({"exo.num-cpus": 2, "exo.object-store-memory": "400MB"})
        connect(Config.current())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that use a client without being coroutines, and give them ours."""

    items[:] = [
        item for item in items if not inspect.iscoroutinefunction(inspect.unwrap(item.function))
    ]
    for module in {item.module for item in items}:
        if hasattr(module, "Client"):
            module.Client = CLIENT
        if hasattr(module, "cluster"):
            module.cluster = cluster
        for name in ("client", "c", "cluster_fixture", "cleanup"):
            if hasattr(module, name):
                setattr(module, name, globals()[name])
