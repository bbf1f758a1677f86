"""Join on a key that nine rows of ten have, and see how long the partitions are.

python examples/skewed_join.py
"""

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo


def tables(rows: int) -> tuple[dd.DataFrame, dd.DataFrame]:
    """Views of pages, most of them of page 0; and the pages."""
    rng = np.random.default_rng(0)
    often = rng.random(rows) < 0.9
    views = pd.DataFrame({"page": np.where(often, 0, rng.integers(0, rows // 20, rows)), "n": 1})
    pages = pd.DataFrame({"page": range(rows // 20), "words": rng.integers(9, 999, rows // 20)})
    return dd.from_pandas(views, npartitions=16), dd.from_pandas(pages, npartitions=16)


def lengths(joined: dd.DataFrame) -> pd.Series:
    """Rows of each partition."""
    return joined.map_partitions(len).compute()


def main(rows: int = 400_000) -> tuple[float, float]:
    """The longest partition over the mean one: of Dask's merge, and of ours."""
    views, pages = tables(rows)
    with dask_exo.enable(num_cpus=2, object_store_memory="300MB"):
        plain = lengths(views.merge(pages, on="page", broadcast=False))
        spread = lengths(views.exo.merge(pages, on="page"))
    assert plain.sum() == spread.sum() == rows
    for name, found in (("merge", plain), ("exo.merge", spread)):
        ratio = found.max() / found.mean()
        print(f"{name:<10} {len(found)} partitions, longest over mean: {ratio:.1f}")
    return plain.max() / plain.mean(), spread.max() / spread.mean()


if __name__ == "__main__":
    main()
