"""What a stage does to frames: transforms one after the other, in one task.

Each takes an iterator of frames and gives one. With each frame goes whether it is known to be the
last, so that whoever gets it does not have to wait for a next one. What functions yield goes on at
once; of that the last is not known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from dask_exo.frame.batches import as_numpy

Frames = Iterator[tuple[Any, bool]]
"""Frames, and whether each is known to be the last one."""

Place = tuple[int, ...]
"""Where a piece belongs: number of the source's input, then number of the output in each stage."""


@dataclass(frozen=True)
class Transform:
    """A function of the user's, and how it is called.

    Attributes
    ----------
    kind : str
        ``"partitions"``, ``"batches"``, ``"rows"``, ``"filter"``, or ``"write"``, of which the
        function gets a name for the frame as well, that no other frame of the pipeline has.
    func : callable
        Or a class, of which each worker makes an instance once, and calls that.
    args, kwargs
        For the function after the data, or for the class.
    batch_size : int, optional
        Rows of a batch; None for as many as there are.
    format : str
        What a batch is: ``"pandas"``, ``"numpy"`` (a dict of arrays) or ``"arrow"``.
    """

    kind: str
    func: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    format: str = "pandas"

    @property
    def name(self) -> str:
        """For people."""
        return str(getattr(self.func, "__name__", type(self.func).__name__))

    @property
    def stateful(self) -> bool:
        """Whether it is a class."""
        return inspect.isclass(self.func)

    def make(self) -> Callable[..., Any]:
        """The function to call with data."""
        if self.stateful:
            made: Callable[..., Any] = self.func(*self.args, **self.kwargs)
            return made
        return lambda *data: self.func(*data, *self.args, **self.kwargs)


def apply(
    transform: Transform, func: Callable[..., Any], frames: Frames, place: Place = ()
) -> Frames:
    """Transform frames.

    Parameters
    ----------
    transform : Transform
    func : callable
        What its `make` gave.
    frames : iterator
    place : tuple of int
        Of the first input of the task.

    Examples
    --------
    >>> frame = pd.DataFrame({"a": range(5)})
    >>> double = Transform("batches", lambda b: b * 2, batch_size=2)
    >>> [(len(f), last) for f, last in apply(double, double.make(), iter([(frame, True)]))]
    [(2, False), (2, False), (1, True)]
    """
    for number, (frame, last) in enumerate(frames):
        if transform.kind == "write":
            yield frame_of(func(frame, "-".join(map(str, (*place, number))))), last
        elif transform.kind == "filter":
            yield frame[func(frame)], last
        elif transform.kind == "rows":
            rows = [new for row in frame.to_dict("records") for new in func(row)]
            yield pd.DataFrame(rows), last
        elif transform.kind == "partitions":
            yield from _given(func(frame), last=last)
        else:
            batches = list(cut(frame, transform.batch_size))
            for i, batch in enumerate(batches):
                made = func(FORMATS[transform.format](batch))
                yield from _given(made, last=last and i == len(batches) - 1)


def cut(frame: Any, rows: int | None) -> Iterator[Any]:
    """Slices of so many rows; one of an empty frame."""
    if rows is None or len(frame) <= rows:
        yield frame
        return
    for start in range(0, len(frame), rows):
        yield frame.iloc[start : start + rows]


def _given(made: Any, *, last: bool) -> Frames:
    """What a function has returned: one frame, or an iterator of several."""
    if not isinstance(made, Iterator):
        yield frame_of(made), last
        return
    nothing = True
    for one in made:
        nothing = False
        yield frame_of(one), False  # at once: whether another follows only the function knows
    if nothing:
        yield pd.DataFrame(), last


def frame_of(data: Any) -> Any:
    """Whatever a function returns, as a frame."""
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

    return pa.Table.from_pandas(frame, preserve_index=False)


FORMATS: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda frame: frame,
    "numpy": as_numpy,
    "arrow": _arrow,
}
