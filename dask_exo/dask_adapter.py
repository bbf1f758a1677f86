"""Every private name of Dask that dask_exo needs, in one place.

Nothing else in the package imports a private module of Dask or distributed. When one of
these names moves, ``tests/unit/test_dask_adapter.py`` fails and says which.
"""

from __future__ import annotations

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
from dask.local import nested_get
from dask.order import order
from dask.utils import get_default_shuffle_method

__all__ = [
    "Alias",
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
    "named_schedulers",
    "nested_get",
    "optimize_blockwise_fusion",
    "order",
]
