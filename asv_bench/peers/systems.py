"""The systems: how each is started on two cores, and how it runs a job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from asv_bench.peers.jobs import Job

Run = Callable[[Job, Path, Path], None]
"""Run a job on a folder of data and write into another folder."""

Start = Callable[[int, int], contextlib.AbstractContextManager[Run]]
"""Start a system on a number of cores and bytes of memory."""


class System(NamedTuple):
    """A way to run jobs.

    Attributes
    ----------
    start : Start
    usual : bool
        Whether it runs unless it is asked for.
    """

    start: Start
    usual: bool = True


def _dask(method: str, **options: Any) -> Run:
    import dask

    def run(job: Job, data: Path, out: Path) -> None:
        with dask.config.set({"dataframe.shuffle.method": method}):
            job.dask(data).to_parquet(out, **options)

    return run


@contextlib.contextmanager
def exo(cores: int, memory: int) -> Iterator[Run]:
    """dask_exo, with Ray's default of 30 % of the memory for its store."""
    import dask_exo

    with dask_exo.enable(num_cpus=cores, object_store_memory=int(memory * 0.3)) as enabled:
        _ = enabled.cluster  # waits
        yield _dask("tasks")


@contextlib.contextmanager
def threads(cores: int, memory: int) -> Iterator[Run]:
    """Dask's default scheduler, and its shuffle by way of the disk."""
    import dask

    with dask.config.set({"scheduler": "threads", "num_workers": cores}):
        yield _dask("disk")


def _cluster(
    method: str, processes: int | None = None
) -> Callable[[int, int], contextlib.AbstractContextManager[Run]]:
    @contextlib.contextmanager
    def start(cores: int, memory: int) -> Iterator[Run]:
        from distributed import Client, LocalCluster

        workers = processes or cores
        with (
            LocalCluster(
                n_workers=workers,
                threads_per_worker=cores // workers,
                memory_limit=memory // workers,
                dashboard_address=None,
            ) as cluster,
            Client(cluster),
        ):
            yield _dask(method)

    return start


@contextlib.contextmanager
def ray_dask(cores: int, memory: int) -> Iterator[Run]:
    """Dask on Ray as it comes with Ray, with its shuffle by tasks."""
    import dask
    import ray
    from ray.util.dask import ray_dask_get

    with _ray(ray, cores, memory), dask.config.set(scheduler=ray_dask_get):
        yield _dask("tasks")


@contextlib.contextmanager
def ray_data(cores: int, memory: int) -> Iterator[Run]:
    """Ray Data."""
    import ray

    with _ray(ray, cores, memory):
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False

        def run(job: Job, data: Path, out: Path) -> None:
            assert job.ray is not None
            job.ray(data).write_parquet(str(out))

        yield run


@contextlib.contextmanager
def _ray(ray: Any, cores: int, memory: int) -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=cores,
        object_store_memory=int(memory * 0.3),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def polars(cores: int, memory: int) -> Iterator[Run]:
    """Polars' streaming engine."""
    import polars as pl

    def run(job: Job, data: Path, out: Path) -> None:
        assert job.polars is not None
        out.mkdir(parents=True)
        job.polars(data).sink_parquet(out / "part-0.parquet", engine="streaming")

    assert pl.thread_pool_size() == cores, "set POLARS_MAX_THREADS"
    yield run


@contextlib.contextmanager
def duckdb(cores: int, memory: int) -> Iterator[Run]:
    """DuckDB."""
    import duckdb as db

    def run(job: Job, data: Path, out: Path) -> None:
        assert job.sql is not None
        out.mkdir(parents=True)
        with db.connect(config={"threads": cores, "memory_limit": f"{memory // 10**6}MB"}) as base:
            for table in filter(Path.is_dir, data.iterdir()):
                files = f"{table}/*.parquet"
                base.execute(f"CREATE VIEW {table.name} AS FROM read_parquet('{files}')")
            fraction = f"{0.0001 / float(data.name.partition('-')[2]):.12f}"  # of query 11
            sql = job.sql.replace(":fraction", fraction)
            base.execute(f"COPY ({sql}) TO '{out / 'part-0.parquet'}' (FORMAT parquet)")

    yield run


SYSTEMS = {
    "dask_exo": System(exo),
    "Dask threads": System(threads),
    "LocalCluster tasks": System(_cluster("tasks")),
    "LocalCluster p2p": System(_cluster("p2p")),
    "LocalCluster threads": System(_cluster("tasks", processes=1), usual=False),
    "ray.util.dask": System(ray_dask),
    "Ray Data": System(ray_data),
    "Polars": System(polars),
    "DuckDB": System(duckdb),
}


def can(system: str, job: Job) -> bool:
    """Whether a system has such a job."""
    needed = {"Ray Data": job.ray, "Polars": job.polars, "DuckDB": job.sql}
    return needed.get(system, job.dask) is not None
