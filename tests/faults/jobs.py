"""Small programs, and what pandas gets for each: what goes wrong must not change it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from dask_exo.cluster.failpoints import reach

PARTS, ROWS = 12, 20_000

Make = Callable[[int], pd.DataFrame]
"""Makes a partition."""


def part(i: int) -> pd.DataFrame:
    """Some rows; no two parts, and no two rows, are equal."""
    numbers = np.arange(i * ROWS, (i + 1) * ROWS)
    return pd.DataFrame({"k": numbers * 7919 % 100_003, "v": numbers, "x": np.sqrt(numbers)})


def drawn(i: int) -> pd.DataFrame:
    """The same, with one random number for all rows, from the generator that the process has."""
    return part(i).assign(x=np.random.random())


def fickle(i: int) -> pd.DataFrame:
    """The same, with a number that nobody can draw again."""
    return part(i).assign(x=np.random.default_rng().random())


def wide(i: int) -> pd.DataFrame:
    """The same, and columns with which it does not fit the object store."""
    rows = part(i)
    return rows.assign(**{f"p{j}": rows["v"] for j in range(200)})


MAKES: dict[str, Make] = {"part": part, "drawn": drawn, "fickle": fickle, "wide": wide}


def check(rows: pd.DataFrame, make: str) -> None:
    """Compare a result with what pandas gets; of numbers that are random, each part has one."""
    expected = pd.concat([part(i) for i in range(PARTS)], ignore_index=True)
    rows = rows.sort_values("v", ignore_index=True)
    if make == "wide":
        more = [name for name in rows if name.startswith("p")]
        assert (rows[more].to_numpy() == rows[["v"]].to_numpy()).all()
        rows = rows.drop(columns=more)
    elif make != "part":
        assert (rows.groupby(rows["v"] // ROWS)["x"].nunique() == 1).all(), "two versions of a part"
        rows, expected = rows.drop(columns="x"), expected.drop(columns="x")
    pd.testing.assert_frame_equal(rows, expected)


def frame(make: Make) -> dd.DataFrame:
    return dd.from_map(make, range(PARTS), meta=make(0).iloc[:0])


def shuffled(directory: Path, make: Make) -> pd.DataFrame:
    """Read, map, merge, reduce."""
    return frame(make).shuffle("k", npartitions=8).compute()


def shuffled_twice(directory: Path, make: Make) -> pd.DataFrame:
    return frame(make).shuffle("k", npartitions=8).shuffle("v", npartitions=6).compute()


def to_files(directory: Path, make: Make) -> pd.DataFrame:
    """Files, each of which must be there once."""
    frame(make).to_parquet(str(directory))
    return read(directory)


def persisted(directory: Path, make: Make) -> pd.DataFrame:
    """Partitions that stay in the store, of which half are read before, and half after a fault."""
    data = frame(make).persist()
    first = data.partitions[: PARTS // 2].compute()
    again = data.map_partitions(lambda rows: rows.iloc[:1], meta=data._meta).compute()
    reach("between", "persisted")
    second = data.compute()
    assert first["x"].isin(second["x"]).all(), "two versions of a part"
    assert again["x"].isin(second["x"]).all(), "two versions of a part"
    return second


class Double:
    """What a process of its own keeps, and calls."""

    def __call__(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(x=rows["x"] * 2)


def halved(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(x=rows["x"] / 2)


def halves(rows: pd.DataFrame) -> Any:
    """A generator, which gives a partition in two pieces."""
    reach("piece", "inside a function")
    yield rows.iloc[: len(rows) // 2]
    yield rows.iloc[len(rows) // 2 :]


def start(make: Make) -> Any:
    return frame(make).exo.pipeline(memory="40MB", target="200kB", retries=1)


def piped(directory: Path, make: Make) -> pd.DataFrame:
    """A pipeline of a source, tasks, and workers that are kept."""
    stages = start(make).map_partitions(halves).map_partitions(Double, concurrency=2)
    return halved(pd.concat(list(stages.iter_batches())))


def piped_to_files(directory: Path, make: Make) -> pd.DataFrame:
    """A pipeline that ends in files."""
    start(make).map_partitions(halves).to_parquet(str(directory))
    return read(directory)


def on_actors(directory: Path, make: Make) -> pd.DataFrame:
    """A class that processes of their own keep, in a Dask graph."""
    double = dask_exo.options(concurrency=2)(Double)
    return halved(frame(make).map_partitions(double, meta=make(0).iloc[:0]).compute())


def read(directory: Path) -> pd.DataFrame:
    """All rows of all files."""
    return pd.concat(pd.read_parquet(path) for path in sorted(directory.glob("*.parquet")))


JOBS: dict[str, Callable[[Path, Make], pd.DataFrame]] = {
    "shuffle": shuffled,
    "two shuffles": shuffled_twice,
    "files": to_files,
    "persisted": persisted,
    "pipeline": piped,
    "pipeline to files": piped_to_files,
    "actors": on_actors,
}
