"""A computation that moves between engines while it runs has the result of one that stays."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.handover import HandoverFutures
from dask_exo.cluster.local import LocalFutures
from dask_exo.scheduler import Scheduler
from dask_exo.testing import InlineFutures

FRAME = pd.DataFrame({"k": np.arange(600) % 37, "v": np.arange(600.0), "s": list("abc") * 200})


class Moving(HandoverFutures):
    """Moves at one of its calls."""

    def __init__(self, at: int) -> None:
        self.cluster, self.left = InlineFutures(), at
        there: Future[Futures] = Future()
        there.set_result(self.cluster)
        super().__init__(LocalFutures(2, 10**8), lambda: there)

    def _place(self, args: Any, node: Any) -> Any:
        self.left -= 1
        if not self.left:
            self.move()
        return super()._place(args, node)


def programs() -> dict[str, Any]:
    ddf = dd.from_pandas(FRAME, npartitions=6)
    lock = {"a": [1], "b": {"c": (2, 3)}}
    return {
        "shuffle": ddf.shuffle("k").map_partitions(lambda part: part.assign(n=len(part))),
        "sort": ddf.sort_values("v", ascending=False),
        "merge": ddf.merge(ddf.groupby("k").v.sum().reset_index(), on="k"),
        "groupby": ddf.groupby("s").v.agg(["sum", "std"], split_out=2),
        "array": (da.arange(1000, chunks=100) ** 2).sum(),
        "delayed": dask.delayed(sorted)(
            [dask.delayed(lambda d, i=i: d["a"][0] + i)(lock) for i in range(5)]
        ),
    }


def ordered(value: Any) -> Any:
    if isinstance(value, pd.DataFrame):
        value = value.sort_values(list(value.columns), ignore_index="v" in value)
        return value.sort_index().astype({"s": object}) if "s" in value else value.sort_index()
    return value


@pytest.mark.parametrize("name", list(programs()))
def test_a_result_does_not_depend_on_the_moment_of_the_move(name) -> None:
    expected = ordered(programs()[name].compute(scheduler="sync"))
    moved = 0
    for at in (1, 2, 3, 5, 8, 13, 21):
        futures = Moving(at)
        got = ordered(programs()[name].compute(scheduler=Scheduler(futures)))
        moved += futures.cluster.calls > 0
        if isinstance(expected, pd.DataFrame):
            pd.testing.assert_frame_equal(got, expected, check_like=True)
        else:
            assert got == expected
    assert moved


def test_an_exception_arrives_from_either_engine() -> None:
    def picky(part: pd.DataFrame) -> pd.DataFrame:
        if (part.v == 590).any():
            raise ZeroDivisionError("590")
        return part

    for at in (1, 4):
        ddf = dd.from_pandas(FRAME, npartitions=6).map_partitions(picky).shuffle("k")
        with pytest.raises(ZeroDivisionError, match="590"):
            ddf.compute(scheduler=Scheduler(Moving(at)))
