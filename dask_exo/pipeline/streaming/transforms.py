"""Transforms of a stage: iterators from frames to frames, one after the other in one task.

Each frame has a flag that says whether it is the last, so that its consumer does not wait for
another one. Outputs of generators are passed on at once, so none of them is known to be the last.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from dask_exo.errors import Failure
from dask_exo.partitions import protocol
from dask_exo.partitions.batching import as_numpy, call_in_halves
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu.shuffle import start_to_gpu
from dask_exo.partitions.gpu_frames import to_device
from dask_exo.pipeline.streaming.blocks import Frame, Origin, RejectReason


class ErrorPolicy(NamedTuple):
    """Reaction to exceptions of users' functions."""

    retries: int = 0  # of a call
    skip: bool = False  # set the input aside after the last retry; else the pipeline ends


RAISE = ErrorPolicy()


class CallError(Exception):
    """A call that failed for good; `failure` names the error and the rows."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.key)
        self.failure = failure


class UserCalls:
    """Calls of users' functions in one task, and the inputs that were set aside, in order."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.rejects: list[tuple[RejectReason, Any]] = []

    def outputs(
        self,
        function: str,
        error_policy: ErrorPolicy,
        call: Callable[[], Iterable[Any]],
        frame: Frame,
    ) -> Iterator[Any]:
        """Yield the outputs of a call; none if its input ``frame`` is set aside.

        With ``skip``, all outputs are made before the first is yielded.

        Raises
        ------
        CallError
            The call has failed, and its input may not be set aside.
        """
        count = 0
        for attempt in range(error_policy.retries + 1):
            try:
                if error_policy.skip:
                    yield from list(call())
                    return
                for i, output in enumerate(call()):
                    if i >= count:
                        count = i + 1
                        yield output
            except Exception as error:  # noqa: BLE001  raised in the driver, or set aside
                if attempt == error_policy.retries:
                    self.reject(function, error_policy, error, frame)
            else:
                return

    def reject(
        self, function: str, error_policy: ErrorPolicy, error: Exception, frame: Frame
    ) -> None:
        """Set an input aside; raise `CallError` if that is not allowed."""
        failure = Failure.of(call_name(self._stage, function, frame.origin), error)
        if not error_policy.skip:
            raise CallError(failure) from error
        self.rejects.append(
            (RejectReason(self._stage, function, frame.origin, failure), frame.data)
        )


def call_name(stage: str, function: str, origin: Origin) -> str:
    """Return a text that names a call."""
    place = stage if function == stage else f"{function} in {stage}"
    return f"{place} on {origin}"


Frames = Iterator[Frame]

Copies = list[Callable[[], Any]]
"""Functions that return copies on the GPU that have started: one for a batch, or none."""

CallOutput = tuple[Any, bool]
"""An output of a function, and whether it is known to be the only one; never of a generator."""

Place = tuple[int, ...]
"""See `Block.place`."""


@dataclass(frozen=True)
class Transform:
    """A user's function, and the way in which it is called."""

    kind: str  # "partitions", "batches", "rows", "filter", or "write": with a unique name, too
    func: Any  # or a class, of which each actor makes one instance
    args: tuple[Any, ...] = ()  # for the function after the data, or for the class
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None  # rows; None for as many as there are
    format: str = "pandas"  # of a batch; see `FORMATS`
    error_policy: ErrorPolicy = RAISE

    @property
    def name(self) -> str:
        """Name of the function, for messages."""
        if self.kind == "write":
            return "to_parquet"
        func = self.func
        while isinstance(func, partial):
            func = func.func
        return str(getattr(func, "__name__", type(func).__name__))

    @property
    def stateful(self) -> bool:
        """True if the function is a class."""
        return inspect.isclass(self.func)

    def make(self) -> Callable[..., Any]:
        """Return the function to call with data."""
        if self.stateful:
            instance: Callable[..., Any] = self.func(*self.args, **self.kwargs)
            return instance
        return lambda *data: self.func(*data, *self.args, **self.kwargs)


def apply(
    transform: Transform,
    func: Callable[..., Any],
    frames: Frames,
    place: Place = (),
    calls: UserCalls | None = None,
) -> Frames:
    """Transform frames with ``func``, made by ``transform.make()``.

    ``place`` is that of the task's input; ``calls`` takes inputs that are set aside.

    Examples
    --------
    >>> frame = pd.DataFrame({"a": range(5)})
    >>> double = Transform("batches", lambda b: b * 2, batch_size=2)
    >>> made = apply(double, double.make(), iter([Frame(frame, last=True)]))
    >>> [(len(one.data), one.last) for one in made]
    [(2, False), (2, False), (1, True)]
    """
    calls = calls or UserCalls(transform.name)
    for number, frame in enumerate(frames):
        if frame.data is None:
            yield frame
            continue
        name = "-".join(map(str, (*place, number)))
        for batch, copies in _copied_ahead(transform, _batches(transform, frame)):
            if transform.kind == "rows":
                outputs = _call_with_rows(transform, func, calls, batch)
            else:
                call = partial(_call, transform, func, batch.data, name, copies)
                outputs = calls.outputs(transform.name, transform.error_policy, call, batch)
            yield from _as_frames(outputs, batch)


def _batches(transform: Transform, frame: Frame) -> Frames:
    """Yield the data of each call."""
    data, last, origin = frame
    size = transform.batch_size
    if transform.kind != "batches" or size is None or len(data) <= size:
        yield frame
        return
    for start in range(0, len(data), size):
        batch = data.iloc[start : start + size]
        stop = start + len(batch)
        yield Frame(batch, last and stop == len(data), origin.part(start, stop))


def _copied_ahead(transform: Transform, batches: Frames) -> Iterator[tuple[Frame, Copies]]:
    """Yield batches with copies on the GPU, which start while the batch before is in use."""
    if transform.kind != "batches" or transform.format != "device":
        yield from ((batch, []) for batch in batches)
        return
    waiting: list[tuple[Frame, Copies]] = []
    try:
        for batch in batches:
            waiting.append((batch, _start_copy(batch.data)))
            if len(waiting) > 1:
                yield waiting.pop(0)
        yield from waiting
    finally:
        for _, copies in waiting:
            for copy in copies:  # that no call has taken
                copy()


def _start_copy(data: Any) -> Copies:
    """Start to copy a batch; if that fails, its own call copies it, or raises the error."""
    if not isinstance(data, pd.DataFrame):
        return []
    try:
        module = arrays.here()
        return [] if module == arrays.HOST else [start_to_gpu(data, module)]
    except Exception:  # noqa: BLE001  as if there were no room yet, or a column of objects
        return []


def _call(
    transform: Transform, func: Callable[..., Any], data: Any, name: str, copies: Copies
) -> Iterator[CallOutput]:
    """Call a function; yield its frames."""
    if transform.kind == "batches":
        convert = FORMATS[transform.format]

        def run(batch: Any) -> Any:
            is_whole = batch is data and copies  # else a half of it, or another attempt
            return func(copies.pop()() if is_whole else convert(batch))

        results = call_in_halves(run, data, transform.name)
    else:
        frame = on_host(data)
        if transform.kind == "write":
            results = [func(frame, name)]
        elif transform.kind == "filter":
            results = [frame[func(frame)]]
        else:
            results = [func(frame)]
    for result in results:
        if isinstance(result, Iterator):
            for output in result:
                yield frame_of(output), False
        else:
            yield frame_of(result), len(results) == 1


def _call_with_rows(
    transform: Transform, func: Callable[..., Any], calls: UserCalls, frame: Frame
) -> Iterator[CallOutput]:
    """Call a function with each row; yield one frame of all its outputs, if there are any."""
    outputs: list[Any] = []
    name, error_policy = transform.name, transform.error_policy
    data = on_host(frame.data)
    for i, row in enumerate(data.to_dict("records")):
        try:
            outputs += list(func(row))
        except Exception as error:  # noqa: BLE001  retried, raised or set aside
            input_row = Frame(data.iloc[i : i + 1], last=False, origin=frame.origin.part(i, i + 1))
            if not error_policy.retries:
                calls.reject(name, error_policy, error, input_row)
                continue
            remaining = error_policy._replace(retries=error_policy.retries - 1)
            outputs += calls.outputs(name, remaining, partial(func, row), input_row)
    if outputs:
        yield pd.DataFrame(outputs), True


def _as_frames(outputs: Iterator[CallOutput], batch: Frame) -> Frames:
    """Yield the outputs of a call as frames; one without data if there are none."""
    is_empty = True
    for data, only in outputs:
        is_empty = False
        origin = batch.origin.made(len(batch.data), len(data), only=only)
        yield Frame(data, batch.last and only, origin)
    if is_empty:
        yield Frame(None, batch.last, batch.origin)


def frame_of(data: Any) -> Any:
    """Return the result of a function as a frame, on its device."""
    if protocol.on_device(data):
        return data if hasattr(data, "columns") else data.to_frame()
    if isinstance(data, pd.Series):
        return data.to_frame()
    if isinstance(data, Mapping):
        return pd.DataFrame({name: _column(values) for name, values in data.items()})
    if hasattr(data, "to_pandas"):
        return data.to_pandas()
    if isinstance(data, pd.DataFrame):
        return data
    raise TypeError(
        f"a function of a pipeline returned {type(data).__name__}; it has to return a DataFrame, "
        f"a dict of columns, an Arrow table, or an iterator of those"
    )


def _column(values: Any) -> Any:
    return list(values) if getattr(values, "ndim", 1) > 1 else values


def _arrow(frame: Any) -> Any:
    import pyarrow as pa

    return pa.Table.from_pandas(on_host(frame), preserve_index=False)


def on_host(frame: Any) -> Any:
    """Return a frame in host memory."""
    return frame.to_pandas() if protocol.on_device(frame) else frame


def _on_device(frame: Any) -> Any:
    return frame if protocol.on_device(frame) else to_device(frame, arrays.here())


FORMATS: dict[str, Callable[[Any], Any]] = {
    "pandas": on_host,
    "numpy": lambda frame: as_numpy(on_host(frame)),
    "arrow": _arrow,
    "device": _on_device,
}
