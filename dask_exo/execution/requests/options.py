"""The decorator that gives a function a resource request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dask.utils import parse_bytes

from dask_exo import validation
from dask_exo.cluster.resources import ResourceRequest
from dask_exo.errors import OptionsError
from dask_exo.execution.requests.wrapped_function import ResourceBoundFunction
from dask_exo.validation import number_from


def options(
    *,
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    batch_size: int | None = None,
    concurrency: int | tuple[int, int] | None = None,
    max_batch_bytes: int | str | None = None,
) -> Callable[..., ResourceBoundFunction]:
    """Set the resource request of a function or class, wherever plain Dask code calls it.

    A decorator. Tasks that call the function run on nodes with these resources; neighbours with
    equal requests run in one task, others in parallel. Other schedulers of Dask call the function
    as it is.

    A class has one instance per actor, created with the further arguments in
    ``options(...)(Model, "weights.npy")``; the instance is called with each partition. The actors
    run while there is work for them. Dask cannot infer what a class returns: give ``meta=``.

    Parameters
    ----------
    num_cpus, num_gpus : float
        Amounts for one call.
    resources : mapping, optional
        Custom resources of Ray: name and amount.
    batch_size : int, optional
        Rows of its first argument that the function is called with; the results are concatenated
        in order. The last batch of a partition may have fewer rows. A batch that does not fit into
        the memory of a GPU is halved.
    concurrency : int or (int, int), optional
        The most, or the fewest and the most, actors in the whole cluster.
    max_batch_bytes : int or str, optional
        Largest batch in bytes; a single row may be larger.

    Returns
    -------
    callable
        Takes a function, or a class and the arguments of its instances; returns the wrapper.

    Raises
    ------
    OptionsError
        An option has an invalid value.

    Examples
    --------
    >>> import dask.dataframe as dd
    >>> import pandas as pd
    >>> @options(batch_size=2)
    ... def lengths(batch):
    ...     return batch.assign(rows=len(batch))
    >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(5)}), npartitions=1)
    >>> ddf.map_partitions(lengths).compute().rows.tolist()
    [2, 2, 2, 2, 1]
    """
    amounts = {"CPU": num_cpus, "GPU": num_gpus, **(resources or {})}
    for name, amount in amounts.items():
        if not isinstance(amount, (int, float)) or amount < 0:
            raise OptionsError(f"{name}: {amount!r} is no amount: need a number from 0")
        if amount > 1 and amount != int(amount):
            raise OptionsError(
                f"{name}: {amount!r} cannot be given: need a whole number, or one below 1"
            )
    least, most = validation.concurrency(concurrency, OptionsError)
    if batch_size is not None:
        number_from(1, "batch_size", batch_size, OptionsError)
    nbytes = None if max_batch_bytes is None else parse_bytes(max_batch_bytes)
    if nbytes is not None:
        number_from(1, "max_batch_bytes", nbytes, OptionsError)
    asked = tuple(sorted((n, float(amount)) for n, amount in amounts.items() if amount))
    special = concurrency is not None or any(name != "CPU" for name, _ in asked)

    def decorate(func: Any, /, *args: Any, **kwargs: Any) -> ResourceBoundFunction:
        stateful = inspect.isclass(func)
        if isinstance(func, ResourceBoundFunction):
            raise OptionsError(f"{func!r} has options already: give all of them at once")
        if not callable(func) or (stateful and not _instances_callable(func)):
            raise OptionsError(
                f"{func!r} cannot be called with partitions: need a function, or a class with "
                f"a method __call__"
            )
        if not stateful and (args or kwargs):
            raise OptionsError(
                f"arguments after the function {func!r}: need them in the call; only instances of "
                f"a class are made with some"
            )
        asks = ResourceRequest(asked, special or stateful, least, most)
        return ResourceBoundFunction(func, args, kwargs, asks, batch_size, nbytes)

    return decorate


def _instances_callable(cls: type) -> bool:
    return any("__call__" in vars(base) for base in cls.__mro__)
