"""GPU frames: labelled columns in GPU memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import interop, reductions, transform
from dask_exo.partitions.gpu_frames.column import NUMBERS, Column
from dask_exo.partitions.gpu_frames.elementwise import refuse
from dask_exo.partitions.gpu_frames.frame_values import ValuesOfFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex, from_pandas, numbered
from dask_exo.partitions.gpu_frames.series import DeviceSeries

_FIELDS = frozenset({"arrays", "labels", "_index", "index", "columns"})


class DeviceFrame(ValuesOfFrame):
    """Frame in GPU memory with the interface of a pandas DataFrame.

    Labels of columns are an index of pandas on the host.

    Parameters
    ----------
    data : DataFrame or dict, optional
        Of columns on the host, which are copied to numpy, which stands for the device; or a dict of
        `DeviceSeries`, all under the same labels.
    index, columns, dtype
        As of `pandas.DataFrame`.

    Attributes
    ----------
    arrays : list of Column
        (c,) columns of n rows each.
    labels : Index
        (c,) their labels.
    """

    def __init__(
        self, data: Any = None, index: Any = None, columns: Any = None, dtype: Any = None
    ) -> None:
        if isinstance(data, dict) and any(isinstance(v, DeviceSeries) for v in data.values()):
            made = _of_series(data)
        elif isinstance(data, DeviceFrame):
            made = data
        else:
            frame = pd.DataFrame(data, index=index, columns=columns, dtype=dtype)
            made, index, columns = DeviceFrame.from_pandas(frame, arrays.HOST), None, None
        self.arrays, self.labels, self._index = list(made.arrays), made.labels, made.index
        if columns is not None:
            chosen = self[list(columns)]
            self.arrays, self.labels = chosen.arrays, chosen.labels
        if index is not None:
            self.index = index

    @classmethod
    def of(cls, columns: Sequence[Column], labels: pd.Index, index: DeviceIndex) -> DeviceFrame:
        """Make a frame of columns and labels."""
        made = cls.__new__(cls)
        made.arrays, made.labels, made._index = list(columns), labels, index
        return made

    @classmethod
    def from_pandas(cls, frame: pd.DataFrame, module: str) -> DeviceFrame:
        """Copy a pandas frame to the GPU.

        Raises
        ------
        DeviceTypeError
            A column has no dtype for it; the message names the column.
        """
        xp = arrays.module(module)
        columns = []
        for place, label in enumerate(frame.columns):
            try:
                columns.append(interop.from_pandas(frame.iloc[:, place], xp))
            except TypeError as error:
                error.args = (f"column {label!r}: {error}",)
                raise
        return cls.of(columns, frame.columns, from_pandas(frame.index, module))

    @classmethod
    def from_arrow(cls, table: Any, module: str) -> DeviceFrame:
        """Copy an Arrow table to the GPU, with a default index."""
        xp = arrays.module(module)
        columns = [interop.from_arrow(column, xp) for column in table.columns]
        return cls.of(columns, pd.Index(table.column_names), numbered(table.num_rows, module))

    def __reduce__(self) -> tuple[Any, ...]:
        from dask_exo.partitions.gpu.shuffle import begin, unpacked

        return unpacked, tuple(begin(self)())

    def to_pandas(self) -> pd.DataFrame:
        """Copy to pandas, on the host."""
        index = self._index.to_pandas()
        columns = {
            i: pd.Series(interop.to_array(column), index, column.dtype)
            for i, column in enumerate(self.arrays)
        }
        made = pd.DataFrame(columns, index=index)
        made.columns = self.labels
        return made

    def to_arrow(self) -> Any:
        """Copy the columns, without the index, to an Arrow table."""
        import pyarrow as pa

        columns = [interop.to_arrow(column) for column in self.arrays]
        return pa.table(columns, names=[str(label) for label in self.labels])

    @property
    def _constructor(self) -> type[DeviceFrame]:
        return DeviceFrame

    @property
    def _constructor_sliced(self) -> type[DeviceSeries]:
        return DeviceSeries

    ndim = 2

    @property
    def columns(self) -> pd.Index:
        """(c,) labels of the columns."""
        return self.labels

    @columns.setter
    def columns(self, labels: Any) -> None:
        labels = labels if isinstance(labels, pd.Index) else pd.Index(labels)
        if len(labels) != len(self.arrays):
            raise ValueError(f"{len(labels)} labels were given for {len(self.arrays)} columns")
        self.labels = labels

    @property
    def dtypes(self) -> pd.Series:
        """(c,) dtypes of the columns, on the host."""
        return pd.Series([c.dtype for c in self.arrays], index=self.labels, dtype=object)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self), len(self.arrays)

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self) * len(self.arrays)

    @property
    def axes(self) -> list[Any]:
        """Index and labels of the columns."""
        return [self._index, self.labels]

    @property
    def nbytes(self) -> int:
        """Bytes in memory, with the index."""
        return sum(column.nbytes for column in self.arrays) + self._index.nbytes

    def memory_usage(self, index: bool = True, deep: bool = False) -> pd.Series:  # noqa: ARG002, FBT001, FBT002
        """Return the bytes of each column, on the host."""
        sizes = pd.Series([column.nbytes for column in self.arrays], index=self.labels)
        return pd.concat([pd.Series({"Index": self._index.nbytes}), sizes]) if index else sizes

    @property
    def values(self) -> Any:
        """(n, c) numbers on the GPU."""
        xp = arrays.module(self.module)
        if any(c.kind not in NUMBERS or c.nullable for c in self.arrays):
            return self.to_pandas().to_numpy()
        if not self.arrays:
            return xp.zeros((len(self), 0))
        return xp.stack([column.values for column in self.arrays], axis=1)

    def to_numpy(self, *args: Any, **options: Any) -> np.ndarray:
        """Copy the values to the host."""
        return self.to_pandas().to_numpy(*args, **options)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.to_pandas(), dtype=dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or len(inputs) != 1:
            return NotImplemented
        return self.each(lambda column: transform.ufunc(column, ufunc.__name__))

    def __repr__(self) -> str:
        return f"DeviceFrame on {self.module}:\n{self.to_pandas()!r}"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.labels)

    def __contains__(self, label: Any) -> bool:
        return label in self.labels

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS and name in self.labels:
            return self[name]
        return refuse(self, pd.DataFrame, name)

    def items(self) -> Iterator[tuple[Any, DeviceSeries]]:
        """Yield labels and columns."""
        for label, column in zip(self.labels, self.arrays, strict=True):
            yield label, DeviceSeries.of(column, self._index, label)

    def groupby(self, by: Any = None, **options: Any) -> Any:
        """Group rows; see `DeviceGroupBy`."""
        from dask_exo.partitions.gpu_frames.groupby import DeviceGroupBy

        return DeviceGroupBy(self, by, **options)

    def merge(self, right: Any, how: Any = "inner", on: Any = None, **options: Any) -> DeviceFrame:
        """Join with another frame; see `dask_exo.partitions.gpu_frames.merge.merge`."""
        from dask_exo.partitions.gpu_frames.merge import merge

        return merge(self, right, how, on, **options)

    def join(
        self,
        other: Any,
        on: Any = None,
        how: Any = "left",
        lsuffix: str = "",
        rsuffix: str = "",
        **_: Any,
    ) -> DeviceFrame:
        """Join with another frame on its index."""
        keys: dict[str, Any] = {"left_index": True} if on is None else {"left_on": on}
        suffixes = (lsuffix, rsuffix)
        return self.merge(other, how, right_index=True, suffixes=suffixes, **keys)

    def quantile(
        self,
        q: Any = 0.5,
        *,
        interpolation: Any = "linear",
        numeric_only: Any = False,
        **_: Any,
    ) -> Any:
        """Compute quantiles of each column, on the host."""
        frame = self.select_dtypes("number") if numeric_only else self
        found = {i: s.quantile(q, interpolation) for i, (_, s) in enumerate(frame.items())}
        many = not pd.api.types.is_scalar(q)
        made = pd.DataFrame(found) if many else pd.Series(found, name=q)
        return made.set_axis(frame.labels, axis=1 if many else 0)

    def agg(self, func: Any, **_: Any) -> Any:
        """Reduce columns by names of aggregations, on the host."""
        if isinstance(func, str):
            return getattr(self, func)()
        if isinstance(func, dict):
            found = {label: self[label].agg(one) for label, one in func.items()}
            many = any(isinstance(one, pd.Series) for one in found.values())
            return pd.DataFrame(found) if many else pd.Series(found)
        return pd.DataFrame({label: series.agg(list(func)) for label, series in self.items()})

    aggregate = agg

    def describe(self, percentiles: Any = None, **options: Any) -> pd.DataFrame:
        """Summarize columns of numbers, on the host."""
        chosen = self.select_dtypes("number")
        frame = chosen if len(chosen.labels) else self
        found = [series.describe(percentiles, **options) for _, series in frame.items()]
        return pd.concat(found, axis=1)


def _of_series(data: dict[Any, Any]) -> DeviceFrame:
    first = next(v for v in data.values() if isinstance(v, DeviceSeries))
    made = DeviceFrame.of([], pd.Index([], dtype=object), first.index)
    for value in data.values():
        made.arrays.append(made._column(value))
    made.labels = pd.DataFrame({label: [] for label in data}).columns
    return made


def _reduction(name: str) -> Callable[..., Any]:
    def run(self: DeviceFrame, axis: Any = 0, numeric_only: Any = None, **options: Any) -> Any:
        if axis not in (0, "index", None):
            raise DeviceOperationError(
                f"{name}(axis=1) does not exist on a device: add up columns by name, or use "
                f".to_backend('pandas')"
            )
        frame = self.select_dtypes(["number", "bool"]) if numeric_only is True else self
        if name in ("any", "all") and options.get("bool_only"):
            frame = self.select_dtypes("bool")
        found = [getattr(series, name)(**options) for _, series in frame.items()]
        dtype = _result_dtype(name, frame.arrays)
        return pd.Series(found, index=frame.labels, dtype=dtype)

    run.__doc__ = f"{reductions.REDUCTIONS[name].__doc__} Of each column, on the host."
    return run


def _result_dtype(name: str, columns: Sequence[Column]) -> Any:
    """Return the dtype that pandas gives a Series of results."""
    ones = {
        i: pd.Series([1] if column.kind in NUMBERS else [None], dtype=column.dtype)
        for i, column in enumerate(columns)
    }
    try:
        return getattr(pd.DataFrame(ones), name)().dtype if ones else None
    except TypeError:
        return object


for _name in reductions.REDUCTIONS:
    setattr(DeviceFrame, _name, _reduction(_name))
