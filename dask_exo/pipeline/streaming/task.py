"""The code that runs in a task of a pipeline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import dask
import numpy as np
import pandas as pd

from dask_exo.cluster.failpoints import reach
from dask_exo.errors import Failure
from dask_exo.partitions.digest import digest
from dask_exo.partitions.gpu import memory
from dask_exo.partitions.gpu.shuffle import begin
from dask_exo.partitions.gpu_frames import DeviceFrame
from dask_exo.pipeline.streaming.blocks import Frame, Origin, RejectReason, joined
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
    """Code and settings of a stage that its tasks need.

    Attributes
    ----------
    key : str
        Of this stage of this pipeline.
    transforms : sequence of Transform
    target : int
        Bytes of its outputs.
    error_policy : ErrorPolicy
        What is done about exceptions where the inputs are made.
    settings : mapping
        Of Dask's configuration.
    nondeterminism : str
        Reaction to a task that restarts and makes other blocks than before: ``"error"``,
        ``"warn"`` or ``"ignore"``.
    """

    key: str
    transforms: Sequence[Transform]
    target: int
    error_policy: ErrorPolicy
    settings: Mapping[str, Any]
    nondeterminism: str = "error"

    @property
    def name(self) -> str:
        """Name of the stage, for messages."""
        return " > ".join(transform.name for transform in self.transforms) or "source"

    @property
    def skips(self) -> bool:
        """Return whether any failure costs no more than the input of a task."""
        return self.error_policy.skip and all(t.error_policy.skip for t in self.transforms)


class TaskInputs(NamedTuple):
    """Description of the inputs of a task.

    Attributes
    ----------
    place : tuple of int
        Of the first of them.
    skip : int
        Blocks that were given before the task was lost: they are not given again.
    origins : sequence of Origin
        Of each of them.
    only : bool
        Whether no more than one block is wanted.
    """

    place: Place
    skip: int
    origins: Sequence[Origin]
    only: bool = False


class BlockMetadata(NamedTuple):
    """Metadata that a task sends with each block.

    Attributes
    ----------
    nbytes, rows : int
    seconds : float
        Of work.
    more : bool
        Whether another may follow.
    origin : Origin
    rejected : RejectReason, optional
        Why it was set aside.
    failure : Failure, optional
        What has ended the task; there is no block then.
    before, digest : int
        Of all blocks of the task before this one, and of those and this one. A driver that has seen
        another digest has taken blocks of an attempt that made others.
    held : GpuMemoryUse, optional
        Of a device, by the task so far; None where its process has none.
    """

    nbytes: int = 0
    rows: int = 0
    seconds: float = 0.0
    more: bool = False
    origin: Origin = Origin(())
    rejected: RejectReason | None = None
    failure: Failure | None = None
    before: int = 0
    digest: int = 0
    held: memory.GpuMemoryUse | None = None


class StageActor:
    """Actor that runs tasks of stages with equal requests, and keeps instances of their classes.

    Parameters
    ----------
    code : StageCode, optional
        Of a stage that is going to have tasks: its instances are made before there is one.
    """

    def __init__(self, code: StageCode | None = None) -> None:
        self._funcs: dict[str, list[Callable[..., Any]]] = {}
        if code is not None:
            with contextlib.suppress(Exception):  # raised where a task needs it
                self._made(code)

    def run(self, code: StageCode, start: TaskInputs, *inputs: Any) -> Iterator[Any]:
        """Run a stage on some blocks.

        Parameters
        ----------
        code : StageCode
        start : TaskInputs
        *inputs
            Frames, or callables that make them.

        Yields
        ------
        object
            In turns a frame, and what is to be known `BlockMetadata` it.
        """
        try:
            funcs = self._made(code)
        except Exception as error:  # noqa: BLE001  reported to the driver, which raises it
            yield None
            yield BlockMetadata(failure=Failure.of(code.name, error))
            return
        yield from _blocks(code, funcs, start, inputs)

    def _made(self, code: StageCode) -> list[Callable[..., Any]]:
        funcs = self._funcs.get(code.key)
        if funcs is None:
            with dask.config.set(code.settings):
                funcs = [transform.make() for transform in code.transforms]
            self._funcs[code.key] = funcs
        return funcs


def run(code: StageCode, start: TaskInputs, *inputs: Any) -> Iterator[Any]:
    """Run a stage as `StageActor.run` does, once."""
    yield from StageActor().run(code, start, *inputs)


def _blocks(
    code: StageCode, funcs: Sequence[Callable[[Any], Any]], start: TaskInputs, inputs: Sequence[Any]
) -> Iterator[Any]:
    since, told = time.perf_counter(), 0
    memory.begin()
    try:
        with dask.config.set(code.settings):
            for i, (about, frame) in enumerate(_made(code, funcs, start, inputs)):
                before = told
                if code.nondeterminism != "ignore":
                    told = digest(before.to_bytes(4), frame)
                if i < start.skip:
                    continue
                reach("piece", code.name)
                seconds = time.perf_counter() - since
                yield frame
                more, held = about.more and not start.only, memory.held()
                yield about._replace(
                    seconds=seconds, before=before, digest=told, held=held, more=more
                )
                if start.only:
                    return
                since = time.perf_counter()  # the driver has taken the block
    except CallError as error:
        yield None
        yield BlockMetadata(failure=error.failure)
    except Exception as error:  # noqa: BLE001  reported to the driver, which raises it
        yield None
        yield BlockMetadata(failure=Failure.of(code.name, error))


def _made(
    code: StageCode, funcs: Sequence[Callable[[Any], Any]], start: TaskInputs, inputs: Sequence[Any]
) -> Iterator[tuple[BlockMetadata, Any]]:
    """Yield blocks, and before each the inputs that were set aside meanwhile."""
    calls = UserCalls(code.name)
    frames = _frames(code, calls, start, inputs)
    for transform, func in zip(code.transforms, funcs, strict=True):
        frames = apply(transform, func, frames, start.place, calls)
    for cut in repartition(to_host_ahead(frames), code.target):
        yield from _set_aside(calls)
        yield BlockMetadata(cut.nbytes, len(cut.frame), 0.0, cut.more, cut.origin), cut.frame
    yield from _set_aside(calls)


def _set_aside(calls: UserCalls) -> Iterator[tuple[BlockMetadata, Any]]:
    """Yield the inputs that were set aside since the last call."""
    while calls.rejects:
        rejected, data = calls.rejects.pop(0)
        data = on_host(data)
        nbytes, rows = (0, 0) if data is None else (size(data), len(data))
        yield (
            BlockMetadata(nbytes, rows, more=True, origin=rejected.origin, rejected=rejected),
            data,
        )


def _frames(code: StageCode, calls: UserCalls, start: TaskInputs, inputs: Sequence[Any]) -> Frames:
    """Yield the inputs of a task as one frame."""
    made: list[Frame] = []
    for one, origin in zip(inputs, start.origins, strict=True):
        of = Frame(None, last=False, origin=origin)
        for data in calls.outputs("source", code.error_policy, partial(_input, one), of):
            made.append(Frame(data, last=True, origin=origin.counted(len(data))))  # noqa: PERF401
    full = [one for one in made if len(one.data)] or made[:1]
    if len(full) > 1:
        origin = joined([one.origin for one in full])
        yield Frame(pd.concat([one.data for one in full]), last=True, origin=origin)
    else:
        yield full[0] if full else Frame(None, last=True)


def _input(one: Any) -> Iterator[Any]:
    data = one() if callable(one) else one
    if isinstance(data, Failure):  # of a task whose reference was known before it ran
        data.reraise()
    yield on_host(frame_of(data))


def to_host_ahead(frames: Frames) -> Frames:
    """Yield frames in host memory, in their order; one copies while the next one is computed.

    A frame on a device is yielded when the next one has been computed, unless it is the last.

    Parameters
    ----------
    frames : iterator of Frame
    """
    coming: Callable[[], Frame] | None = None
    for frame in frames:
        following = _begin(frame)
        if coming is not None:
            yield coming()
        coming = following
        if frame.last or not isinstance(frame.data, DeviceFrame):
            yield coming()
            coming = None
    if coming is not None:
        yield coming()


def _begin(frame: Frame) -> Callable[[], Frame]:
    """Begin to copy a frame to host memory."""
    if not isinstance(frame.data, DeviceFrame):
        return lambda: frame._replace(data=on_host(frame.data))
    packed = begin(frame.data)
    return lambda: frame._replace(data=packed().frame("numpy").to_pandas())


class Cut(NamedTuple):
    """A block: its frame, bytes and origin, and whether another one may follow."""

    frame: Any
    nbytes: int
    more: bool
    origin: Origin = Origin(())


def size(frame: Any) -> int:
    """Return the bytes of a frame; equal rows have equal bytes.

    Examples
    --------
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


def repartition(frames: Frames, target: int) -> Iterator[Cut]:
    """Split and concatenate frames into blocks of a target size.

    Parameters
    ----------
    frames : iterator of Frame
    target : int
        Bytes: a block has that many or more only by one frame, or one row.

    Examples
    --------
    >>> frame = pd.DataFrame({"a": range(100)}, index=range(100))
    >>> blocks = list(
    ...     repartition(iter([Frame(frame, last=False), Frame(frame, last=True)]), target=1000)
    ... )
    >>> [(len(p.frame), p.more) for p in blocks]
    [(100, True), (100, False)]
    >>> [len(p.frame) for p in repartition(iter([Frame(frame, last=True)]), target=500)]
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
    if waiting:
        yield from _cut(waiting, nbytes, target, more=False)


def _cut(frames: list[Frame], nbytes: int, target: int, *, more: bool) -> Iterator[Cut]:
    """Split the concatenation of frames into blocks."""
    full = [one for one in frames if len(one.data)] or frames[:1]
    if not full:
        return
    whole = full[0].data if len(full) == 1 else pd.concat([one.data for one in full])
    origin = full[0].origin if len(full) == 1 else joined([one.origin for one in full])
    count = min(max(1, round(nbytes / target)), max(1, len(whole)))
    if count == 1:
        yield Cut(whole, nbytes if len(frames) == 1 else size(whole), more, origin)
        return
    edges = [len(whole) * i // count for i in range(count + 1)]
    for i in range(count):
        low, high = edges[i], edges[i + 1]
        part = whole.iloc[low:high]
        yield Cut(part, size(part), more or i + 1 < count, origin.part(low, high))
