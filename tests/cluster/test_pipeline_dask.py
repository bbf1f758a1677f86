"""Dask dataframes of pipelines, between other things that Dask does."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo.errors import PipelineError
from dask_exo.pipeline import of

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

ROWS, PARTS = 400, 6


def part(i: int) -> pd.DataFrame:
    numbers = np.arange(i * ROWS, (i + 1) * ROWS)
    return pd.DataFrame({"n": numbers, "k": numbers % 7})


def double(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(y=frame.n * 2)


class Model:
    pass


def test_it_runs_once_with_shuffles_in_the_middle(tmp_path) -> None:
    def mark(frame: pd.DataFrame) -> pd.DataFrame:
        if len(frame) > 10:
            (tmp_path / str(frame.n.min())).open("x").close()
        return frame[frame.n % 2 == 0]

    ddf = dd.from_map(part, range(PARTS))
    lazy = ddf.exo.pipeline(target="2kB").map_partitions(mark).to_dask()
    assert (lazy.npartitions, list(lazy.columns)) == (PARTS, ["n", "k"])
    assert not list(tmp_path.iterdir())
    whole = pd.concat([part(i) for i in range(PARTS)])
    want = whole[whole.n % 2 == 0]
    shuffled = lazy.shuffle("k").exo.pipeline().map_partitions(double)
    sums = shuffled.to_dask().groupby("k").y.sum()
    pd.testing.assert_series_equal(
        sums.compute().sort_index(), want.assign(y=want.n * 2).groupby("k").y.sum()
    )
    assert len(list(tmp_path.iterdir())) == PARTS  # each file can be made once
    pd.testing.assert_frame_equal(lazy.compute(), want)
    pd.testing.assert_frame_equal(lazy.compute(scheduler="sync"), want)
    assert lazy.exo.sort_values("n", ascending=False).n.compute().tolist() == [*want.n[::-1]]


def test_branches_and_joins() -> None:
    shared = of([part(i) for i in range(3)]).map_partitions(double)
    shared = shared.to_dask(meta={"n": "i8", "k": "i8", "y": "i8"})
    left = shared.exo.pipeline().filter(lambda frame: frame.k == 1).to_dask()
    right = shared.exo.pipeline().map_partitions(lambda frame: frame[["n"]].assign(z=1)).to_dask()
    got = left.merge(right, on="n").compute()
    whole = pd.concat([part(i) for i in range(3)])
    want = whole[whole.k == 1]
    assert sorted(got.n) == want.n.tolist()
    assert (got.y == 2 * got.n).all()
    both = of(left, right).materialize()
    assert len(both) == len(want) + len(whole)


def test_errors_and_what_cannot_be_known() -> None:
    def fail(frame: pd.DataFrame) -> pd.DataFrame:
        if len(frame) > 10:
            raise KeyError("no such thing")
        return frame

    pipeline = dd.from_map(part, range(PARTS)).exo.pipeline()
    with pytest.raises(KeyError, match="no such thing"):
        pipeline.map_partitions(fail).to_dask().compute()
    with pytest.raises(PipelineError, match="meta="):
        pipeline.map_partitions(Model).to_dask()
    with pytest.raises(PipelineError, match="meta="):
        pipeline.map_partitions(lambda frame: frame.q).to_dask()
    with pytest.raises(PipelineError, match="how many partitions"):
        of(part(i) for i in range(2)).to_dask(meta=part(0))
    with pytest.raises(PipelineError, match="limit"):
        pipeline.limit(3).to_dask()
    assert len(pipeline.limit(1000).materialize()) == 1000
