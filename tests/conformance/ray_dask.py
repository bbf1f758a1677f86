"""A pytest plugin: run Ray's own tests of ``ray.util.dask`` with ``dask_exo.get`` in its place.

The tests come from a checkout of Ray. Their fixtures are in a module that Ray's wheels lack, so
they are here. ``EXO_CONFORMANCE=none`` leaves ``ray.util.dask`` as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import dask
import pytest
import ray
import ray.util.dask
from ray.cluster_utils import Cluster

import dask_exo


@pytest.fixture
def ray_start_regular_shared() -> Iterator[Any]:
    """Start a Ray with one processor."""
    yield ray.init(num_cpus=1)
    ray.shutdown()


@pytest.fixture
def ray_start_cluster() -> Iterator[Cluster]:
    """Make a cluster without nodes."""
    cluster = Cluster()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def enable_dask_on_ray() -> Any:
    """Select dask_exo in place of Ray's scheduler."""
    return dask.config.set(scheduler=dask_exo.get)


def pytest_configure() -> None:
    """Put dask_exo in the place of Ray's scheduler."""
    for name in ("ray.tests", "ray.tests.conftest"):
        sys.modules[name] = ModuleType(name)
    if os.environ.get("EXO_CONFORMANCE", "exo") != "none":
        dask.config.set({"exo.engine": "ray"})
        ray.util.dask.ray_dask_get = dask_exo.get
        ray.util.dask.enable_dask_on_ray = enable_dask_on_ray
