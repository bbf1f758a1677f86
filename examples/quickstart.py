"""Join and aggregate two tables with ordinary Dask code, on a private Ray.

python examples/quickstart.py
"""

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from dask_exo.report import recording


def tables(rows: int) -> tuple[dd.DataFrame, dd.DataFrame]:
    """Purchases, and the users who made them."""
    rng = np.random.default_rng(0)
    users = rows // 20
    purchases = pd.DataFrame({"user": rng.integers(0, users, rows), "amount": rng.random(rows)})
    people = pd.DataFrame({"user": range(users), "country": rng.choice(["fr", "jp", "ke"], users)})
    return dd.from_pandas(purchases, npartitions=16), dd.from_pandas(people, npartitions=8)


def main(rows: int = 1_000_000) -> pd.Series:
    """Money spent in each country."""
    purchases, people = tables(rows)
    joined = purchases.merge(people, on="user", broadcast=False)
    with dask_exo.enable(num_cpus=2, object_store_memory="500MB"), recording() as stats:
        spent = joined.groupby("country").amount.sum().compute()
    for shuffle in stats.shuffles:
        print(f"{shuffle.maps} parts to {shuffle.reducers}: {shuffle.algorithm}, {shuffle.reason}")
    print(spent.round(2).to_string())
    return spent


if __name__ == "__main__":
    main()
