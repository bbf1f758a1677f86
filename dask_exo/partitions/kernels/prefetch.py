"""Memory read in order before it is read in disorder.

Where rows are taken in an order of their own, the processor waits for memory at each of them.
Read from end to end right before, the same memory comes several times as fast, and waits in the
cache.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dask_exo.partitions.kernels.string_sort import buffers

CACHED = 2**24  # bytes: of what is larger the beginning is gone again at the end


def warm(memory: np.ndarray | pa.Array) -> None:
    """Read from end to end.

    Parameters
    ----------
    memory : ndarray or LargeStringArray
        Anything; what cannot be read at once is left as it is.
    """
    if isinstance(memory, pa.Array):
        for part in buffers(memory):
            warm(part)
    elif memory.flags.c_contiguous and not memory.dtype.hasobject and memory.nbytes <= CACHED:
        np.add.reduce(memory.reshape(-1).view(np.uint8)[: memory.nbytes // 8 * 8].view(np.uint64))
