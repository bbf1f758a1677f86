"""What all tests share."""

import contextlib
import copy
import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports Ray or starts it.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import hypothesis
import psutil
import pytest

hypothesis.settings.register_profile("dev", max_examples=50, deadline=None)
hypothesis.settings.register_profile(
    "ci", max_examples=80, deadline=None, derandomize=True, print_blob=True
)
# on CI, Hypothesis draws the same examples whatever the seed, unless told otherwise
hypothesis.settings.register_profile(
    "long", max_examples=1000, deadline=None, print_blob=True, derandomize=False
)
# for tests/mutations: whether there is an example counts, and not how small it could be
hypothesis.settings.register_profile(
    "find", max_examples=50, deadline=None, database=None, phases=[hypothesis.Phase.generate]
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where GPU frames are: on numpy, on a strict stand-in for cupy, or on a GPU."""
    parser.addoption("--device", choices=["numpy", "strict", "cupy"], default="numpy")


def pytest_configure(config: pytest.Config) -> None:
    """A process that dies is not started anew: xdist would wait for it for ever at the end."""
    os.environ["DASK_EXO_TEST_DEVICE"] = device = config.getoption("--device")
    if device == "strict":
        from dask_exo.testing import strict_cupy

        strict_cupy.install()
    if getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = "0"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes share the tests, one of them has all that start Ray."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return (
                "ray"
                if nodeid.startswith(("tests/cluster/", "tests/faults/"))
                else nodeid.split("::", maxsplit=1)[0]
            )

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """Let a test that leaves settings behind fail, and not one that runs after it."""
    import dask.config

    import dask_exo  # noqa: F401  its defaults are there before

    before = copy.deepcopy(dask.config.get("exo")), dask.config.get("scheduler", None)
    yield
    after = dask.config.get("exo"), dask.config.get("scheduler", None)
    if after != before:
        dask.config.set({"exo": before[0], "scheduler": before[1]})
    assert after == before


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A private Ray with two slots and a small store; Dask's settings stay as they are."""
    import dask

    import dask_exo
    from dask_exo.config import Config
    from dask_exo.scheduler import connect

    dask_exo.disable()  # a test before may have moved to a Ray of another size
    address = os.environ.get("DASK_EXO_TEST_ADDRESS")  # of such a Ray that somebody else started
    private = {"exo.num-cpus": 2, "exo.object-store-memory": "300MB"}
    with dask.config.set({"exo.address": address} if address else private):
        connect(Config.current())
        yield
    dask_exo.disable()


@pytest.fixture
def cluster(ray_cluster: None) -> Iterator[None]:
    """Dask on the shared Ray; afterwards its store is empty, and no thread of ours is left."""
    import dask_exo
    from dask_exo.cluster.on_ray import RayFutures

    futures = RayFutures()
    threads = set(threading.enumerate())
    with dask_exo.enable():
        yield
    deadline = time.monotonic() + 20
    while (used := futures.store().used) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.2)
    assert used == 0, f"{used} bytes are still in the object store"
    new = [t for t in threading.enumerate() if t not in threads and not t.daemon]
    pools = "ThreadPoolExecutor", "dask_exo-local"  # Dask keeps its own, as the local engine does
    left = {t for t in new if not t.name.startswith(pools)}
    assert not left, f"threads left behind: {left}"


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """A folder with a short name, as the sockets of Ray need; processes in it are killed."""
    with tempfile.TemporaryDirectory(prefix="exo-", ignore_cleanup_errors=True) as name:
        yield Path(name)
        kill_all(name)


def kill_all(folder: str) -> None:
    """Kill all processes whose command names a folder, and their children."""
    found = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(folder in word for word in process.info["cmdline"] or [])
    ]
    for process in [child for p in found for child in p.children(recursive=True)] + found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture
def client(cluster: None) -> Iterator[Any]:
    """A client of the shared Ray."""
    import dask_exo

    with dask_exo.Client() as client:
        yield client


@pytest.fixture(params=[1, 3], ids=["one-node", "three-nodes"])
def exo(request: pytest.FixtureRequest) -> Any:
    """A scheduler that runs all tasks in this process, on one and on three nodes."""
    from tests._data import inline

    return inline(request.param)
