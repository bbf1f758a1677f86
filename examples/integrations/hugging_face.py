"""Prepare rows with Dask, and read them as a dataset of Hugging Face. Needs datasets."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here is on their servers

import dask.dataframe as dd
import pandas as pd
from datasets import Dataset

import dask_exo


def clean(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(text=frame.text.str.lower().str.strip())


def main() -> None:
    texts = pd.DataFrame({"text": [f"  Text {i % 300} " for i in range(1000)], "label": 1})
    with (
        dask_exo.enable(num_cpus=2, object_store_memory="300MB"),
        tempfile.TemporaryDirectory() as folder,
    ):
        ddf = dd.from_pandas(texts, npartitions=4).map_partitions(clean)
        distinct = ddf.drop_duplicates("text", split_out=2).exo.random_shuffle(seed=1)
        distinct.exo.to_parquet(f"{folder}/texts", write_index=False)
        files = sorted(map(str, Path(folder, "texts").glob("*.parquet")))
        dataset = Dataset.from_parquet(files, cache_dir=f"{folder}/cache")
        assert sorted(dataset["text"]) == sorted({f"text {i}" for i in range(300)})
        print(dataset)


if __name__ == "__main__":
    main()
