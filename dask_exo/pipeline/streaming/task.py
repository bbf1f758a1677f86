"""The code that runs in a task of a pipeline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dask_exo.cluster.failpoints import reach
from dask_exo.cluster.sampling import TaskSamples, printed, sampling
from dask_exo.errors import Failure
from dask_exo.execution.messages import driver_settings
from dask_exo.partitions.digest import digest
from dask_exo.partitions.gpu import memory
from dask_exo.partitions.gpu.shuffle import start_copy
from dask_exo.partitions.gpu_frames import DeviceFrame
from dask_exo.pipeline.streaming.blocks import Frame, Origin, RejectReason, concat
from dask_exo.pipeline.streaming.transforms import (
    CallError,
    ErrorPolicy,
    Frames,
    Place,
    Transform,
    UserCalls,
    apply,
    frame_of,
    on_host,
)


class StageCode(NamedTuple):
    """Code and settings of a stage that its tasks need."""

    key: str  # of this stage of this pipeline
    transforms: Sequence[Transform]
    target: int  # bytes of its outputs
    error_policy: ErrorPolicy  # for exceptions while inputs are made
    settings: Mapping[str, Any]  # of Dask's configuration
    nondeterminism: str = "error"  # or "warn", "ignore": a task that runs again differs
    is_sampled: bool = False  # an observer wants samples of what it does

    @property
    def name(self) -> str:
        """Name of the stage, for messages."""
        return " > ".join(transform.name for transform in self.transforms) or "source"

    @property
    def skips(self) -> bool:
        """True if any failure costs no more than the input of a task."""
        return self.error_policy.skip and all(t.error_policy.skip for t in self.transforms)


class TaskInputs(NamedTuple):
    """Description of the inputs of a task."""

    place: Place  # of the first of them
    skip: int  # outputs of earlier attempts, which are left out
    origins: Sequence[Origin]  # of each of them
    only: bool = False  # one block is wanted, the first after ``skip``


class BlockMetadata(NamedTuple):
    """Metadata that a task sends with each block.

    A driver that has seen another digest than ``before`` has taken blocks of an attempt that made
    others.
    """

    nbytes: int = 0
    rows: int = 0
    seconds: float = 0.0  # of work
    more: bool = False  # another block may follow
    origin: Origin = Origin(())
    rejected: RejectReason | None = None  # set if the block is an input that was set aside
    failure: Failure | None = None  # has ended the task; there is no block then
    before: int = 0  # digest of all blocks of the task before this one
    digest: int = 0  # of those and this one
    held: memory.GpuMemoryUse | None = None  # GPU memory that the task has used so far
    samples: TaskSamples | None = None  # since the block before


Output = tuple[BlockMetadata, Any]
"""A frame and its metadata, as far as its maker knows it."""


class StageActor:
    """Actor that runs tasks of stages with equal requests, and keeps instances of their classes.

    Parameters
    ----------
    code : StageCode, optional
        Of a stage whose classes are instantiated before it has tasks.
    """

    def __init__(self, code: StageCode | None = None) -> None:
        self._funcs: dict[str, list[Callable[..., Any]]] = {}
        if code is not None:
            with contextlib.suppress(Exception):  # raised where a task needs it
                self._functions(code)

    def run(self, code: StageCode, task: TaskInputs, *inputs: Any) -> Iterator[Any]:
        """Run a stage on blocks: frames, or functions that make them.

        Yields
        ------
        object
            In turns a frame, and its `BlockMetadata`.
        """
        try:
            funcs, total = self._functions(code), 0
            start_time = time.perf_counter()
            memory.begin()
            with driver_settings(code.settings), sampling(__name__, on=code.is_sampled) as take:
                for i, (metadata, frame) in enumerate(_outputs(code, funcs, task, inputs)):
                    before = total
                    if code.nondeterminism != "ignore":
                        total = digest(before.to_bytes(4), frame)
                    if i < task.skip:
                        continue
                    reach("piece", code.name)
                    seconds = time.perf_counter() - start_time
                    yield frame
                    yield metadata._replace(
                        seconds=seconds,
                        before=before,
                        digest=total,
                        held=memory.held(),
                        samples=take(),
                        more=metadata.more and not task.only,
                    )
                    if task.only:
                        return
                    start_time = time.perf_counter()  # the driver has taken the block
        except CallError as error:
            yield None
            yield BlockMetadata(failure=replace(error.failure, printed=printed()))
        except Exception as error:  # noqa: BLE001  reported to the driver, which raises it
            yield None
            yield BlockMetadata(failure=Failure.of(code.name, error, printed()))

    def _functions(self, code: StageCode) -> list[Callable[..., Any]]:
        funcs = self._funcs.get(code.key)
        if funcs is None:
            with driver_settings(code.settings):
                funcs = [transform.make() for transform in code.transforms]
            self._funcs[code.key] = funcs
        return funcs


def run(code: StageCode, task: TaskInputs, *inputs: Any) -> Iterator[Any]:
    """Run a stage as `StageActor.run` does, once."""
    yield from StageActor().run(code, task, *inputs)


def _outputs(
    code: StageCode, funcs: Sequence[Callable[[Any], Any]], task: TaskInputs, inputs: Sequence[Any]
) -> Iterator[Output]:
    """Yield blocks, and before each the inputs that were set aside meanwhile."""
    calls = UserCalls(code.name)
    frames = _input_frames(code, calls, task, inputs)
    for transform, func in zip(code.transforms, funcs, strict=True):
        frames = apply(transform, func, frames, task.place, calls)
    for output in repartition(to_host_ahead(frames), code.target):
        yield from _rejects(calls)
        yield output
    yield from _rejects(calls)


def _rejects(calls: UserCalls) -> Iterator[Output]:
    """Yield the inputs that were set aside since the last call."""
    while calls.rejects:
        reason, data = calls.rejects.pop(0)
        data = on_host(data)
        nbytes, rows = (0, 0) if data is None else (size(data), len(data))
        yield BlockMetadata(nbytes, rows, more=True, origin=reason.origin, rejected=reason), data


def _input_frames(
    code: StageCode, calls: UserCalls, task: TaskInputs, inputs: Sequence[Any]
) -> Frames:
    """Yield the inputs of a task as one frame."""
    frames: list[Frame] = []
    for value, origin in zip(inputs, task.origins, strict=True):
        source = Frame(None, last=False, origin=origin)
        outputs = calls.outputs("source", code.error_policy, partial(_input, value), source)
        frames += [Frame(data, last=True, origin=origin.counted(len(data))) for data in outputs]
    yield concat(frames) or Frame(None, last=True)


def _input(value: Any) -> Iterator[Any]:
    data = value() if callable(value) else value
    if isinstance(data, Failure):  # of a task whose reference was known before it ran
        data.reraise()
    yield on_host(frame_of(data))


def to_host_ahead(frames: Frames) -> Frames:
    """Yield frames in host memory, in order; each is copied while the next one is computed.

    A frame on a device is yielded when the next one has been computed, unless it is the last.
    """
    previous: Callable[[], Frame] | None = None
    for frame in frames:
        copy = _begin_copy(frame)
        if previous is not None:
            yield previous()
        previous = copy
        if frame.last or not isinstance(frame.data, DeviceFrame):
            yield previous()
            previous = None
    if previous is not None:
        yield previous()


def _begin_copy(frame: Frame) -> Callable[[], Frame]:
    """Begin to copy a frame to host memory; return a function that waits for it."""
    if not isinstance(frame.data, DeviceFrame):
        return lambda: frame._replace(data=on_host(frame.data))
    wait = start_copy(frame.data)
    return lambda: frame._replace(data=wait().frame("numpy").to_pandas())


def size(frame: Any) -> int:
    """Return the bytes of a frame; equal rows have equal bytes.

    Examples
    --------
    >>> import pandas as pd
    >>> image = np.zeros((2, 100, 100))
    >>> size(pd.DataFrame({"image": list(image)})) > image.nbytes  # views of one array
    True
    """
    total = int(frame.index.memory_usage(deep=True))
    for i, kind in enumerate(frame.dtypes):
        if isinstance(kind, np.dtype) and not kind.hasobject:  # pandas would look at each column
            total += kind.itemsize * len(frame)
            continue
        column = frame.iloc[:, i]
        total += int(column.memory_usage(index=False, deep=True))
        if kind == np.dtype(object):
            total += sum(map(_array_bytes, column))
    return total


def _array_bytes(value: Any) -> int:
    """Return the bytes of an array that does not own them; pandas counts the others."""
    return value.nbytes if isinstance(value, np.ndarray) and not value.flags.owndata else 0


def repartition(frames: Frames, target: int) -> Iterator[Output]:
    """Split and concatenate frames into blocks of a target size, as soon as there is enough.

    Blocks depend on the rows and the target alone, so that a task that runs again makes the same
    ones. A block exceeds ``target`` bytes by less than a frame, or a row.

    References: thesis section 2.4.2.1.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"a": range(100)}, index=range(100))
    >>> frames = [Frame(frame, last=False), Frame(frame, last=True)]
    >>> [(block.rows, block.more) for block, _ in repartition(iter(frames), target=1000)]
    [(100, True), (100, False)]
    >>> [block.rows for block, _ in repartition(iter(frames[1:]), target=500)]
    [50, 50]
    """
    waiting: list[Frame] = []
    nbytes = 0
    for frame in frames:
        if frame.data is not None:
            waiting.append(frame)
            nbytes += size(frame.data)
        if nbytes >= target or frame.last:
            yield from _cut(waiting, nbytes, target, more=not frame.last)
            waiting, nbytes = [], 0
    yield from _cut(waiting, nbytes, target, more=False)


def _cut(frames: list[Frame], nbytes: int, target: int, *, more: bool) -> Iterator[Output]:
    """Split the concatenation of frames into blocks."""
    frame = concat(frames)
    if frame is None:
        return
    data, _, origin = frame
    count = min(max(1, round(nbytes / target)), max(1, len(data)))
    if count == 1:
        nbytes = nbytes if len(frames) == 1 else size(data)
        yield BlockMetadata(nbytes, len(data), more=more, origin=origin), data
        return
    edges = [len(data) * i // count for i in range(count + 1)]
    for i, (low, high) in enumerate(pairwise(edges), 1):
        part, rows = data.iloc[low:high], origin.part(low, high)
        yield BlockMetadata(size(part), high - low, more=more or i < count, origin=rows), part
