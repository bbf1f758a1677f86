"""A year of made-up weather with xarray: what its page "Parallel Computing with Dask" is about.

Nothing in it is written for dask_exo but the line that says where to run. Needs xarray; flox, if
it is there, groups faster.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

import dask_exo


def weather(days: int = 365) -> xr.Dataset:
    rng = np.random.default_rng(0)
    shape, dims = (days, 18, 36), ("time", "lat", "lon")
    return xr.Dataset(
        {
            "temperature": (dims, rng.normal(15, 8, shape)),
            "precipitation": (dims, rng.gamma(1, 2, shape)),
        },
        coords={
            "time": pd.date_range("2026-01-01", periods=days),
            "lat": np.linspace(-85, 85, 18),
            "lon": np.linspace(0, 350, 36),
        },
    )


def time_mean(block: xr.Dataset) -> xr.Dataset:
    return block.mean("lon")


def magnitude(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.hypot(a, b)


def analysis(ds: xr.Dataset) -> dict[str, xr.Dataset | xr.DataArray]:
    """What one does with a data set, chunked or not."""
    return {
        "climatology": ds.groupby("time.month").mean(),
        "anomaly": ds.groupby("time.month") - ds.groupby("time.month").mean(),
        "weekly": ds.resample(time="7D").mean(),
        "smooth": ds.temperature.rolling(time=30, center=True).mean(),
        "hot days": ds.temperature.where(ds.temperature > 25).count("time"),
        "extremes": ds.temperature.chunk({"time": -1}).quantile(0.99, "time")
        if ds.chunks
        else ds.temperature.quantile(0.99, "time"),
        "zonal": xr.map_blocks(time_mean, ds),
        "magnitude": xr.apply_ufunc(
            magnitude,
            ds.temperature,
            ds.precipitation,
            dask="parallelized",
            output_dtypes=["f8"],
        ),
    }


def main() -> dict[str, xr.Dataset | xr.DataArray]:
    ds = weather().chunk({"time": 50})
    with dask_exo.enable(num_cpus=2, object_store_memory="500MB"):
        results = {name: lazy.compute() for name, lazy in analysis(ds).items()}
        loaded = ds.persist().mean().load()
    print(results["climatology"].mean(["lat", "lon"]).to_dataframe().round(2))
    print(f"mean temperature: {float(loaded.temperature):.2f}")
    return results


if __name__ == "__main__":
    main()
