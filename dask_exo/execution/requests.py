"""Functions and classes that carry a resource request: `options` and the wrapper that it returns.

Dask's annotations do not reach dataframes, so the function itself carries its request: the
scheduler finds the wrapper in the tasks of a graph. Elsewhere a wrapper is a plain function.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import operator
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle
from dask.tokenize import TokenizationError, normalize_token, tokenize
from dask.utils import parse_bytes

from dask_exo import validation
from dask_exo.cluster.resources import ResourceRequest
from dask_exo.dask_adapter import inferring
from dask_exo.errors import OptionsError
from dask_exo.partitions.batching import call_in_halves, concat_results, has_rows, split_rows
from dask_exo.validation import number_from

MOST_INSTANCES = 8  # per process


class CachedInstance:
    """Place for the instance of a class; ``lock`` is held while it is created or called."""

    def __init__(self) -> None:
        self.lock: threading.RLock = threading.RLock()
        self.value: Any = None  # before it is created


_guard = threading.Lock()
_instances = functools.lru_cache(MOST_INSTANCES)(lambda _: CachedInstance())


def cached_instance(key: str) -> CachedInstance:
    """Return the place for an instance; evict the least recently used one if there are many."""
    with _guard:  # otherwise two threads could get two places for one key
        return _instances(key)


class ResourceBoundFunction:
    """A function or class, and its resource request; see `options`."""

    used: bool = False
    """True if this process has a wrapper; otherwise tasks need not be searched for one."""

    def __init__(  # noqa: PLR0913, PLR0917  as it is pickled
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        request: ResourceRequest,
        batch_size: int | None = None,
        max_batch_bytes: int | None = None,
        key: str | None = None,
    ) -> None:
        ResourceBoundFunction.used = True
        functools.update_wrapper(self, func, updated=())
        self.request = request
        self._func, self._args, self._kwargs = func, args, dict(kwargs)
        self._batch_size, self._max_batch_bytes = batch_size, max_batch_bytes
        self._known_key = key
        if self.stateful:
            with contextlib.suppress(ValueError, TypeError):  # its signature is unknown
                self.__signature__: inspect.Signature = _signature(func)

    @property
    def stateful(self) -> bool:
        """True for a class, of which each process creates one instance."""
        return inspect.isclass(self._func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or the instance that this process has, batch by batch.

        Pieces that it yields, and the results of batches, are concatenated in order.
        """
        if not self.stateful:
            return self._run(self._func, args, kwargs)
        if inferring():
            raise OptionsError(
                f"no {self.name} is created to infer what it returns, since that may load a "
                f"model here: pass meta= (a frame without rows, or a dict of columns and dtypes)"
            )
        instance = cached_instance(self._key)
        with instance.lock:  # one call at a time, as on an actor
            if instance.value is None:
                instance.value = self._func(*self._args, **self._kwargs)
            return self._run(instance.value, args, kwargs)

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        rows = bool(args) and has_rows(args[0])
        if self._batch_size is None and self._max_batch_bytes is None:
            result = func(*args, **kwargs)
            yields = rows and isinstance(result, Iterator)
            return concat_results([result], self.name) if yields else result
        if not rows:
            what = type(args[0]).__name__ if args else "nothing"
            raise OptionsError(
                f"{self.name} is to be called with batches of rows, but its first argument is "
                f"{what}: need a frame, a series, an index or an array"
            )
        batches = split_rows(args[0], self._batch_size, self._max_batch_bytes)

        def call(batch: Any) -> Any:
            return func(batch, *args[1:], **kwargs)

        results = (result for batch in batches for result in call_in_halves(call, batch, self.name))
        return concat_results(results, self.name)

    @property
    def name(self) -> str:
        """Name of the function or class."""
        return str(getattr(self._func, "__name__", type(self._func).__name__))

    @property
    def _key(self) -> str:
        if self._known_key is None:
            self._known_key = tokenize(self)
        return self._known_key

    @property
    def _import_path(self) -> tuple[str, str] | None:
        """Module and name from which any process can import this very wrapper."""
        module, name = getattr(self, "__module__", None), getattr(self, "__qualname__", None)
        if not module or not name or module == "__main__" or "<locals>" in name:
            return None
        by_value = cloudpickle.cloudpickle.list_registry_pickle_by_value()
        parts = module.split(".")
        if any(".".join(parts[: i + 1]) in by_value for i in range(len(parts))):
            return None
        try:
            imported = _imported(module, name)
        except (ImportError, AttributeError):
            return None
        return (module, name) if imported is self else None

    def __dask_tokenize__(self) -> Any:
        """Return equal tokens for equal functions, or their names, arguments and options."""
        what = self._import_path or (_token(self._func),)
        options = (self.request, self._batch_size, self._max_batch_bytes)
        return "dask_exo.options", what, normalize_token((self._args, self._kwargs, options))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name if possible, as functions are: globals are then those of the module."""
        if self._import_path is not None:
            return _imported, self._import_path
        fields = (self._func, self._args, self._kwargs, self.request)
        key = self._key if self.stateful else None
        return ResourceBoundFunction, (*fields, self._batch_size, self._max_batch_bytes, key)

    def __repr__(self) -> str:
        """Return the name of the function and its resource request."""
        return f"<{self.name} that requests {self.request}>"


def _signature(cls: type) -> inspect.Signature:
    """Return the signature of an instance's ``__call__``."""
    signature = inspect.signature(cls.__call__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _imported(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


_own_tokens: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _token(func: Any) -> str:
    """Return the token of a function's code, or a random one if its code has no stable token."""
    try:
        return tokenize(func, ensure_deterministic=True)
    except TokenizationError:
        return _own_tokens.setdefault(func, uuid.uuid4().hex)


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
    run while there is work for them; those with GPUs then wait 5 s for the next computation. Dask
    cannot infer what a class returns: give ``meta=``.

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
            raise OptionsError(f"{name}: {amount!r} is not an amount: need a number from 0")
        if amount > 1 and amount != int(amount):
            raise OptionsError(
                f"{name}: {amount!r} is not possible: need a whole number, or one below 1"
            )
    least, most = validation.concurrency(concurrency, OptionsError)
    if batch_size is not None:
        number_from(1, "batch_size", batch_size, OptionsError)
    nbytes = None if max_batch_bytes is None else parse_bytes(max_batch_bytes)
    if nbytes is not None:
        number_from(1, "max_batch_bytes", nbytes, OptionsError)
    demand = tuple(sorted((n, float(amount)) for n, amount in amounts.items() if amount))
    special = concurrency is not None or any(name != "CPU" for name, _ in demand)

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
                f"a class are created with some"
            )
        request = ResourceRequest(demand, special or stateful, least, most)
        return ResourceBoundFunction(func, args, kwargs, request, batch_size, nbytes)

    return decorate


def _instances_callable(cls: type) -> bool:
    return any("__call__" in vars(base) for base in cls.__mro__)
