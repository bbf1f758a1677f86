"""Every private name of Dask that dask_exo needs, in one place.

Nothing else in the package imports a private module of Dask or distributed. When one of
these names moves, ``tests/unit/test_dask_adapter.py`` fails and says which.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType, SimpleNamespace
from typing import Any

import dask
import dask._expr
import dask.base
import dask.dataframe.dask_expr._expr
from dask._collections import new_collection
from dask._dispatch import get_collection_type
from dask._expr import Expr as CoreExpr
from dask._expr import LLGExpr
from dask._task_spec import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    convert_legacy_graph,
)
from dask._task_spec import _execute_subgraph as execute_subgraph
from dask.array.core import apply_infer_dtype, concatenate3
from dask.array.rechunk import old_to_new
from dask.array.utils import compute_meta
from dask.base import collections_to_expr, get_annotations, named_schedulers
from dask.bytes.core import read_block_from_file
from dask.dataframe.core import _concat as concat_partitions
from dask.dataframe.dask_expr._accessor import FunctionMap, PropertyMap
from dask.dataframe.dask_expr._backends import dataframe_creation_dispatch as creation
from dask.dataframe.dask_expr._expr import (
    Blockwise,
    DropDuplicatesBlockwise,
    Expr,
    Fused,
    Index,
    MapPartitions,
    PartitionsFiltered,
    Projection,
    ResetIndex,
    ToBackend,
    determine_column_projection,
    emulate,
    is_valid_blockwise_op,
    optimize_blockwise_fusion,
)
from dask.dataframe.dask_expr._expr import Partitions as SelectPartitions
from dask.dataframe.dask_expr._expr import _DelayedExpr as DelayedExpr
from dask.dataframe.dask_expr._groupby import (
    DecomposableGroupbyAggregation,
    GroupByChunk,
    SingleAggregation,
)
from dask.dataframe.dask_expr._groupby import _mean_chunk as mean_chunk
from dask.dataframe.dask_expr._merge import BlockwiseMerge, BroadcastJoin, HashJoinP2P, Merge
from dask.dataframe.dask_expr._quantiles import RepartitionQuantiles
from dask.dataframe.dask_expr._reductions import Chunk, TreeReduce
from dask.dataframe.dask_expr._repartition import RepartitionToFewer
from dask.dataframe.dask_expr._shuffle import (
    AssignPartitioningIndex,
    P2PShuffle,
    RearrangeByColumn,
    Shuffle,
    SimpleShuffle,
    SortIndexBlockwise,
    TaskShuffle,
)
from dask.dataframe.dask_expr._shuffle import _SetPartitionsPreSetIndex as SetPartitions
from dask.dataframe.dask_expr.io import IO, FromGraph, FromMap, FromPandas, FusedIO
from dask.dataframe.dask_expr.io.parquet import ReadParquetFSSpec, ToParquetData
from dask.dataframe.groupby import _apply_func_to_column as apply_func_to_column
from dask.dataframe.groupby import _compute_sum_of_squares as sum_of_squares
from dask.dataframe.groupby import _groupby_apply_funcs as apply_funcs
from dask.dataframe.io.csv import _read_csv as read_csv_block
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
from dask.dataframe.multi import _merge_chunk_wrapper as merge_chunk_wrapper
from dask.dataframe.multi import merge_chunk
from dask.dataframe.partitionquantiles import percentiles_summary
from dask.dataframe.shuffle import set_partitions_pre
from dask.local import nested_get
from dask.order import order
from dask.utils import get_default_shuffle_method

_ELEMENTWISE = """
Abs Add And AsType Assign Between ColumnsSetter Div DropnaFrame DropnaSeries EQ Fillna Filter GE GT
Invert IsNa Isin LE LT Mask Mul NE Neg NotNull Or Projection RenameFrame Sub ToFrame Where
"""
elementwise = SimpleNamespace(
    **{name: getattr(dask.dataframe.dask_expr._expr, name) for name in _ELEMENTWISE.split()}
)
"""Expressions each of whose rows depends on one row of their inputs only."""

ROLES = {
    "shuffle_transfer": ("distributed.shuffle._shuffle", "transfer"),
    "_shuffle_transfer": ("dask.dataframe.dask_expr._shuffle", "transfer"),
    "merge_transfer": ("distributed.shuffle._merge", "transfer"),
    "create_assign_index_merge_transfer.<locals>.assign_index_merge_transfer": (
        "dask.dataframe.dask_expr._merge",
        "hashing transfer",
    ),
    "rechunk_transfer": ("distributed.shuffle._rechunk", "rechunk transfer"),
    "shuffle_unpack": ("distributed.shuffle._shuffle", "unpack"),
    "rechunk_unpack": ("distributed.shuffle._rechunk", "unpack"),
    "merge_unpack": ("distributed.shuffle._merge", "unpack"),
    "p2p_barrier": ("distributed.shuffle._core", "barrier"),
    "partition": ("dask.bag.core", "partition"),
    "collect": ("dask.bag.core", "collect"),
    "make_group": ("dask.bag.core", "make_group"),
    "load_store_chunk": ("dask.array.core", "storing"),
    "load_chunk": ("dask.array.core", "loading"),
}
"""Functions that passes look for: qualified name → module and role."""


def roles(graph: Mapping[Any, object]) -> dict[Any, str]:
    """Return the roles of the tasks in a graph that must not run as they are; see `ROLES`.

    Functions are compared by name, so that their modules need not be imported.
    """
    roles_by_key = {}
    for key, node in graph.items():
        func = getattr(node, "func", None)
        module, role = ROLES.get(getattr(func, "__qualname__", ""), (None, ""))
        if role and getattr(func, "__module__", None) == module:
            roles_by_key[key] = role
    return roles_by_key


def inferring() -> bool:
    """Return whether Dask is calling a function on generated data to infer metadata."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _INFERRING:
            return True
        frame = frame.f_back
    return False


_INFERRING = frozenset(func.__code__ for func in (apply_infer_dtype, compute_meta, emulate))


def is_composite(expr: object) -> bool:
    """Return whether an expression is of a composite collection; older Dask versions have none."""
    kind = getattr(dask._expr, "CompositeExpr", None)
    return kind is not None and isinstance(expr, kind)


def rebuild_composite(collection: Any, expr: Any, tasks: dict[Any, Any]) -> Any:
    """Rebuild a composite collection from the node of each key."""
    return dask.base._rebuild_composite_collection(collection, expr, tasks, cull_to_child_keys=True)


def read_table(  # noqa: PLR0913, PLR0917  as Dask's engine takes them
    read: Any,
    path: Any,
    groups: list[Any],
    columns: list[str],
    schema: Any,
    keys: Any,
    options: Mapping[str, Any],
) -> Any:
    """Read row groups of a file as an Arrow table, as ``read`` of ``read_parquet`` does."""
    return read.engine._read_table(
        path, read.fs, groups, columns, schema, None, (), keys, **options
    )
