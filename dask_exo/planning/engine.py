"""Choose the engine of a computation: threads of this process, or Ray.

Starting a private Ray takes longer than a small computation. A computation is small if its inputs
are few bytes, in frames of this process or in files whose size is known. What follows from no
bytes runs on Ray: functions of the user, which may hold the interpreter lock, and GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dask.dataframe import Aggregation
from dask.sizeof import sizeof
from dask.utils import format_bytes

from dask_exo.config import Config
from dask_exo.dask_adapter import (
    ArrowDatasetEngine,
    CoreExpr,
    DataNode,
    DelayedExpr,
    FromMap,
    FromPandas,
    GraphNode,
    ReadParquetFSSpec,
    read_block_from_file,
    read_csv_block,
)
from dask_exo.execution.requests import ResourceBoundFunction
from dask_exo.planning.placement import fused_from, gpu_placement, walk_fused

FILES = 16  # that are opened at most: in an object store each takes a tenth of a second
ITEMS = 1000  # of a list or mapping that are searched for functions
OFFSET = 8  # bytes of a string beside its characters
LIBRARIES = {
    *("builtins", "collections", "dask", "dask_exo", "datetime", "decimal", "fsspec", "functools"),
    *("itertools", "math", "numpy", "operator", "pandas", "pyarrow", "toolz", "tlz"),
}
"""Packages whose functions take time proportional to the bytes of their arguments."""


class EngineChoice(NamedTuple):
    """The engine of a computation, "local" or "ray", and the reason."""

    engine: str
    reason: str


ANY_ENGINE = EngineChoice("", "no engine was chosen: a cluster was given")


def choose_engine(expr: Any, config: Config, *, running: bool) -> EngineChoice:
    """Choose the engine of an expression, or of another graph.

    ``running`` says that this process is connected to a Ray cluster.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import pandas as pd
    >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(1000)}), npartitions=2)
    >>> choose_engine(ddf.a.sum().expr, Config.current(), running=False).engine
    'local'
    >>> choose_engine(ddf.a.apply(print, meta=("a", int)).expr, Config.current(), running=False)
    EngineChoice(engine='ray', reason='it calls functions of its own, whose time is not known')
    """
    if config.engine != "auto":
        return EngineChoice(config.engine, f"exo.engine is {config.engine!r}")
    if running:
        return EngineChoice("ray", "this process is connected to Ray")
    if config.address is not None:
        return EngineChoice("ray", f"exo.address is {config.address!r}")
    if config.checkpoint_path is not None:
        return EngineChoice("ray", "checkpoints are on")
    if not isinstance(expr, CoreExpr):
        return EngineChoice("ray", "the size of its input is not known")
    return _choose(expr, config.local_limit)


def _choose(expr: CoreExpr, limit: int) -> EngineChoice:
    """Choose by the operations and the inputs of an expression."""
    nodes = {node._name: node for node in walk_fused(expr) if not fused_from(node)}.values()
    sources = [node for node in nodes if not node.dependencies()]
    measures = [one for one in map(_measure, sources) if one is not None]
    if not sources or len(measures) < len(sources):
        return EngineChoice("ray", "the size of its input is not known")
    if gpu_placement(expr):
        return EngineChoice("ray", "it uses GPUs")
    if any(_calls_user_code(operand) for node in nodes for operand in node.operands):
        return EngineChoice("ray", "it calls functions of its own, whose time is not known")
    total = 0
    for source, measure in zip(sources, measures, strict=True):
        try:
            nbytes = measure(source)
        except (OSError, pa.ArrowException):  # the task that reads it raises the reason
            nbytes = None
        if nbytes is None:
            return EngineChoice("ray", "the size of its input is not known")
        total += nbytes
        if total > limit:
            return EngineChoice("ray", f"more than {format_bytes(limit)} of input")
    return EngineChoice("local", f"about {format_bytes(total)} of input")


def _measure(source: Any) -> Callable[[Any], int | None] | None:
    """Return the function that estimates a source's bytes in memory, or None."""
    if isinstance(source, FromPandas):
        return _frame
    if isinstance(source, ReadParquetFSSpec) and source.engine is ArrowDatasetEngine:
        return _parquet
    if isinstance(source, FromMap) and getattr(source.func, "func", None) is read_csv_block:
        return _csv
    return _values if isinstance(source, DelayedExpr) else None


def _frame(source: Any) -> int:
    return int(np.sum(source.frame.memory_usage(deep=False)))  # a Series has one number


def _parquet(source: Any) -> int | None:
    """Estimate from the footers of files and the columns that are read."""
    info, parts = source._dataset_info, source._plan["parts"]
    if source._plan["empty"]:
        return 0
    pieces: dict[str, list[Any]] = {}
    for i in source._partitions:
        part = parts[i] if isinstance(parts[i], list) else [parts[i]]
        for one in part:
            path, groups = one["piece"][:2]
            if not isinstance(path, str):
                return None
            pieces.setdefault(path, []).append(groups)
    if len(pieces) > FILES:
        return None
    names = {*source.columns, *(info["index"] or ())}
    return sum(
        _read(_footer(info["fs"], path, info["checksum"]), groups, names)
        for path, groups in pieces.items()
    )


@lru_cache(16 * FILES)
def _footer(fs: Any, path: str, checksum: str) -> pq.FileMetaData:  # noqa: ARG001
    """Read the footer of a file, once for each ``checksum`` of its content."""
    with fs.open(path) as file:
        return pq.read_metadata(file)


def _read(found: pq.FileMetaData, wanted: list[Any], names: set[Any]) -> int:
    """Return the bytes of some columns of one file, in the row groups that are read."""
    every = any(groups is None or groups == [None] for groups in wanted)
    chosen = range(found.num_row_groups) if every else {g for groups in wanted for g in groups}
    return sum(
        _column(group.column(i))
        for group in map(found.row_group, chosen)
        for i in range(group.num_columns)
        if group.column(i).path_in_schema.split(".")[0] in names
    )


def _column(chunk: Any) -> int:
    """Estimate bytes in memory: numbers by type, strings by their bytes in the file."""
    width = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 8}.get(chunk.physical_type, OFFSET)
    text = chunk.total_uncompressed_size if chunk.physical_type.endswith("BYTE_ARRAY") else 0
    return int(chunk.num_values) * width + int(text)


def _csv(source: Any) -> int | None:
    """Return the bytes of the files: a number has about as many as in memory."""
    total = 0
    for block in source.iterables[0]:
        if getattr(block, "func", None) is not read_block_from_file:
            return None
        file, offset, nbytes = block.args[:3]
        if file.compression is not None:
            return None
        total += file.fs.size(file.path) - offset if nbytes is None else nbytes
    return total


def _values(source: Any) -> int | None:
    """Return the bytes of values that Dask has packed, such as those of ``isin``."""
    nodes = dict(source.obj.dask).values()
    return sizeof(list(nodes)) if all(isinstance(node, DataNode) for node in nodes) else None


def _calls_user_code(value: Any) -> bool:
    """Return whether an operand is or contains a function of a package not in `LIBRARIES`."""
    inside: Any = ()
    if isinstance(value, (ResourceBoundFunction, Aggregation)):
        return True
    if isinstance(value, partial):
        inside = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, GraphNode):
        given = getattr(value, "kwargs", {}).values()
        inside = (getattr(value, "func", None), *getattr(value, "args", ()), *given)
    elif isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, (list, tuple, set)):
        inside = value
    elif callable(value):
        module = getattr(value, "__module__", None) or type(value).__module__
        return module.partition(".")[0] not in LIBRARIES
    return any(map(_calls_user_code, islice(inside, ITEMS)))
