"""The Dask backend "exo-cupy": dataframes whose partitions are on GPUs.

References: ``dask/backends.py``; ``dask_cudf``, which does the same for cudf.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import pandas as pd
from dask.dataframe.backends import DataFrameBackendEntrypoint
from dask.dataframe.backends import dataframe_creation_dispatch as older_creation

from dask_exo.cluster import on_ray
from dask_exo.config import Config
from dask_exo.dask_adapter import (
    CoreExpr,
    ToBackend,
    creation,
    get_collection_type,
    new_collection,
)
from dask_exo.errors import DeviceError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import DeviceFrame, DeviceIndex, DeviceSeries, to_device
from dask_exo.partitions.gpu_frames.column import unsupported

NAME = "exo-cupy"
_KINDS = (DeviceFrame, DeviceSeries, DeviceIndex)


def module() -> str:
    """Return the array module of partitions: "cupy", or "numpy" if GPUs are simulated.

    Raises
    ------
    DeviceError
        The running cluster has no GPU and starts none on demand; or this machine has none, and no
        cluster is running.
    """
    if Config.current().gpu_simulate:
        return arrays.HOST
    if on_ray.running():
        place, gpus = "the Ray cluster", on_ray.gpus()
        if not gpus and on_ray.scales():
            return arrays.DEVICE  # the computation waits for a node with one
    else:
        place, gpus = "this machine", float(arrays.devices())
    if gpus <= 0:
        cupy = "is installed" if arrays.installed() else "is not installed"
        raise DeviceError(
            f"backend {NAME!r} needs 1 GPU and cupy; {place} has {gpus:g} GPUs, and cupy {cupy} "
            f"here. Start Ray on a machine with a GPU and cupy, or set exo.gpu.simulate to try "
            f"without one, on numpy"
        )
    return arrays.DEVICE


class ToDevice(ToBackend):
    """Copy of pandas partitions to GPUs."""

    @functools.cached_property
    def _meta(self) -> Any:
        return to_device(self.frame._meta, arrays.HOST)

    @staticmethod
    def operation(part: Any, options: dict[str, Any]) -> Any:
        """Copy one partition."""
        return to_device(part, options["module"])

    def _simplify_down(self) -> CoreExpr | None:
        return self.frame if isinstance(self.frame._meta, _KINDS) else None


class Backend(DataFrameBackendEntrypoint):
    """Entry points of the backend.

    Dask's own functions read on the host; partitions are copied to the GPU.
    """

    @classmethod
    def to_backend_dispatch(cls) -> Callable[..., Any]:
        """Return a function that copies a partition to a GPU."""
        return functools.partial(to_device, module=module())

    @classmethod
    def to_backend(cls, data: Any, **_: Any) -> Any:
        """Copy the partitions of a collection to GPUs.

        Raises
        ------
        DeviceError
            There is no GPU, and none is simulated.
        DeviceTypeError
            A column cannot be stored on a GPU.
        """
        if isinstance(data._meta, _KINDS):
            return data
        return new_collection(ToDevice(data.expr, {"module": module()}))


def _reader(name: str, dispatch: Any) -> Callable[..., Any]:
    def read(*args: Any, **options: Any) -> Any:
        return Backend.to_backend(getattr(dispatch.dispatch("pandas"), name)(*args, **options))

    read.__doc__ = f"Read as `dask.dataframe.{name}`, and copy the partitions to GPUs."
    return read


for _name in ("from_dict", "read_parquet"):
    setattr(Backend, _name, staticmethod(_reader(_name, creation)))
for _name in ("read_csv", "read_json", "read_orc", "read_hdf"):
    setattr(Backend, _name, staticmethod(_reader(_name, older_creation)))


def register() -> None:
    """Register the backend with Dask, also without the package's entry points."""
    for dispatch in (creation, older_creation):
        dispatch.register_backend(NAME, Backend())


def _moments(part: Any) -> pd.DataFrame:
    """Return count, mean and sum of squared deviations of a series, on the host."""
    count = int(part.count())
    mean, square = (part.mean(), part.var(ddof=0) * count) if count else (0.0, 0.0)
    return pd.DataFrame({"count": [count], "mean": [mean], "square": [square]}, dtype=float)


def _variance(parts: pd.DataFrame, ddof: int, root: bool) -> float:  # noqa: FBT001
    """Combine moments of partitions: Chan, Golub and LeVeque (1983), pairwise update."""
    count = parts["count"].sum()
    if count <= ddof:
        return float("nan")
    shift = parts["mean"] - (parts["count"] * parts["mean"]).sum() / count
    variance = (parts["square"] + parts["count"] * shift**2).sum() / (count - ddof)
    return float(variance**0.5 if root else variance)


def _spread(*, root: bool) -> Callable[..., Any]:
    name = "std" if root else "var"

    def run(self: Any, axis: Any = 0, skipna: Any = True, ddof: int = 1, **_: Any) -> Any:  # noqa: FBT002
        if axis not in (0, "index") or not skipna:
            raise unsupported(f"{name}(axis={axis!r}, skipna={skipna})")
        return self.reduction(
            _moments,
            aggregate=_variance,
            meta=0.0,
            aggregate_kwargs={"ddof": ddof, "root": root},
            split_every=False,  # a row for each partition
        )

    run.__doc__ = f"Compute the {'standard deviation' if root else 'variance'} of a column."
    return run


class GpuSeries(dd.Series):
    """Dask series on GPUs; Dask's own variance is code of numpy."""

    var, std = _spread(root=False), _spread(root=True)


get_collection_type.register(DeviceSeries, lambda _: GpuSeries)
