"""Retry a batch in halves after a GPU out-of-memory error."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from dask_exo.errors import DeviceMemoryError

Made = TypeVar("Made")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of cupy, PyTorch or RMM means that GPU memory is full.

    Examples
    --------
    >>> class OutOfMemoryError(MemoryError): ...
    >>> (
    ...     is_out_of_memory(OutOfMemoryError()),
    ...     is_out_of_memory(MemoryError()),
    ...     is_out_of_memory(KeyError()),
    ... )
    (True, False, False)
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    of_rmm = isinstance(error, MemoryError) and "out_of_memory" in str(error)
    return "OutOfMemoryError" in names or of_rmm


def call_in_halves(call: Callable[[Any], Made], batch: Any, name: str) -> list[Made]:
    """Call a function with a batch, or with parts of it that fit into GPU memory, in order.

    Parameters
    ----------
    call : callable
        Its results for neighbouring parts together are the result for the batch.
    batch : object
        (n,) rows: anything that has ``iloc``, or can be sliced.
    name : str
        Name of the function, for errors.

    Raises
    ------
    DeviceMemoryError
        A single row does not fit.

    Examples
    --------
    >>> class OutOfMemoryError(MemoryError): ...
    >>> def three_at_most(batch):
    ...     if len(batch) > 3:
    ...         raise OutOfMemoryError
    ...     return sum(batch)
    >>> call_in_halves(three_at_most, range(8), "sum")
    [1, 5, 9, 13]
    """
    try:
        return [call(batch)]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if len(batch) <= 1:
            raise DeviceMemoryError(
                f"{name} needs more memory for {len(batch)} row than its GPU has ({error}): "
                f"give it a larger share of a GPU (num_gpus=, exo.gpu.per-task), or less to do"
            ) from error
        traceback.clear_frames(error.__traceback__)  # frames keep what has filled the GPU alive
    rows = batch.iloc if hasattr(batch, "iloc") else batch
    half = len(batch) // 2
    return [*call_in_halves(call, rows[:half], name), *call_in_halves(call, rows[half:], name)]
