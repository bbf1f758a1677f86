"""Exceptions that are sent from a worker to the caller, with traceback and causes."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import cloudpickle
from tblib import Traceback

from dask_exo.errors import ResultError

MOST_CAUSES = 16
MOST_FRAMES = 200  # of a traceback: pickle goes one level deeper for each


@dataclass(frozen=True)
class Link:
    """One exception of a chain of causes.

    Attributes
    ----------
    pickled : bytes
        The exception without its causes.
    trace : dict or None
        Its traceback, as a dictionary of `tblib.Traceback`.
    cause : bool
        Whether it is the ``__cause__`` of the one before, and not only its ``__context__``.
    left_out : int
        Frames in the middle of the traceback that are not in ``trace``.
    """

    pickled: bytes
    trace: dict[str, Any] | None
    cause: bool
    left_out: int = 0


@dataclass(frozen=True)
class Failure:
    """The exception of a failed task.

    Attributes
    ----------
    key : object
        Dask key of the task.
    links : tuple of Link
        The exception and its causes; empty if it cannot be pickled.
    text : str
        The traceback as text.
    """

    key: Any
    links: tuple[Link, ...]
    text: str

    @classmethod
    def of(cls, key: Any, error: BaseException) -> Failure:
        """Pack ``error`` and its causes."""
        text = "".join(traceback.format_exception(error))
        return cls(key, tuple(_links(error)), text)

    def reraise(self) -> NoReturn:
        """Raise the exception as the task raised it, with a note that names the key."""
        raise self.error()

    def error(self) -> BaseException:
        """Make the exception as the task raised it, with a note that names the key."""
        if not self.links:
            last = self.text.strip().splitlines()[-1]
            return ResultError(
                f"task {self.key!r} failed with an exception that cannot be pickled: {last} "
                f"(raise one of a class in a module, with its arguments in args)\n{self.text}"
            )
        errors = [_unpack(link) for link in self.links]
        for error, behind, link in zip(errors, errors[1:], self.links[1:], strict=False):
            if link.cause:
                error.__cause__ = behind
            else:
                error.__context__ = behind
        errors[0].add_note(f"dask_exo: raised by task {self.key!r}")
        return errors[0]


def _links(error: BaseException) -> Iterator[Link]:
    """Yield the exception, its cause or context, and so on, while they can be pickled."""
    current: BaseException | None = error
    cause = False
    for _ in range(MOST_CAUSES):
        pickled = None if current is None else _pickled(current)
        if current is None or pickled is None:
            return
        trace, left_out = _shortened(current.__traceback__)
        state = None if trace is None else Traceback(trace).as_dict()
        yield Link(pickled, state, cause, left_out)
        cause = current.__cause__ is not None
        hidden = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or hidden


def _shortened(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """Return a traceback without the middle of a deep recursion, and the frames left out."""
    frames = list(_frames(trace))
    left_out = len(frames) - MOST_FRAMES
    if left_out <= 0:
        return trace, 0
    half = MOST_FRAMES // 2
    short = None
    for one in reversed(frames[:half] + frames[-half:]):
        short = TracebackType(short, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return short, left_out


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _unpack(link: Link) -> BaseException:
    error: BaseException = pickle.loads(link.pickled)  # noqa: S301  our own worker's bytes
    if link.left_out:
        error.add_note(f"dask_exo: {link.left_out} frames in the middle are left out")
    trace = None if link.trace is None else Traceback.from_dict(link.trace).as_traceback()
    return error.with_traceback(trace)


class _Bare:
    """Unpickles to an exception of the same type and arguments, and no more of its state."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._error), self._error.args


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an exception whole, or at least bare; None if neither survives both ways."""
    for form in (error, _Bare(error)):
        try:
            data: bytes = cloudpickle.dumps(form)
            # not kept: where tblib is registered its traceback would lead back to this frame
            survives = isinstance(pickle.loads(data), BaseException)  # noqa: S301  our own bytes
        except Exception:  # noqa: BLE001  any error: try the next form
            continue
        if survives:
            return data
    return None
