"""The systems: how each is started on two cores, and how it runs a job."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

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
    """dask_exo by the line of its README: it decides what runs on threads and what on Ray."""
    import dask

    import dask_exo

    with dask.config.set({"scheduler": dask_exo.get, "exo.num-cpus": cores}):
        yield _dask("tasks")


@contextlib.contextmanager
def exo_on_ray(cores: int, memory: int) -> Iterator[Run]:
    """dask_exo on a private Ray from the start, with 30 % of the memory for its store."""
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
            base.execute(
                f"COPY ({job.sql_for(data)}) TO '{out / 'part-0.parquet'}' (FORMAT parquet)"
            )

    yield run


def _daft(*, on_ray: bool) -> Start:
    @contextlib.contextmanager
    def start(cores: int, memory: int) -> Iterator[Run]:
        import daft
        import ray

        def run(job: Job, data: Path, out: Path) -> None:
            folders = filter(Path.is_dir, for_daft(data).iterdir())
            tables = {p.name: daft.read_parquet(f"{p}/*.parquet") for p in folders}
            daft.sql(str(job.sql_for(data)).strip(), **tables).write_parquet(str(out))

        if on_ray:
            with _ray(ray, cores, memory):
                daft.set_runner_ray()
                yield run
        else:
            daft.set_runner_native(num_threads=cores)
            yield run

    return start


def for_daft(data: Path) -> Path:
    """Return a copy of the tables without what Daft cannot read or calculate with.

    Strings are no views, and decimals are floats, as the Dask code reads them.
    """
    copies = data.with_name(f"{data.name}-daft")
    if not (copies / "done").exists():
        for file in data.rglob("*.parquet"):
            table = pq.read_table(file)
            target = copies / file.relative_to(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.cast(pa.schema(map(_plain, table.schema))), target)
        (copies / "done").touch()
    return copies


def _plain(field: pa.Field) -> pa.Field:
    if pa.types.is_decimal(field.type):
        return field.with_type(pa.float64())
    return field.with_type(pa.string()) if field.type == pa.string_view() else field


def _copies(copy: Callable[[Path, Path], None]) -> Start:
    @contextlib.contextmanager
    def start(cores: int, memory: int) -> Iterator[Run]:
        def run(job: Job, data: Path, out: Path) -> None:
            assert job.copied is not None
            out.mkdir(parents=True)
            files = sorted((data / job.copied).glob("*.parquet"))
            list(pool.map(copy, files, [out / file.name for file in files]))

        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(cores, mp_context=spawn) as pool:
            yield run

    return start


def _copy_arrow(file: Path, target: Path) -> None:
    pq.write_table(pq.read_table(file, use_threads=False), target)


def _copy_polars(file: Path, target: Path) -> None:
    os.environ["POLARS_MAX_THREADS"] = "1"
    import polars as pl

    pl.read_parquet(file).write_parquet(target)


SYSTEMS = {
    "dask_exo": System(exo),
    "dask_exo on Ray": System(exo_on_ray, usual=False),
    "Dask threads": System(threads),
    "LocalCluster tasks": System(_cluster("tasks")),
    "LocalCluster p2p": System(_cluster("p2p")),
    "LocalCluster threads": System(_cluster("tasks", processes=1), usual=False),
    "ray.util.dask": System(ray_dask),
    "Ray Data": System(ray_data),
    "Polars": System(polars),
    "DuckDB": System(duckdb),
    "Daft": System(_daft(on_ray=False), usual=False),
    "Daft on Ray": System(_daft(on_ray=True), usual=False),
    "copies by pyarrow": System(_copies(_copy_arrow), usual=False),
    "copies by Polars": System(_copies(_copy_polars), usual=False),
}


def can(system: str, job: Job) -> bool:
    """Whether a system has such a job."""
    needed = {
        "Ray Data": job.ray,
        "Polars": job.polars,
        **dict.fromkeys(["DuckDB", "Daft", "Daft on Ray"], job.sql),
        **dict.fromkeys(["copies by pyarrow", "copies by Polars"], job.copied),
    }
    return needed.get(system, job.dask) is not None
