"""Compute inside the tasks of a flow of Prefect. Needs prefect."""

from __future__ import annotations

import os
import tempfile

os.environ.update(PREFECT_SERVER_ANALYTICS_ENABLED="false", DO_NOT_TRACK="1")

import dask
import dask.dataframe as dd
import pandas as pd
from prefect import flow, task

import dask_exo


@task(retries=2)
def prepare(folder: str) -> str:
    """Write orders by user."""
    orders = pd.DataFrame({"user": [i * 7 % 100 for i in range(1000)], "amount": range(1000)})
    dd.from_pandas(orders, npartitions=4).exo.sort_values("user").to_parquet(f"{folder}/by-user")
    return f"{folder}/by-user"


@task
def totals(path: str) -> pd.Series:
    """Add them up."""
    return dd.read_parquet(path).groupby("user").amount.sum().compute()


@flow
def report(folder: str) -> int:
    """One after the other; both use the same Ray."""
    return int(totals(prepare(folder)).sum())


def main() -> None:
    with tempfile.TemporaryDirectory() as home, dask.config.set(scheduler=dask_exo.get):
        assert report(home) == sum(range(1000))
        print(dask_exo.last_report())


if __name__ == "__main__":
    main()
