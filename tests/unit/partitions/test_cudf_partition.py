"""Partitions of cudf, of which a module stands in that has the same few names.

`.ci/cudf_sources.py` compares these with the sources of cudf.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_exo.dask_adapter import get_collection_type
from dask_exo.errors import DeviceOperationError
from dask_exo.partitions import cudf_partition, protocol
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.wire_format import WireTable
from dask_exo.planning.partitioners import RowPartitioner
from dask_exo.planning.placement import _moves_to_gpu
from dask_exo.testing import strict_cupy
from tests._data import MODULE, inline

SPILLING = "cudf.core.buffer.spill_manager"


class Values:
    """Series or index of a GPU: no Series of pandas, and with few of its methods."""

    ndim = 1

    def __init__(self, on_host: Any) -> None:
        self.on_host = on_host

    dtype = property(lambda self: self.on_host.dtype)
    name = property(lambda self: self.on_host.name)
    names = property(lambda self: self.on_host.names)

    @names.setter
    def names(self, names: Any) -> None:
        self.on_host.names = names

    @property
    def values(self) -> Any:
        if self.on_host.dtype.kind not in "iuf":
            raise TypeError("String Arrays is not yet implemented in cudf")
        return arrays.module("cupy").asarray(self.on_host.to_numpy())

    def astype(self, dtype: Any) -> Values:
        return Values(self.on_host.astype(dtype))

    def sum(self) -> Any:
        return self.on_host.sum()

    def __mod__(self, other: int) -> Values:
        return Values(self.on_host % other)

    def reset_index(self, drop: bool) -> Values:
        return Values(self.on_host.reset_index(drop=drop))

    def __len__(self) -> int:
        return len(self.on_host)

    def get_level_values(self, level: int) -> Values:
        return Values(self.on_host.get_level_values(level))


class DataFrame:
    """Frame of a GPU with the methods of cudf that are used: no frame of pandas."""

    came = 0

    def __init__(self, on_host: Any) -> None:
        self.on_host = pd.DataFrame(on_host)

    columns = property(lambda self: self.on_host.columns)
    dtypes = property(lambda self: self.on_host.dtypes)
    shape = property(lambda self: self.on_host.shape)
    index = property(lambda self: Values(self.on_host.index))
    ndim = 2
    groupby = merge = mean = None  # Dask knows frames by these names

    @columns.setter
    def columns(self, labels: Any) -> None:
        self.on_host.columns = labels

    def __len__(self) -> int:
        return len(self.on_host)

    def __getitem__(self, key: Any) -> Any:
        on_gpu = hasattr(key, "__cuda_array_interface__")
        found = self.on_host[arrays.host(key) if on_gpu else key]
        return DataFrame(found) if isinstance(found, pd.DataFrame) else Values(found)

    def __setitem__(self, label: Any, values: Values) -> None:
        self.on_host[label] = values.on_host.to_numpy()

    def copy(self, deep: bool = True) -> DataFrame:
        return DataFrame(self.on_host.copy(deep=deep))

    def head(self, n: int) -> DataFrame:
        return DataFrame(self.on_host.head(n))

    def take(self, indices: Any) -> DataFrame:
        return DataFrame(self.on_host.take(arrays.host(indices)))

    def astype(self, dtype: Any, errors: str = "raise") -> DataFrame:
        return DataFrame(self.on_host.astype(dtype, errors=errors))

    def reset_index(self, drop: bool) -> DataFrame:
        return DataFrame(self.on_host.reset_index(drop=drop))

    def set_index(self, keys: Any) -> DataFrame:
        return DataFrame(self.on_host.set_index(keys))

    def drop(self, columns: Any) -> DataFrame:
        return DataFrame(self.on_host.drop(columns=columns))

    def assign(self, **kwargs: Any) -> DataFrame:
        plain = {name: getattr(each, "on_host", each) for name, each in kwargs.items()}
        return DataFrame(self.on_host.assign(**plain))

    def to_arrow(self, preserve_index: bool | None = None) -> pa.Table:
        assert preserve_index is False, "cudf renames labels of rows"
        assert all(isinstance(label, str) for label in self.columns), "cudf makes them strings"
        return pa.Table.from_pandas(self.on_host, preserve_index=False)

    @classmethod
    def from_arrow(cls, table: pa.Table) -> DataFrame:
        DataFrame.came += 1
        return cls(table.replace_schema_metadata().to_pandas())


class Resource:
    """Memory resource of RMM."""

    def __init__(self, upstream_mr: Any = None, allocation_limit: int | None = None) -> None:
        self.upstream_mr, self.allocation_limit = upstream_mr, allocation_limit


def rmm() -> ModuleType:
    """Make a stand-in for the memory resources of RMM."""
    current: list[Any] = []
    kinds = "CudaMemoryResource", "CudaAsyncMemoryResource", "LimitingResourceAdaptor"
    mr = SimpleNamespace(
        available_device_memory=lambda: (90, 100),
        get_current_device_resource=lambda: current[-1],
        set_current_device_resource=current.append,
        **{name: type(name, (Resource,), {}) for name in kinds},
    )
    current.append(mr.CudaMemoryResource())
    made = ModuleType("rmm")
    made.__dict__["mr"] = mr
    return made


def spilling() -> ModuleType:
    """Make a stand-in for cudf's module of this name, after the first frame was made."""
    made = ModuleType(SPILLING)
    made.manager = made.on_demand = None  # type: ignore[attr-defined]
    made.__dict__.update(
        SpillManager=object,
        get_global_manager=lambda: made.manager,
        set_global_manager=lambda manager: setattr(made, "manager", manager),
        set_spill_on_demand_globally=lambda: setattr(made, "on_demand", made.manager),
    )
    return made


@pytest.fixture(scope="module")
def cudf() -> Iterator[ModuleType]:
    modules = "cudf", "dask_cudf", "rmm", SPILLING, "cupy", "cupy.cuda", "cupyx"
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    if MODULE == "numpy":
        strict_cupy.install()
    made = ModuleType("cudf")
    kinds = [DataFrame, *(type(name, (Values,), {}) for name in ("Series", "Index"))]
    for kind in kinds:
        kind.__module__ = "cudf"
        setattr(made, kind.__name__, kind)
    sys.modules["cudf"] = made
    sys.modules["rmm"] = rmm()
    sys.modules[SPILLING] = spilling()
    sys.modules["dask_cudf"] = ModuleType("dask_cudf")
    # as dask_cudf registers them
    frames = dask.dataframe.dispatch
    frames.get_parallel_type.register(DataFrame, lambda _: dd.DataFrame)
    get_collection_type.register(DataFrame, lambda _: dd.DataFrame)
    get_collection_type.register(Values, lambda _: dd.Index)
    frames.make_meta_dispatch.register(DataFrame, lambda frame, index=None: frame.head(0))
    frames.meta_nonempty.register(
        DataFrame, lambda frame: DataFrame(frames.meta_nonempty(frame.on_host))
    )
    frames.hash_object_dispatch.register(
        DataFrame,
        lambda frame, index=True: Values(pd.util.hash_pandas_object(frame.on_host, index=index)),
    )
    frames.concat_dispatch.register(
        DataFrame,
        lambda parts, *args, **options: DataFrame(pd.concat([each.on_host for each in parts])),
    )
    with dask.config.set({"dataframe.convert-string": False}):
        yield made
    for name in modules:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def rows(n: int = 300) -> pd.DataFrame:
    random = np.random.default_rng(4)
    frame = pd.DataFrame({"k": random.integers(0, 30, n), "x": random.random(n)})
    return frame.assign(s=pd.Series(random.choice(["a", "bb"], n), dtype="str"))


def test_partitions_lie_on_a_device(cudf: ModuleType) -> None:
    assert protocol.on_device(cudf.DataFrame({"a": [1]}))
    assert not protocol.on_device(pd.DataFrame({"a": [1]}))


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_memory_is_pooled_and_spilled_unless_the_program_has_chosen(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rmm", made := rmm())
    monkeypatch.setitem(sys.modules, SPILLING, spills := spilling())
    memory = made.__dict__["mr"]
    with dask.config.set({"exo.gpu.per-task": share}):
        cudf_partition.prepare_memory()
        chosen, manager = memory.get_current_device_resource(), spills.manager
        cudf_partition.prepare_memory()
    assert memory.get_current_device_resource() is chosen
    assert spills.manager is spills.on_demand is manager is not None
    if share < 1:
        assert chosen.allocation_limit == 25
        chosen = chosen.upstream_mr
    assert type(chosen) is memory.CudaAsyncMemoryResource


def test_an_expression_of_dask_cudf_moves_partitions_there(cudf: ModuleType) -> None:
    names = {"_meta": cudf.DataFrame(rows(0)), "dependencies": lambda self: [rows(9)]}
    assert _moves_to_gpu(type("ToCudfBackend", (), {**names, "__module__": "dask_cudf._expr"})())
    assert not _moves_to_gpu(type("Elemwise", (), {**names, "__module__": "dask.dataframe"})())


@pytest.mark.parametrize("labels", [[0, 1, 2], [("a", 1), ("b", 2), ("a", 2)], ["index", "k", "0"]])
@pytest.mark.parametrize("names", [[None], ["index"], [None, "two"]])
def test_labels_come_back(cudf: ModuleType, labels: list[Any], names: list[Any]) -> None:
    frame = rows(6).set_axis(labels, axis=1)
    if len(names) > 1:
        frame.index = pd.MultiIndex.from_product([[0, 1], ["x", "y", "z"]])
    frame.index.names = names
    kernels = protocol.kernels(cudf.DataFrame(frame))
    wired = kernels.to_wire(cudf.DataFrame(frame), np.arange(6)[::-1])
    pd.testing.assert_frame_equal(wired.to_frame().on_host, frame.iloc[::-1])


def test_changed_strings_and_nulls_change_the_checksum(cudf: ModuleType) -> None:
    frame = rows(20)
    kernels = protocol.kernels(cudf.DataFrame(frame))
    known = kernels.checksum(cudf.DataFrame(frame), ["s", "x"])
    assert known == kernels.checksum(cudf.DataFrame(frame.iloc[::-1]), ["s", "x"])
    for changed in (
        frame.assign(s="c"),
        frame.iloc[1:],
        frame.assign(x=frame.x.mask(frame.x > 0.5)),
    ):
        assert kernels.checksum(cudf.DataFrame(changed), ["s", "x"]) != known


@pytest.mark.parametrize("ignore_index", [False, True])
def test_rows_are_split_there_and_travel_as_arrow(cudf: ModuleType, ignore_index: bool) -> None:
    frame = rows()
    split = RowPartitioner(column=["k"], count=5, keys=("k",), ignore_index=ignore_index)
    (mine,), sent = split.cut([cudf.DataFrame(frame)], [range(5)])
    (theirs,), _ = split.cut([frame], [range(5)])
    assert isinstance(mine.rows, WireTable)
    for r in range(5):
        found, arrived = split.assemble([mine, mine], r, r)
        expected, _ = split.assemble([theirs, theirs], r, r)
        assert type(found) is cudf.DataFrame
        pd.testing.assert_frame_equal(found.on_host, expected, check_dtype=False)
    assert arrived.rows <= 2 * sent.rows


@pytest.mark.parametrize("algorithm", ["simple", "push"])
def test_a_shuffle_ends_in_frames_of_cudf(cudf: ModuleType, algorithm: str) -> None:
    frame = rows()
    parts = [cudf.DataFrame(frame.iloc[i : i + 60]) for i in range(0, 300, 60)]
    there = dd.from_map(lambda part: part, parts, meta=parts[0].head(0))
    scheduler = inline(2)
    with dask.config.set({"scheduler": scheduler, "exo.shuffle.algorithm": algorithm}):
        outputs = dask.compute(*there.shuffle("k", npartitions=4).partitions)
    assert all(type(output) is cudf.DataFrame for output in outputs)
    keys = [set(output.on_host.k) for output in outputs]
    assert sum(map(len, keys)) == len(set(frame.k))
    found = pd.concat([output.on_host for output in outputs]).sort_index()
    pd.testing.assert_frame_equal(found, frame, check_dtype=False)


def test_our_sort_says_what_to_take_instead(cudf: ModuleType) -> None:
    message = r"sort_values by \['k'\].*ddf.sort_values"
    with pytest.raises(DeviceOperationError, match=message):
        dask.compute(
            dd.from_map(cudf.DataFrame, [rows(9)], meta=cudf.DataFrame(rows(0))).exo.sort_values(
                "k"
            ),
            scheduler=inline(2),
        )
