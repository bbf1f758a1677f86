"""One call of a client: its messages from the driver, and its task.

Futures among the arguments, also inside lists, tuples, sets and dictionaries, arrive as their
values. A future elsewhere, say in a closure, arrives as a future that is finished.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import dask.config
from dask.utils import key_split, typename

from dask_exo.client.future import Future
from dask_exo.cluster.futures import LARGE, Futures, Ref, SubmitOptions
from dask_exo.errors import ExoError, Failure, SerializationError
from dask_exo.execution import messages
from dask_exo.execution.persisted import Local, Promise, collecting_refs, substituting_values
from dask_exo.execution.worker import write_or_copy
from dask_exo.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class CallReceipt:
    """Outcome of a call, without its value.

    Attributes
    ----------
    type : str
        Name of the type of the value.
    failure : Failure, optional
        Exception of the function; it is also stored as the value.
    """

    type: str = ""
    failure: Failure | None = None


class RemoteFunction:
    """A function and its keyword arguments, sent once for all calls that share them.

    Parameters
    ----------
    futures : Futures
    fn : callable
    kwargs : mapping
        May have futures in it.
    retries : int
        How often a call may run again after an exception.
    needs : mapping, optional
        Resources for each call, see `Futures.submit`.
    """

    def __init__(
        self,
        futures: Futures,
        fn: Callable[..., Any],
        kwargs: Mapping[str, Any],
        retries: int = 0,
        needs: SubmitOptions | None = None,
    ) -> None:
        self._futures, self._fn, self.kwargs = futures, fn, kwargs
        self._retries, self._needs = retries, needs

    @cached_property
    def _packed(self) -> tuple[bytes | Ref, list[Ref], list[int]]:
        """Return the code or its ref, the refs in it, and positions of the arguments."""
        refs: list[Ref] = []
        kwargs, places = _lift(dict(self.kwargs), refs)
        code = _pickled((self._fn, kwargs), refs, repr(self._fn))
        return (code if len(code) < LARGE else self._futures.put(code)), refs, places

    def call(self, key: Any, args: Sequence[Any]) -> tuple[Ref, Ref]:
        """Start a task; return the refs of its value and of its `CallReceipt`.

        Raises
        ------
        SerializationError
            The function or an argument cannot be sent to another process.
        Exception
            The exception of an argument.
        """
        code, shared, places = self._packed
        refs = list(shared)
        lifted, more = _lift(tuple(args), refs)
        head = (key, self._retries, [*places, *more])
        data = _pickled(lifted, refs, repr(key))
        value, report = self._futures.split(2, run, head, code, data, *refs, needs=self._needs)
        return value, report


def unresolved_promises(content: Any) -> list[Promise]:
    """Return the promises among arguments that have no ref yet."""
    return [future.promise for future in futures_in(content) if not future.promise.known]


def futures_in(content: Any) -> Iterator[Future]:
    """Yield the futures in nested lists, tuples, sets and dictionaries."""
    if isinstance(content, Future):
        yield content
    elif isinstance(content, (list, tuple, set, frozenset)):
        for item in content:
            yield from futures_in(item)
    elif isinstance(content, dict):
        for item in content.values():
            yield from futures_in(item)


def map_nested(content: Any, new: Callable[[Any], Any], kind: type) -> Any:
    """Return ``content`` with all objects of a ``kind`` in nested containers replaced."""
    if isinstance(content, kind):
        return new(content)
    again = partial(map_nested, new=new, kind=kind)
    if type(content) in (list, tuple, set, frozenset):
        return type(content)(map(again, content))
    if isinstance(content, tuple) and hasattr(content, "_make"):
        return content._make(map(again, content))
    if type(content) is dict:
        return {key: again(item) for key, item in content.items()}
    return content


def _lift(content: Any, refs: list[Ref]) -> tuple[Any, list[int]]:
    """Replace futures by positions in ``refs``; append their refs to it."""
    places: list[int] = []

    def place(future: Future) -> Any:
        held = future.promise.held()
        if not isinstance(held, Local):
            refs.append(held.ref)
            places.append(len(refs) - 1)
            return messages.Argument(places[-1])
        if isinstance(held.value, Failure):
            held.value.reraise()
        return held.value

    if not any(True for _ in futures_in(content)):
        return content, []
    return map_nested(content, place, Future), places


def _pickled(content: Any, refs: list[Ref], name: str) -> bytes:
    try:
        with collecting_refs(refs):
            return messages.dumps(content)
    except ExoError:
        raise
    except Exception as error:
        raise SerializationError(
            f"{name} cannot be sent to another process: {error}. Open files, locks, connections "
            f"and generators must be made inside the task"
        ) from error


def run(
    head: tuple[Any, int, Sequence[int]], code: bytes, data: bytes, *args: Any
) -> tuple[Any, CallReceipt]:
    """Run one call in a task; return its value and its `CallReceipt`."""
    key, retries, places = head
    for place in places:
        if isinstance(args[place], Failure):  # a failed argument fails the call
            return args[place], CallReceipt(failure=args[place])
    call = partial(_call, code, data, args)
    failure = None
    with dask.config.set({"scheduler": Scheduler(), "dataframe.shuffle.method": "tasks"}):
        for _ in range(retries + 1):
            try:
                value = write_or_copy(call, key_split(key))
            except Exception as error:  # noqa: BLE001  raised where the value is asked for
                failure = Failure.of(key, error)
                traceback.clear_frames(error.__traceback__)  # they hold what is in the store
            else:
                return value, CallReceipt(typename(type(value)))
    return failure, CallReceipt(failure=failure)


def _call(code: bytes, data: bytes, args: Sequence[Any], bring: Callable[[Any], Any]) -> Any:
    """Run one attempt, with its own copies of code and arguments."""
    with substituting_values(args):
        fn, kwargs = pickle.loads(code)  # noqa: S301  our own driver's bytes
        own = pickle.loads(data)  # noqa: S301  our own driver's bytes
    own, kwargs = map_nested((own, kwargs), lambda arg: bring(args[arg.place]), messages.Argument)
    value = fn(*own, **kwargs)
    return asyncio.run(_result(value)) if inspect.iscoroutine(value) else value


async def _result(coroutine: Any) -> Any:
    return await coroutine
