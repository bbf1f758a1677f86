"""What runs in a task of a pipeline."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import dask
import pandas as pd

from dask_exo.failure import Failure
from dask_exo.stream.repartition import repartition
from dask_exo.stream.transforms import Frames, Place, Transform, apply


class Code(NamedTuple):
    """Everything of a stage that its tasks need.

    Attributes
    ----------
    key : str
        Of this stage of this pipeline.
    transforms : sequence of Transform
    target : int
        Bytes of its outputs.
    retries : int
        How often a task runs again that raised an exception.
    settings : mapping
        Of Dask's configuration.
    """

    key: str
    transforms: Sequence[Transform]
    target: int
    retries: int
    settings: Mapping[str, Any]


class About(NamedTuple):
    """What goes with each piece: bytes, rows, seconds of work, whether another may follow; or what
    went wrong.
    """

    nbytes: int = 0
    rows: int = 0
    seconds: float = 0.0
    more: bool = False
    failure: Failure | None = None


class Worker:
    """Runs tasks of stages that ask for the same; keeps what the classes among them have made.

    Parameters
    ----------
    code : Code, optional
        Of a stage that is going to have tasks: its instances are made before there is one.
    """

    def __init__(self, code: Code | None = None) -> None:
        self._funcs: dict[str, list[Callable[..., Any]]] = {}
        if code is not None:
            with contextlib.suppress(Exception):  # raised where a task needs it
                self._made(code)

    def run(self, code: Code, place: Place, skip: int, *inputs: Any) -> Iterator[Any]:
        """Do what a stage does to some pieces.

        Parameters
        ----------
        code : Code
        place : tuple of int
            Of the first of them.
        skip : int
            Pieces that were given before the task was lost: they are not given again.
        *inputs
            Frames, or callables that make them.

        Yields
        ------
        object
            In turns a frame, and what is to be known `About` it.
        """
        try:
            funcs = self._made(code)
        except Exception as error:  # noqa: BLE001  reported to the driver, which raises it
            yield None
            yield About(failure=Failure.of(_name(code), error))
            return
        yield from _pieces(code, funcs, place, skip, inputs)

    def _made(self, code: Code) -> list[Callable[..., Any]]:
        funcs = self._funcs.get(code.key)
        if funcs is None:
            with dask.config.set(code.settings):
                funcs = [transform.make() for transform in code.transforms]
            self._funcs[code.key] = funcs
        return funcs


def run(code: Code, place: Place, skip: int, *inputs: Any) -> Iterator[Any]:
    """Do as `Worker.run`, once."""
    yield from Worker().run(code, place, skip, *inputs)


def _pieces(
    code: Code,
    funcs: Sequence[Callable[[Any], Any]],
    place: Place,
    skip: int,
    inputs: Sequence[Any],
) -> Iterator[Any]:
    given, start = 0, time.perf_counter()
    for attempt in range(code.retries + 1):
        try:
            with dask.config.set(code.settings):
                frames = _frames(inputs)
                for transform, func in zip(code.transforms, funcs, strict=True):
                    frames = apply(transform, func, frames, place)
                for i, cut in enumerate(repartition(frames, code.target)):
                    if i < max(skip, given):
                        continue
                    given = i + 1
                    seconds = time.perf_counter() - start
                    yield cut.frame
                    yield About(cut.nbytes, len(cut.frame), seconds, cut.more)
                    start = time.perf_counter()  # now somebody wants the next one
        except Exception as error:  # noqa: BLE001  reported to the driver, which raises it
            if attempt == code.retries:
                yield None
                yield About(failure=Failure.of(_name(code), error))
        else:
            return


def _name(code: Code) -> str:
    return " > ".join(transform.name for transform in code.transforms) or "source"


def _frames(inputs: Sequence[Any]) -> Frames:
    """The inputs of a task as one frame; each that is to be made by itself."""
    made = [one() if callable(one) else one for one in inputs]
    for one in made:
        if isinstance(one, Failure):  # of a task whose reference was known before it ran
            one.reraise()
    full = [one for one in made if len(one)] or made[:1]
    yield (full[0] if len(full) == 1 else pd.concat(full)), True
