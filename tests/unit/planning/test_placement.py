"""Which computations begin on threads, and which need Ray from the start."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import dask_exo
from dask_exo.config import Config
from dask_exo.planning.placement import choose_engine
from dask_exo.scheduler import Scheduler, plan_of
from dask_exo.testing import InlineFutures

LIMIT = 10**6
ROWS = 1000


def frame(rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    names = pd.array([f"name-{i}" for i in rng.integers(0, 10**9, rows)], dtype="str")
    return pd.DataFrame({"n": rng.integers(0, 9, rows), "x": rng.random(rows), "s": names})


def is_small(ddf, limit: int = LIMIT) -> bool:
    """As the scheduler sees it; and what is fused, as ``persist`` does, is judged alike."""
    config = Config.current()
    one = partial(choose_engine, config=config, limit=limit, running=False, movable=False)
    choice = one(ddf.expr.optimize(fuse=False))
    assert one(ddf.expr.optimize()) == choice
    return choice.engine == "local"


def least(ddf) -> int:
    """The least limit with which it is small."""
    low, high = 0, 2**40
    while low < high:
        half = (low + high) // 2
        low, high = (low, half) if is_small(ddf, half) else (half + 1, high)
    return low


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for i in range(4):
        frame().to_parquet(tmp_path / f"{i}.parquet", row_group_size=ROWS // 2)
        frame().to_csv(tmp_path / f"{i}.csv", index=False)
    return tmp_path


# How much it is -----------------------------------------------------------------------------------


def test_frames_count_by_their_memory() -> None:
    ddf = dd.from_pandas(frame(), npartitions=4)
    assert least(ddf) == frame().memory_usage(deep=False).sum()
    assert least(dd.concat([ddf[["x"]], ddf[["x"]] + 1])) == least(ddf)  # the same bytes
    assert least(ddf.merge(dd.from_pandas(frame(10), npartitions=1), on="n")) > least(ddf)


def test_a_series_counts_by_its_memory() -> None:
    series = pd.Series(range(ROWS))
    whole = dd.from_pandas(frame(), npartitions=2).assign(z=dd.from_pandas(series, npartitions=2))
    assert least(whole) >= 8 * ROWS + 24 * ROWS
    with dask.config.set(scheduler=dask_exo.get):
        assert whole.z.compute().equals(series.rename("z"))


@pytest.mark.parametrize("rows", [{}, {"split_row_groups": True}, {"blocksize": "20kB"}])
def test_parquet_counts_by_the_columns_that_are_read(files: Path, rows) -> None:
    ddf = dd.read_parquet(files / "*.parquet", **rows)
    assert least(ddf[["x"]]) == 4 * ROWS * 8
    assert least(ddf.x.sum()) == 4 * ROWS * 8
    memory = 4 * frame().memory_usage(deep=True).sum()
    assert memory / 1.5 < least(ddf) < 1.5 * memory


def test_parquet_counts_by_the_partitions_that_are_read(files: Path) -> None:
    ddf = dd.read_parquet(files / "*.parquet")
    assert least(ddf.partitions[1][["x"]]) == ROWS * 8
    assert least(ddf.get_partition(2).x.sum()) == ROWS * 8


def test_a_footer_is_read_once_but_for_another_file_at_the_path(files: Path, monkeypatch) -> None:
    read: list[str] = []
    original = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda file: read.append(file.path) or original(file))
    for _ in range(3):
        assert is_small(dd.read_parquet(files / "*.parquet").x.sum())
    assert len(read) == 4
    frame(10).to_parquet(files / "0.parquet")
    assert least(dd.read_parquet(files / "0.parquet")[["x"]]) == 10 * 8


def test_dictionaries_of_strings_count_each_row(tmp_path: Path) -> None:
    pd.DataFrame({"s": ["a", "b"] * ROWS}).to_parquet(tmp_path / "s.parquet")
    assert least(dd.read_parquet(tmp_path)) >= 2 * ROWS * 8


def test_csv_counts_by_the_bytes_of_its_files(files: Path) -> None:
    nbytes = sum(one.stat().st_size for one in files.glob("*.csv"))
    assert least(dd.read_csv(files / "*.csv")) == nbytes
    cut = dd.read_csv(files / "*.csv", blocksize="5kB")
    assert cut.npartitions > 4
    assert nbytes <= least(cut) < 2 * nbytes


def test_of_many_files_some_are_opened(tmp_path: Path, monkeypatch) -> None:
    for i in range(40):
        frame(10).to_parquet(tmp_path / f"{i}.parquet")
    opened: list[str] = []
    original = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda f: opened.append(f.path) or original(f))
    ddf = dd.read_parquet(tmp_path)[["x"]]
    assert least(ddf) == 40 * 10 * 8
    assert len(opened) <= 16


# What cannot be seen ------------------------------------------------------------------------------


def made(number: int) -> pd.DataFrame:
    return frame(10 * number)


def test_sources_of_unknown_size_are_not_small(files: Path) -> None:
    frame().to_csv(files / "more.csv.gz")
    meta = frame(0)
    unknown = {
        "packed": dd.read_csv(files / "more.csv.gz", blocksize=None),
        "function": dd.from_map(made, [1, 2], meta=meta),
        "delayed": dd.from_delayed([dask.delayed(made)(1)], meta=meta),
        "beside": dd.concat([dd.from_pandas(frame()), dd.from_map(made, [1, 2], meta=meta)]),
    }
    assert [name for name, ddf in unknown.items() if is_small(ddf)] == []


# Whose functions they are -------------------------------------------------------------------------


class Model:
    def __call__(self, part: pd.DataFrame) -> pd.DataFrame:
        return part


def test_functions_of_dask_and_pandas_need_no_cluster() -> None:
    ddf = dd.from_pandas(frame(), npartitions=4)
    other = dd.from_pandas(frame(10), npartitions=1)
    fine = [
        ddf.groupby("n").agg({"x": ["sum", "std"], "s": "count"}),
        ddf.assign(y=np.sqrt(ddf.x) + 1).query("y > 1")[["y"]],
        ddf.n.map({1: "a", 2: "b"}, meta=("n", "str")),
        ddf.n.isin(list(range(5000))),
        ddf.s.str.upper().value_counts(),
        ddf.merge(other, on="n").sort_values("x_x"),
        ddf.set_index("n", sorted=False),
        ddf.map_partitions(len),
        ddf.exo.sort_values("x"),
    ]
    assert [str(one) for one in fine if not is_small(one)] == []


def test_functions_of_the_user_go_to_the_cluster(files: Path) -> None:
    ddf = dd.from_pandas(frame(), npartitions=4)
    whole = dd.Aggregation("whole", lambda s: s.sum(), lambda s: s.sum())
    asked = dask_exo.options(num_cpus=2)(made)
    theirs = {
        "function": ddf.map_partitions(lambda part: part),
        "with arguments": ddf.map_partitions(lambda part, by: part, by=1, meta=ddf),
        "argument": ddf.map_partitions(pd.DataFrame.pipe, lambda part: part, meta=ddf),
        "keyword": ddf.map_partitions(pd.DataFrame.rename, columns=lambda name: name),
        "object": ddf.map_partitions(Model(), meta=ddf),
        "method": ddf.map_partitions(Model().__call__, meta=ddf),
        "asking": ddf.map_partitions(asked, meta=ddf),
        "apply": ddf.apply(lambda row: row.n, axis=1, meta=("n", "int64")),
        "map": ddf.n.map(lambda n: n, meta=("n", "int64")),
        "groups": ddf.groupby("n").apply(lambda part: part, meta=ddf),
        "aggregation": ddf.groupby("n").agg({"x": ["sum", whole]}),
        "reduction": ddf.x.reduction(lambda s: s.sum(), meta=("x", "f8")),
        "converter": dd.read_csv(files / "*.csv", converters={"n": lambda text: int(text) + 1}),
    }
    assert [name for name, one in theirs.items() if is_small(one)] == []


def test_what_is_not_known_is_found_out_on_threads(files: Path) -> None:
    ddf = dd.from_pandas(frame(), npartitions=4)
    meta = frame(0)
    for unknown in [
        dd.from_map(made, [1, 2], meta=meta).expr,
        ddf.map_partitions(lambda part: part).expr,
        dask.delayed(made)(1).dask,
    ]:
        choice = choose_engine(unknown, Config.current(), limit=LIMIT, running=False)
        assert (choice.engine, choice.may_move) == ("local", True)
        assert choose_engine(unknown, Config.current(), limit=LIMIT, running=True).engine == "ray"
    large = dd.concat([ddf, dd.from_map(made, [1, 2], meta=meta)])
    choice = choose_engine(large.expr, Config.current(), limit=1000, running=False)
    assert choice.engine == "ray"


def test_requests_of_resources_go_to_the_cluster(monkeypatch) -> None:
    monkeypatch.setattr("dask_exo.scheduler._on_ray", lambda _: InlineFutures())
    requested = dask_exo.options(num_cpus=2)(made)
    for graph in [
        dd.from_pandas(frame(), npartitions=4).map_partitions(requested, meta=frame(0)),
        dd.from_map(requested, [1, 2], meta=frame(0)),
    ]:
        expr = graph.expr.optimize()
        config = Config.current()
        _, choice = Scheduler().where(expr, plan_of(expr, config), config)
        assert choice == ("ray", "its functions request resources", False)


def test_what_asks_for_a_gpu_goes_to_the_cluster() -> None:
    with dask.config.set({"exo.gpu.simulate": True}):
        assert not is_small(dd.from_pandas(frame(), npartitions=4).exo.to_gpu())


# What the scheduler does about it -----------------------------------------------------------------

PROGRAM = """
import sys, dask, dask.dataframe as dd, dask_exo
dask.config.set(scheduler=dask_exo.get)
dask.config.set({"exo.checkpoint.path": sys.argv[2] or None, "exo.num-cpus": 1})
got = dd.read_parquet(sys.argv[1] + "/*.parquet").groupby("n").x.sum().compute()
assert len(got) == 9
print("ray" in sys.modules)
"""


@pytest.mark.parametrize(("kept", "started"), [("", "False"), ("kept", "True")])
def test_ray_is_not_even_imported_for_a_small_file(files: Path, kept: str, started: str) -> None:
    """But where a checkpoint is asked for: there are none of what threads compute."""
    at = str(files / kept) if kept else ""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(files), at], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split()[-1] == started


@pytest.mark.parametrize(
    "settings",
    [{"exo.address": "auto"}, {"exo.object-store-memory": "1GB"}, {"exo.num-gpus": 2}],
)
def test_a_ray_that_is_named_or_described_is_used(settings) -> None:
    expr = dd.from_pandas(frame(), npartitions=4).expr
    with dask.config.set(settings):
        choice = choose_engine(expr, Config.current(), limit=10**9, running=False)
    assert (choice.engine, choice.may_move) == ("ray", False)
    assert next(iter(settings)) in choice.reason
