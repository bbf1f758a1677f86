"""Watch the mean of groups become exact while a groupby runs, and stop when it is good enough.

python examples/early_answers.py
"""

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo

SPEC = {"views": "mean"}


def pages(number: int, rows: int = 20_000) -> pd.DataFrame:
    """Make one partition: views of pages in several languages."""
    rng = np.random.default_rng(number)
    return pd.DataFrame(
        {"lang": rng.choice(["de", "en", "fr", "ja"], rows), "views": rng.exponential(100, rows)}
    )


def main(partitions: int = 40, enough: float = 0.5) -> tuple[float, pd.DataFrame]:
    """The share of the data that was needed, and the means by then."""
    ddf = dd.from_map(pages, range(partitions))
    with dask_exo.enable(num_cpus=2, object_store_memory="300MB"):
        for seen in ddf.exo.groupby("lang").agg_online(SPEC):
            worst = seen.error.to_numpy().max()
            print(f"{seen.share:4.0%}  {seen.frame.iloc[:, 0].round(1).to_dict()}  ± {worst:.2f}")
            if worst < enough:  # the rest is not computed
                break
    return seen.share, seen.frame


if __name__ == "__main__":
    main()
