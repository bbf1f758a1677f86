"""Placement: where a computation runs, on threads or on Ray, and which of its tasks need a GPU.

Starting a private Ray takes longer than a small computation. A computation is small if its inputs
are few bytes, in frames of this process or in files whose size is known. What no bytes tell, such
as the time that a function of the user takes, is found out on threads: see
`dask_exo.execution.admission`. Large inputs, GPUs and requests of resources need Ray.

The metadata of an expression tells whether its partitions are on a GPU. Tasks are found by the
names of expressions. Inner tasks of a layer, such as the steps of a tree, are placed with their
inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    Alias,
    ArrowDatasetEngine,
    CoreExpr,
    DataNode,
    DelayedExpr,
    FromMap,
    FromPandas,
    Fused,
    FusedIO,
    GraphNode,
    MapPartitions,
    ReadParquetFSSpec,
    Task,
    TaskRef,
    ToBackend,
    read_block_from_file,
    read_csv_block,
)
from dask_exo.execution.requests import ResourceBoundFunction
from dask_exo.partitions import protocol
from dask_exo.planning.graph_passes import Graph, Key, expand, inner_tasks

FILES = 16  # that are opened at most: in an object store each takes a tenth of a second
ITEMS = 1000  # of a list or mapping that are searched for functions
OFFSET = 8  # bytes of a string beside its characters
LIBRARIES = {
    *("builtins", "collections", "dask", "dask_exo", "datetime", "decimal", "fsspec", "functools"),
    *("itertools", "math", "numpy", "operator", "pandas", "pyarrow", "toolz", "tlz"),
}
"""Packages whose functions take time proportional to the bytes of their arguments."""

Places = Mapping[str, bool]
"""Name of an expression → whether its partitions are on a GPU."""


def gpu_placement(expr: CoreExpr) -> Places:
    """Find the expressions whose partitions are on a GPU; return nothing if all are on hosts.

    Inferring metadata takes time, so the expressions that can move partitions to a GPU are checked
    first.
    """
    nodes = list(walk_fused(expr))
    if not any(_moves_to_gpu(node) for node in nodes):
        return {}
    places = {node._name: _on_device(node) for node in nodes}
    return {name: on_gpu for name, on_gpu in places.items() if on_gpu is not None}


def unfuse_mixed(graph: Graph, places: Places) -> Graph:
    """Unfuse the tasks that consist of tasks with and without a GPU."""
    while mixed := gpu_tasks(graph, places, {})[1]:
        graph = expand(graph, mixed)
    return graph


def gpu_tasks(
    graph: Graph, places: Places, inputs_on_gpu: Mapping[Key, bool]
) -> tuple[set[Key], set[Key]]:
    """Return the tasks that need a GPU, and the fused ones in which only some inner tasks do.

    ``inputs_on_gpu`` tells which values of other tasks are on a GPU.
    """
    gpu_keys: set[Key] = set()
    mixed: set[Key] = set()
    on_gpu = _on_gpu(graph, places, inputs_on_gpu) if places else {}
    for key, node in graph.items() if places else ():
        if not isinstance(node, Task):
            continue
        inner_keys: set[Key] = set()
        if inner := inner_tasks(node):
            _, _, names, *values = node.args
            inputs = {
                name: any(on_gpu[source] for source in _sources(value))
                for name, value in zip(names, values, strict=True)
            }
            inner_keys, _ = gpu_tasks(inner, places, inputs)
            if 0 < len(inner_keys) < sum(isinstance(task, Task) for task in inner.values()):
                mixed.add(key)
        if inner_keys or on_gpu[key] or any(on_gpu[source] for source in node.dependencies):
            gpu_keys.add(key)
    return gpu_keys, mixed


def _sources(value: Any) -> Collection[Key]:
    """Return the tasks that an argument of a fused task reads."""
    return [value.key] if isinstance(value, TaskRef) else getattr(value, "dependencies", ())


def walk_fused(expr: CoreExpr) -> Iterator[Any]:
    """Yield an expression, all below it, and the expressions that were fused into them."""
    nodes = list(expr.walk())
    for node in nodes:
        yield node
        nodes += fused_from(node)


def fused_from(node: Any) -> Sequence[Any]:
    """Return the expressions that were fused into one; nothing if it is not fused."""
    if isinstance(node, FusedIO):
        return [node.operand("_expr")]
    return node.exprs if isinstance(node, Fused) else ()


def _moves_to_gpu(node: Any) -> bool:
    """Return whether an expression creates partitions on a GPU, or moves them there."""
    if isinstance(node, MapPartitions):  # whose function may have to be called to know more
        return protocol.on_device(node.operand("meta"))
    # dask_cudf moves partitions by an expression of its own
    may_move = isinstance(node, ToBackend) or type(node).__module__.startswith("dask_cudf")
    return bool((may_move or not node.dependencies()) and _on_device(node))


def _on_device(node: Any) -> bool | None:
    """Return whether the partitions of one expression are on a GPU; None if it is unknown."""
    try:
        return protocol.on_device(node._meta)
    except Exception:  # noqa: BLE001  it has no metadata; its tasks are placed with their inputs
        return None


def _on_gpu(graph: Graph, places: Places, inputs_on_gpu: Mapping[Key, bool]) -> dict[Key, bool]:
    """Return for each task whether its value is on a GPU: as its expression, or as its inputs."""
    on_gpu = dict(inputs_on_gpu)
    for key, alias in graph.items():  # a persisted value has the name of an expression of before
        if isinstance(alias, Alias) and (known := _known(places, key)) is not None:
            target = graph.get(alias.target)
            if target is not None and not target.dependencies:
                on_gpu.setdefault(alias.target, known)
    stack = list(graph)
    while stack:
        key = stack[-1]
        node = graph.get(key)
        if key in on_gpu or node is None:
            on_gpu.setdefault(key, False)
            stack.pop()
            continue
        known = _known(places, key)
        missing = [source for source in node.dependencies if source not in on_gpu]
        if known is not None and not isinstance(node, Alias):
            on_gpu[key] = known
        elif missing:
            stack.extend(missing)
        else:
            on_gpu[key] = any(on_gpu[source] for source in node.dependencies)
    return on_gpu


def _known(places: Places, key: Key) -> bool | None:
    return places.get(key[0]) if isinstance(key, tuple) and len(key) == 2 else None


class EngineChoice(NamedTuple):
    """The engine of a computation, "local" or "ray", and the reason.

    One that ``may_move`` starts on threads, and moves to Ray when that is worth it.
    """

    engine: str
    reason: str
    may_move: bool = False

    def __str__(self) -> str:
        """Return where it runs and why; nothing if no engine was chosen."""
        if not self.engine:
            return ""
        return f"on {'Ray' if self.engine == 'ray' else 'threads'}, since {self.reason}"


UNKNOWN = "the size of its input is not known"
ANY_ENGINE = EngineChoice("", "a cluster was given")


def choose_engine(
    expr: Any, config: Config, *, limit: int, running: bool, movable: bool = True
) -> EngineChoice:
    """Choose the engine of an expression, or of another graph.

    Inputs of more than ``limit`` bytes need Ray. ``running`` says that this process is connected to
    a Ray cluster. A computation that is not ``movable`` starts on Ray unless it is known to be
    small.
    """
    if config.engine != "auto":
        return EngineChoice(config.engine, f"exo.engine is {config.engine!r}")
    needs_ray = {
        "this process is connected to Ray": running,
        f"exo.address is {config.address!r}": config.address is not None,
        "exo.object-store-memory or exo.num-gpus is set": (
            config.object_store_memory is not None or config.num_gpus is not None
        ),
        "checkpoints are on": config.checkpoint_path is not None,
    }
    for reason, holds in needs_ray.items():
        if holds:
            return EngineChoice("ray", reason)
    known, doubt = 0, UNKNOWN
    if isinstance(expr, CoreExpr):
        if gpu_placement(expr):
            return EngineChoice("ray", "it uses GPUs")
        known, doubt = _examine(expr, limit)
    if known > limit:
        return EngineChoice("ray", f"its input has more than {format_bytes(limit)}")
    if doubt and not movable:
        return EngineChoice("ray", doubt)
    return EngineChoice("local", doubt or f"its input has about {format_bytes(known)}", movable)


def _examine(expr: CoreExpr, limit: int) -> tuple[int, str]:
    """Return the known bytes of an expression's inputs, and why its work may be larger, if so.

    Nothing more is examined once there are more than ``limit`` bytes.
    """
    nodes = {node._name: node for node in walk_fused(expr) if not fused_from(node)}.values()
    sources = [node for node in nodes if not node.dependencies()]
    known, doubt = 0, "" if sources else UNKNOWN
    for source in sources:
        nbytes = None
        with contextlib.suppress(OSError, pa.ArrowException):  # raised by the task that reads it
            nbytes = _measure(source)
        if nbytes is None:
            doubt = UNKNOWN
        elif (known := known + nbytes) > limit:
            return known, doubt
    if not doubt and any(_calls_user_code(operand) for node in nodes for operand in node.operands):
        doubt = "it calls functions of its own, whose time is not known"
    return known, doubt


def _measure(source: Any) -> int | None:
    """Estimate a source's bytes in memory; None if that is not possible."""
    if isinstance(source, FromPandas):
        return int(np.sum(source.frame.memory_usage(deep=False)))  # a Series has one number
    if isinstance(source, ReadParquetFSSpec) and source.engine is ArrowDatasetEngine:
        return parquet_bytes(source)
    if isinstance(source, FromMap) and getattr(source.func, "func", None) is read_csv_block:
        return _csv(source)
    return _values(source) if isinstance(source, DelayedExpr) else None


def parquet_bytes(source: Any) -> int | None:
    """Estimate bytes in memory from the footers of some files and the columns that are read."""
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
    names = {*source.columns, *(info["index"] or ())}
    chosen = list(pieces)[:: -(-len(pieces) // FILES)]
    total = sum(
        _read(_footer(info["fs"], path, info["checksum"]), pieces[path], names) for path in chosen
    )
    return total * len(pieces) // len(chosen)


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
