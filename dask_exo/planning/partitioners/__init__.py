"""Partitioners: how a map divides a partition into blocks, and a reducer assembles them.

A shuffle algorithm moves blocks without looking into them. A `Partitioner` makes and reads them:
`RowPartitioner` for frames, `ChunkPartitioner` for arrays, `ItemPartitioner` for bags.
"""

from dask_exo.planning.partitioners.exchange import Partitioner, ShuffleNode, take
from dask_exo.planning.partitioners.items import ItemPartitioner
from dask_exo.planning.partitioners.regrid import Chunk, ChunkPartitioner
from dask_exo.planning.partitioners.rows import RowPartitioner

__all__ = [
    "Chunk",
    "ChunkPartitioner",
    "ItemPartitioner",
    "Partitioner",
    "RowPartitioner",
    "ShuffleNode",
    "take",
]
