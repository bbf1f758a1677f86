"""What a function or class asks of the place where it runs, carried by a wrapper around it.

Dask's annotations do not reach dataframes, so the function itself has to say it: the scheduler
finds the wrapper in the tasks of a graph. Anywhere else a wrapper is just a function.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import cloudpickle
from dask.tokenize import TokenizationError, normalize_token, tokenize
from dask.utils import parse_bytes

from dask_exo.arguments import number_from
from dask_exo.dask_adapter import inferring
from dask_exo.errors import OptionsError
from dask_exo.frame.rows import cut, has_rows, joined

MOST_INSTANCES = 8  # that a process keeps


class Asks(NamedTuple):
    """What a task asks of the place where it runs.

    Attributes
    ----------
    amounts : tuple of (str, float)
        Name of a resource ("CPU", "GPU", others) and how much of it; sorted, without zeros.
    kept : bool
        Whether it runs on workers that are kept while there is work for them.
    least, most : int
        How many of those there are, where there is that much to do; None for as many as fit.
    """

    amounts: tuple[tuple[str, float], ...] = (("CPU", 1.0),)
    kept: bool = False
    least: int = 0
    most: int | None = None

    @property
    def needs(self) -> dict[str, Any]:
        """As `dask_exo.futures.Futures` takes it."""
        named = dict(self.amounts)
        needs = {"num_cpus": named.pop("CPU", 0.0), "num_gpus": named.pop("GPU", 0.0)}
        return {**needs, "resources": named} if named else needs

    def __str__(self) -> str:
        """For people."""
        return ", ".join(f"{amount:g} {name}" for name, amount in self.amounts) or "nothing"


ONE_CPU = Asks()


def together(several: Iterable[Asks]) -> Asks:
    """What a task asks for that calls several functions.

    Examples
    --------
    >>> gpu = Asks((("CPU", 1.0), ("GPU", 0.5)), kept=True, most=4)
    >>> print(together([gpu, Asks((("CPU", 2.0),), most=3)]))
    2 CPU, 0.5 GPU
    """
    amounts: dict[str, float] = {}
    asks = list(several)
    for name, amount in (item for one in asks for item in one.amounts):
        amounts[name] = max(amount, amounts.get(name, 0))
    most = min((one.most for one in asks if one.most is not None), default=None)
    least = max(one.least for one in asks)
    return Asks(
        tuple(sorted(amounts.items())),
        any(one.kept for one in asks),
        least if most is None else min(least, most),
        most,
    )


class Asking:
    """A function or class, and what it asks for; see `options`.

    Parameters
    ----------
    func : callable or class
    args, kwargs
        What an instance of a class is made with.
    asks : Asks
    batch_size : int, optional
        Rows of a batch.
    max_batch_bytes : int, optional
        Bytes of a batch.
    key : str, optional
        The same for wrappers of the same class and arguments.
    """

    used = False
    """Whether this process has any: else no task needs to be searched for one."""

    def __init__(  # noqa: PLR0913, PLR0917  as it is pickled
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        asks: Asks,
        batch_size: int | None = None,
        max_batch_bytes: int | None = None,
        key: str | None = None,
    ) -> None:
        Asking.used = True
        functools.update_wrapper(self, func, updated=())
        self.asks = asks
        self._func, self._args, self._kwargs = func, args, dict(kwargs)
        self._batch_size, self._max_batch_bytes = batch_size, max_batch_bytes
        self._known_key = key
        if self.stateful:
            self.__signature__ = _signature(func)

    @property
    def stateful(self) -> bool:
        """Whether it is a class, of which each process makes an instance once."""
        return inspect.isclass(self._func)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, or the instance that this process has, batch by batch.

        Pieces that it yields, and those of the batches, come back as one, in order.
        """
        if not self.stateful:
            return self._run(self._func, args, kwargs)
        if inferring():
            raise OptionsError(
                f"no {self.name} is made to find out what it returns, since that may load a "
                f"model here: pass meta= (a frame without rows, or a dict of columns and dtypes)"
            )
        instance = _instance(self._key)
        with instance.lock:  # one call at a time, as in a worker of its own
            if instance.value is None:
                instance.value = self._func(*self._args, **self._kwargs)
            return self._run(instance.value, args, kwargs)

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        rows = bool(args) and has_rows(args[0])
        if self._batch_size is None and self._max_batch_bytes is None:
            made = func(*args, **kwargs)
            return joined([made], self.name) if rows and isinstance(made, Iterator) else made
        if not rows:
            what = type(args[0]).__name__ if args else "nothing"
            raise OptionsError(
                f"{self.name} is to be called with batches of rows, but its first argument is "
                f"{what}: need a frame, a series, an index or an array"
            )
        batches = cut(args[0], self._batch_size, self._max_batch_bytes)
        return joined((func(batch, *args[1:], **kwargs) for batch in batches), self.name)

    @property
    def name(self) -> str:
        """For people."""
        return str(getattr(self._func, "__name__", type(self._func).__name__))

    @property
    def _key(self) -> str:
        if self._known_key is None:
            self._known_key = tokenize(self)
        return self._known_key

    @property
    def _where(self) -> tuple[str, str] | None:
        """Module and name from which any process can import this very wrapper."""
        module, name = getattr(self, "__module__", None), getattr(self, "__qualname__", None)
        if not module or not name or module == "__main__" or "<locals>" in name:
            return None
        by_value = cloudpickle.cloudpickle.list_registry_pickle_by_value()
        parts = module.split(".")
        if any(".".join(parts[: i + 1]) in by_value for i in range(len(parts))):
            return None
        try:
            found = _imported(module, name)
        except (ImportError, AttributeError):
            return None
        return (module, name) if found is self else None

    def __dask_tokenize__(self) -> Any:
        """The same for the same function, or name of it, arguments and options."""
        what = self._where or (_token(self._func),)
        options = (self.asks, self._batch_size, self._max_batch_bytes)
        return "dask_exo.options", what, normalize_token((self._args, self._kwargs, options))

    def __reduce__(self) -> tuple[Any, ...]:
        """By name where that works, as functions are: its globals are then those of the module."""
        if self._where is not None:
            return _imported, self._where
        fields = (self._func, self._args, self._kwargs, self.asks)
        key = self._key if self.stateful else None
        return Asking, (*fields, self._batch_size, self._max_batch_bytes, key)

    def __repr__(self) -> str:
        """The function, and what it asks for."""
        return f"<{self.name} that asks for {self.asks}>"


def options(
    *,
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    batch_size: int | None = None,
    concurrency: int | tuple[int, int] | None = None,
    max_batch_bytes: int | str | None = None,
) -> Callable[..., Asking]:
    """Say what a function or class asks for, wherever plain Dask code calls it.

    A decorator. Tasks that call the function run where there is what it asks for; neighbours that
    ask for the same run in one task, others side by side. With other schedulers of Dask, it is the
    same function, without a place of its own.

    Of a class one instance is made in each of its workers, with what comes after it in
    ``options(...)(Model, "weights.npy")``; the instance is called with each partition. The workers
    are kept while there is work for them. Dask cannot find out what a class returns: give
    ``meta=``.

    Parameters
    ----------
    num_cpus, num_gpus : float
        Of one call.
    resources : mapping, optional
        Others, as Ray knows them: name and amount.
    batch_size : int, optional
        Rows: the function is called with so many rows of its first argument at a time, and what it
        returns is put together in order. The last batch of a partition may have fewer.
    concurrency : int or (int, int), optional
        Workers side by side at most, or at least and at most, in the whole cluster.
    max_batch_bytes : int or str, optional
        Bytes of a batch at most, but for a single row that is larger.

    Returns
    -------
    callable
        Takes a function, or a class and what to make instances with; returns the wrapper.

    Raises
    ------
    OptionsError
        A value is not one that an option can have.

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
    least, most = _concurrency(concurrency)
    if batch_size is not None:
        number_from(1, "batch_size", batch_size, OptionsError)
    nbytes = None if max_batch_bytes is None else parse_bytes(max_batch_bytes)
    if nbytes is not None:
        number_from(1, "max_batch_bytes", nbytes, OptionsError)
    asked = tuple(sorted((n, float(amount)) for n, amount in amounts.items() if amount))
    special = concurrency is not None or any(name != "CPU" for name, _ in asked)

    def decorate(func: Any, /, *args: Any, **kwargs: Any) -> Asking:
        stateful = inspect.isclass(func)
        if isinstance(func, Asking):
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
        asks = Asks(asked, special or stateful, least, most)
        return Asking(func, args, kwargs, asks, batch_size, nbytes)

    return decorate


def _concurrency(given: Any) -> tuple[int, int | None]:
    """Least and most workers."""
    if given is None:
        return 0, None
    least, most = given if isinstance(given, tuple) and len(given) == 2 else (0, given)
    number_from(0, "concurrency", least, OptionsError)
    number_from(max(1, least), "concurrency", most, OptionsError)
    return int(least), int(most)


def _instances_callable(cls: type) -> bool:
    return any("__call__" in vars(base) for base in cls.__mro__)


def _signature(cls: type) -> inspect.Signature:
    """How an instance is called."""
    signature = inspect.signature(cls.__call__)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _imported(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


_own_tokens: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _token(func: Any) -> str:
    """Of its code; of what has none that is always the same, such as local classes, of itself."""
    try:
        return tokenize(func, ensure_deterministic=True)
    except TokenizationError:
        return _own_tokens.setdefault(func, uuid.uuid4().hex)


class _Instance:
    """One for the process, once it has been made."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.value: Any = None


_instances: OrderedDict[str, _Instance] = OrderedDict()
_guard = threading.Lock()


def _instance(key: str) -> _Instance:
    """Where the instance of a class is; the one that was used longest ago makes room."""
    with _guard:
        found = _instances.setdefault(key, _Instance())
        _instances.move_to_end(key)
        while len(_instances) > MOST_INSTANCES:
            _instances.popitem(last=False)
        return found
