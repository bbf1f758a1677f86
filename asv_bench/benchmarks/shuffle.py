"""Shuffles of the same bytes through more and more partitions; what is made of them."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da

from asv_bench.benchmarks.common import BRIEF, ROWS, OnRay, frames, unit
from dask_exo.report import recording


class Shuffle(OnRay):
    """``ROWS`` rows from M to R partitions."""

    params = (
        [(10, 10), (100, 100)] if BRIEF else [(10, 10), (100, 100), (500, 500), (2_000, 2_000)],
    )
    param_names = ("M, R",)

    def setup(self, parts: tuple[int, int]) -> None:
        """Start Ray; make the input."""
        self.start()
        self.ddf = frames(ROWS, parts[0])
        dask.compute(self.ddf.map_partitions(len))

    def run(self, parts: tuple[int, int]) -> Any:
        """Shuffle, and count rows."""
        return self.ddf.shuffle("id6", npartitions=parts[1]).map_partitions(len).compute()

    def time_shuffle(self, parts: tuple[int, int]) -> None:
        """Seconds."""
        self.run(parts)

    @unit("refs")
    def track_objects(self, parts: tuple[int, int]) -> int:
        """Refs made."""
        with recording() as stats:
            self.run(parts)
        return stats.objects

    @unit("calls")
    def track_calls(self, parts: tuple[int, int]) -> int:
        """Ray calls."""
        with recording() as stats:
            self.run(parts)
        return stats.calls


class Frames(OnRay):
    """What users do that shuffles, and the groupby questions of h2o's db-benchmark."""

    def setup(self) -> None:
        """Start Ray; make the input."""
        self.start()
        self.ddf = frames(ROWS, 16)
        self.other = frames(ROWS // 10, 4)[["id6", "v3"]].rename(columns={"v3": "w"})
        dask.compute(self.ddf.map_partitions(len))

    def time_sort_values(self) -> None:
        """By a number."""
        self.ddf.sort_values("v3").map_partitions(len).compute()

    def time_exo_sort_values(self) -> None:
        """The same in one pass."""
        self.ddf.exo.sort_values("v3").map_partitions(len).compute()

    def time_set_index(self) -> None:
        """By a string."""
        self.ddf.set_index("id3").map_partitions(len).compute()

    def time_merge(self) -> None:
        """On an integer."""
        self.ddf.merge(self.other, on="id6").map_partitions(len).compute()

    def time_persist_and_reuse(self) -> None:
        """A shuffled frame that is read twice."""
        kept = self.ddf.shuffle("id6").persist()
        dask.compute(kept.v1.sum(), kept.v2.sum())

    def time_groupby_q1(self) -> None:
        """Sum of v1 by id1."""
        self.ddf.groupby("id1").v1.sum().compute()

    def time_groupby_q3(self) -> None:
        """Sum of v1 and mean of v3 by id3, of which there are many."""
        self.ddf.groupby("id3").agg({"v1": "sum", "v3": "mean"}, split_out=8).map_partitions(
            len
        ).compute()

    def time_groupby_q6(self) -> None:
        """Median and deviation of v3 by id4 and id5."""
        how = {"v3": ["median", "std"]}
        self.ddf.groupby(["id4", "id5"]).agg(how, shuffle_method="tasks").compute()


class Rechunk(OnRay):
    """An array from rows to columns."""

    def setup(self) -> None:
        """Start Ray; make the input."""
        self.start()
        self.array = da.random.default_rng(1).random((4000, 4000), chunks=(100, 4000)).persist()

    def time_tasks(self) -> None:
        """As Dask does by default."""
        self.array.rechunk((4000, 100)).sum().compute()

    def time_exoshuffle(self) -> None:
        """As a shuffle."""
        self.array.rechunk((4000, 100), method="p2p").sum().compute()
