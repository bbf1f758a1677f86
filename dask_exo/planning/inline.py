"""Whether a computation is so small that starting a cluster for it would take longer.

That is so where it begins with few bytes, in frames of this process or in files of which that can
be seen, needs no GPU, and runs no functions of the user's own: what those take, no number of bytes
tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from dask.dataframe import Aggregation
from dask.sizeof import sizeof

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

FILES = 16  # so many are looked at: in an object store each takes a tenth of a second
ITEMS = 1000  # of a list or mapping: those with more hold no functions
OFFSET = 8  # bytes of a string beside its characters
LIBRARIES = {
    *("builtins", "collections", "dask", "dask_exo", "datetime", "decimal", "fsspec", "functools"),
    *("itertools", "math", "numpy", "operator", "pandas", "pyarrow", "toolz", "tlz"),
}
"""Packages whose functions take a time that goes with the bytes they get."""


def fits_in_process(expr: CoreExpr, limit: int) -> bool:
    """Whether threads of this process had better compute an expression.

    Parameters
    ----------
    expr : Expr
        Optimized.
    limit : int
        Bytes that all its sources together may have in memory, by an estimate.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import pandas as pd
    >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(1000)}), npartitions=2)
    >>> fits_in_process(ddf.a.sum().expr, 10_000), fits_in_process(ddf.a.sum().expr, 1000)
    (True, False)
    """
    nodes = {node._name: node for node in walk_fused(expr) if not fused_from(node)}.values()
    sources = [node for node in nodes if not node.dependencies()]
    measures = [one for one in map(_measure, sources) if one is not None]
    if not sources or len(measures) < len(sources):
        return False
    if gpu_placement(expr) or any(_runs_others(op) for node in nodes for op in node.operands):
        return False
    total = 0
    for source, measure in zip(sources, measures, strict=True):
        try:
            nbytes = measure(source)
        except (OSError, pa.ArrowException):  # whoever reads it will say why it cannot be read
            return False
        if nbytes is None or (total := total + nbytes) > limit:
            return False
    return True


def _measure(source: Any) -> Callable[[Any], int | None] | None:
    """What tells the bytes in memory of a source, or None if it cannot; None if nothing can."""
    if isinstance(source, FromPandas):
        return _frame
    if isinstance(source, ReadParquetFSSpec) and source.engine is ArrowDatasetEngine:
        return _parquet
    if isinstance(source, FromMap) and getattr(source.func, "func", None) is read_csv_block:
        return _csv
    return _values if isinstance(source, DelayedExpr) else None


def _frame(source: Any) -> int:
    return int(source.frame.memory_usage(deep=False).sum())


def _parquet(source: Any) -> int | None:
    """By what the files say of those columns that are read."""
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
    """The footer of a file, read once; ``checksum`` tells apart what the path has held."""
    with fs.open(path) as file:
        return pq.read_metadata(file)


def _read(found: pq.FileMetaData, wanted: list[Any], names: set[Any]) -> int:
    """Bytes of some columns of one file, in all row groups that any of its pieces has."""
    every = any(groups is None or groups == [None] for groups in wanted)
    chosen = range(found.num_row_groups) if every else {g for groups in wanted for g in groups}
    return sum(
        _column(group.column(i))
        for group in map(found.row_group, chosen)
        for i in range(group.num_columns)
        if group.column(i).path_in_schema.split(".")[0] in names
    )


def _column(chunk: Any) -> int:
    """Bytes in memory: of numbers by their kind, of strings at least what the file has of them."""
    width = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 8}.get(chunk.physical_type, OFFSET)
    text = chunk.total_uncompressed_size if chunk.physical_type.endswith("BYTE_ARRAY") else 0
    return int(chunk.num_values) * width + int(text)


def _csv(source: Any) -> int | None:
    """As many as there are in the files: a number is about as long as it is in memory."""
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
    """Values that Dask has packed, as those of ``isin``."""
    nodes = dict(source.obj.dask).values()
    return sizeof(list(nodes)) if all(isinstance(node, DataNode) for node in nodes) else None


def _runs_others(value: Any) -> bool:
    """Whether an operand is, or has in it, a function of neither Dask nor those it builds on."""
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
    return any(map(_runs_others, islice(inside, ITEMS)))
