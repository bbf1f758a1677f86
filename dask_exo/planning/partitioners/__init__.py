"""What is shuffled: how a part is cut, and how an output is put together.

A shuffle algorithm moves blocks without looking into them. A `Split` makes them and reads them:
`Rows` of frames, chunks of arrays (`Regrid`), `Items` of bags.
"""

from dask_exo.planning.partitioners.exchange import Exchange, Split, take
from dask_exo.planning.partitioners.items import Items
from dask_exo.planning.partitioners.regrid import Chunk, Regrid
from dask_exo.planning.partitioners.rows import Rows

__all__ = ["Chunk", "Exchange", "Items", "Regrid", "Rows", "Split", "take"]
