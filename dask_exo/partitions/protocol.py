"""What is asked of any kind of frame, and who answers for which kind: above all by shuffles.

A kind of frame registers an object with the functions of `Kernels`, as it registers with Dask's
dispatch functions: when its package is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from dask.utils import Dispatch

from dask_exo.partitions import pandas_partition, wire_format
from dask_exo.partitions.kernels import categories, sort_keys
from dask_exo.partitions.kernels.sort_keys import Key


class Kernels(Protocol):
    """How rows of one kind of frame are split and sorted; arrays lie where it does."""

    def destinations(self, frame: Any, column: Any, npartitions: int) -> Any:
        """See `dask_exo.partitions.pandas_partition.destinations`."""
        ...

    def mark(self, frame: Any, column: Any, ids: Any) -> tuple[int, Any] | None:
        """See `dask_exo.partitions.pandas_partition.mark`."""
        ...

    def grouped(self, ids: Any, count: int) -> tuple[Any, np.ndarray]:
        """See `dask_exo.partitions.pandas_partition.grouped`; the offsets are on the host."""
        ...

    def travelling(
        self, frame: Any, order: Any, *, ignore_index: bool = False
    ) -> wire_format.Travelling:
        """See `dask_exo.partitions.wire_format.travelling`: rows in host memory."""
        ...

    def checksum(self, frame: Any, columns: Any) -> tuple[tuple[str, ...], int]:
        """See `dask_exo.partitions.pandas_partition.checksum`."""
        ...

    def recode(self, frame: Any, keys: Sequence[Key]) -> Any:
        """See `dask_exo.partitions.kernels.categories.recode`."""
        ...

    def sort(self, frame: Any, keys: Sequence[Key]) -> Any:
        """See `dask_exo.partitions.kernels.sort_keys.sort`."""
        ...

    def array(self, frame: Any, values: np.ndarray) -> Any:
        """An array of the host where the frame lies."""
        ...


_kernels = Dispatch("kernels")
_places = Dispatch("places")
_HOST: Any = SimpleNamespace(
    destinations=pandas_partition.destinations,
    mark=pandas_partition.mark,
    grouped=pandas_partition.grouped,
    travelling=wire_format.travelling,
    checksum=pandas_partition.checksum,
    recode=categories.recode,
    sort=sort_keys.sort,
    array=lambda _, values: values,
)


def register(kind: type, kernels: Any) -> None:
    """Say who answers for a kind of frame."""
    _kernels.register(kind, lambda _: kernels)


def kernels(frame: Any) -> Kernels:
    """Who answers for a frame: for kinds that nobody has registered, the host."""
    found: Kernels = _kernels(frame)
    return found


def register_device(*kinds: type) -> None:
    """Say that data of some kinds lie on a device."""
    for kind in kinds:
        _places.register(kind, lambda _: True)


def on_device(data: Any) -> bool:
    """Whether data (or what stands for them in metadata) lie on a device."""
    return bool(_places(data))


register(object, _HOST)
_places.register(object, lambda _: False)


def _register_cudf() -> None:
    from dask_exo.partitions import cudf_partition

    cudf_partition.register()


for _dispatch in (_kernels, _places):
    _dispatch.register_lazy("cudf", _register_cudf)
