"""Every private name of Dask that dask_exo needs, in one place.

Nothing else in the package imports a private module of Dask or distributed. When one of
these names moves, ``tests/unit/test_dask_adapter.py`` fails and says which.
"""

from __future__ import annotations

import sys

from dask._expr import Expr as CoreExpr
from dask._task_spec import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    convert_legacy_graph,
)
from dask.base import named_schedulers
from dask.dataframe.core import _concat as concat_partitions
from dask.dataframe.dask_expr._expr import (
    Expr,
    Fused,
    PartitionsFiltered,
    optimize_blockwise_fusion,
)
from dask.dataframe.dask_expr._expr import Partitions as SelectPartitions
from dask.dataframe.dask_expr._merge import BlockwiseMerge, HashJoinP2P
from dask.dataframe.dask_expr._repartition import RepartitionToFewer
from dask.dataframe.dask_expr._shuffle import P2PShuffle, RearrangeByColumn, SimpleShuffle
from dask.dataframe.dask_expr.io import FromPandas
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
from dask.local import nested_get
from dask.order import order
from dask.utils import get_default_shuffle_method


def is_p2p_barrier(node: object) -> bool:
    """Whether a task can only run on distributed's own workers: the middle of a p2p shuffle."""
    p2p = sys.modules.get("distributed.shuffle._core")  # not imported: no such task can exist
    return p2p is not None and isinstance(node, p2p.P2PBarrierTask)


__all__ = [
    "Alias",
    "ArrowDatasetEngine",
    "BlockwiseMerge",
    "CoreExpr",
    "DataNode",
    "Expr",
    "FromPandas",
    "Fused",
    "GraphNode",
    "HashJoinP2P",
    "P2PShuffle",
    "PartitionsFiltered",
    "RearrangeByColumn",
    "RepartitionToFewer",
    "SelectPartitions",
    "SimpleShuffle",
    "Task",
    "TaskRef",
    "concat_partitions",
    "convert_legacy_graph",
    "get_default_shuffle_method",
    "is_p2p_barrier",
    "named_schedulers",
    "nested_get",
    "optimize_blockwise_fusion",
    "order",
]
