"""Dispatch of shuffle kernels by the kind of frame.

A library's frames are registered with an object that has the functions of `Kernels`, in the same
way and at the same time as with Dask's dispatch functions: when its package is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from dask.utils import Dispatch

from dask_exo.partitions import pandas_partition, wire_format
from dask_exo.partitions.kernels import categories, integer_sort, sort_keys
from dask_exo.partitions.kernels.sort_keys import SortKey


class Kernels(Protocol):
    """Functions that split and sort rows of one kind of frame.

    Arrays are in the memory of the frame: on the host, or on its GPU.
    """

    def partition_ids(self, frame: Any, column: Any, npartitions: int) -> Any:
        """Implement `dask_exo.partitions.pandas_partition.partition_ids`."""
        ...

    def partition_column(self, frame: Any, column: Any, ids: Any) -> tuple[int, Any] | None:
        """Implement `dask_exo.partitions.pandas_partition.partition_column`."""
        ...

    def counting_argsort(self, ids: Any, count: int) -> tuple[Any, np.ndarray]:
        """Implement `dask_exo.partitions.kernels.integer_sort.counting_argsort`.

        Offsets are on the host.
        """
        ...

    def to_wire(
        self, frame: Any, order: Any, *, ignore_index: bool = False
    ) -> wire_format.WireRows:
        """Implement `dask_exo.partitions.wire_format.to_wire`; rows are in host memory."""
        ...

    def checksum(self, frame: Any, columns: Any) -> tuple[tuple[str, ...], int]:
        """Implement `dask_exo.partitions.pandas_partition.checksum`."""
        ...

    def recode(self, frame: Any, keys: Sequence[SortKey]) -> Any:
        """Implement `dask_exo.partitions.kernels.categories.recode`."""
        ...

    def sort(self, frame: Any, keys: Sequence[SortKey]) -> Any:
        """Implement `dask_exo.partitions.kernels.sort_keys.sort`."""
        ...

    def array(self, frame: Any, values: np.ndarray) -> Any:
        """Copy an array of the host to the memory of the frame."""
        ...


_kernels = Dispatch("kernels")
_device = Dispatch("device")
_HOST: Any = SimpleNamespace(
    partition_ids=pandas_partition.partition_ids,
    partition_column=pandas_partition.partition_column,
    counting_argsort=integer_sort.counting_argsort,
    to_wire=wire_format.to_wire,
    checksum=pandas_partition.checksum,
    recode=categories.recode,
    sort=sort_keys.sort,
    array=lambda _, values: values,
)


def register(kind: type, kernels: Any) -> None:
    """Register the kernels of a kind of frame."""
    _kernels.register(kind, lambda _: kernels)


def kernels(frame: Any) -> Kernels:
    """Return the kernels of a frame; those of pandas for kinds that are not registered."""
    registered: Kernels = _kernels(frame)
    return registered


def register_device(*kinds: type) -> None:
    """Register kinds of data that are stored on a GPU."""
    for kind in kinds:
        _device.register(kind, lambda _: True)


def on_device(data: Any) -> bool:
    """Return whether data, or their metadata, are of a kind that is stored on a GPU."""
    return bool(_device(data))


register(object, _HOST)
_device.register(object, lambda _: False)


def _register_cudf() -> None:
    from dask_exo.partitions import cudf_partition

    cudf_partition.register()


for _dispatch in (_kernels, _device):
    _dispatch.register_lazy("cudf", _register_cudf)
