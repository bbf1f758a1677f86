"""Read and write a table of Apache Iceberg: all files of a job appear in one snapshot, or none.

Needs pyiceberg[sql-sqlite].
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import dask.dataframe as dd
import pandas as pd
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import dask_exo


def append(ddf: dd.DataFrame, catalog: SqlCatalog, name: str, folder: Path) -> Table:
    """Write the partitions as files, and add them to a table in one snapshot."""
    ddf.exo.to_parquet(folder, write_index=False)
    files = sorted(folder.glob("*.parquet"))
    schema = pq.read_schema(files[0]).remove_metadata()
    table = catalog.create_table_if_not_exists(name, schema)
    table.add_files(list(map(str, files)))
    return table


def read(table: Table, row_filter: str = "true") -> dd.DataFrame:
    """Read the files of the current snapshot that may have rows for a filter."""
    tasks = table.scan(row_filter=row_filter).plan_files()
    return dd.read_parquet([task.file.file_path.removeprefix("file://") for task in tasks])


def main() -> None:
    dask_exo.enable(num_cpus=2, object_store_memory="300MB")
    orders = pd.DataFrame({"user": [i * 7 % 100 for i in range(1000)], "amount": range(1000)})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        catalog = SqlCatalog("default", **places)
        catalog.create_namespace("shop")
        by_user = dd.from_pandas(orders, npartitions=4).exo.sort_values("user")
        table = append(by_user, catalog, "shop.orders", folder / "orders")
        few = read(table, "user < 10")
        totals = few[few.user < 10].groupby("user").amount.sum().compute()
        assert totals.sort_index().equals(orders[orders.user < 10].groupby("user").amount.sum())
        print(f"{few.npartitions} of {read(table).npartitions} files, {len(totals)} users")
    dask_exo.disable()


if __name__ == "__main__":
    main()
