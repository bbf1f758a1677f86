"""Read and write a table of Delta Lake: all files of a job appear in one commit, or none.

Needs deltalake.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

import dask_exo


def write(ddf: dd.DataFrame, folder: Path) -> None:
    """Write the partitions as files, then make them a table in one commit."""
    ddf.exo.to_parquet(folder, write_index=False)
    files = sorted(folder.glob("*.parquet"))
    actions = [
        AddAction(
            path=file.name,
            size=file.stat().st_size,
            partition_values={},
            modification_time=int(file.stat().st_mtime * 1000),
            data_change=True,
            stats=json.dumps({"numRecords": pq.read_metadata(file).num_rows}),
        )
        for file in files
    ]
    schema = Schema.from_arrow(pq.read_schema(files[0]).remove_metadata())
    create_table_with_add_actions(str(folder), schema, actions)


def read(folder: Path, version: int | None = None) -> dd.DataFrame:
    """Read the files of a version; the newest one without a number."""
    return dd.read_parquet(DeltaTable(str(folder), version=version).file_uris())


def main() -> None:
    dask_exo.enable(num_cpus=2, object_store_memory="300MB")
    orders = pd.DataFrame({"user": [i * 7 % 100 for i in range(1000)], "amount": range(1000)})
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "orders")
        write(dd.from_pandas(orders, npartitions=4).exo.sort_values("user"), table)
        totals = read(table, version=0).groupby("user").amount.sum().compute()
        assert totals.sort_index().equals(orders.groupby("user").amount.sum())
        print(f"version {DeltaTable(str(table)).version()}, {len(totals)} users")
    dask_exo.disable()


if __name__ == "__main__":
    main()
