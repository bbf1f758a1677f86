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

from dask_exo.frame import categories, columns, host, order
from dask_exo.frame.codes import Key


class Kernels(Protocol):
    """How rows of one kind of frame are split and sorted; arrays lie where it does."""

    def destinations(self, frame: Any, column: Any, npartitions: int) -> Any:
        """See `dask_exo.frame.host.destinations`."""
        ...

    def mark(self, frame: Any, column: Any, ids: Any) -> tuple[int, Any] | None:
        """See `dask_exo.frame.host.mark`."""
        ...

    def grouped(self, ids: Any, count: int) -> tuple[Any, np.ndarray]:
        """See `dask_exo.frame.host.grouped`; the offsets are on the host."""
        ...

    def travelling(
        self, frame: Any, order: Any, *, ignore_index: bool = False
    ) -> columns.Travelling:
        """See `dask_exo.frame.columns.travelling`: rows in host memory."""
        ...

    def checksum(self, frame: Any, columns: Any) -> tuple[tuple[str, ...], int]:
        """See `dask_exo.frame.host.checksum`."""
        ...

    def recode(self, frame: Any, keys: Sequence[Key]) -> Any:
        """See `dask_exo.frame.categories.recode`."""
        ...

    def sort(self, frame: Any, keys: Sequence[Key]) -> Any:
        """See `dask_exo.frame.order.sort`."""
        ...

    def array(self, frame: Any, values: np.ndarray) -> Any:
        """An array of the host where the frame lies."""
        ...


_kernels = Dispatch("kernels")
_places = Dispatch("places")
_HOST: Any = SimpleNamespace(
    destinations=host.destinations,
    mark=host.mark,
    grouped=host.grouped,
    travelling=columns.travelling,
    checksum=host.checksum,
    recode=categories.recode,
    sort=order.sort,
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
    from dask_exo.frame import cudf

    cudf.register()


for _dispatch in (_kernels, _places):
    _dispatch.register_lazy("cudf", _register_cudf)
