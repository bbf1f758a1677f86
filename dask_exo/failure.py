"""An exception on its way from a worker to the caller, with its traceback."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

import cloudpickle
import tblib.pickling_support

from dask_exo.errors import ResultError


class _Bare:
    """Unpickles to an exception of the same type and arguments, without its traceback."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._error), self._error.args


def _round_trip(error: object) -> bytes | None:
    """Pickle an exception, or say that it cannot be: some only fail on the way back."""
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)  # noqa: S301  pickled in the line before
    except Exception:  # noqa: BLE001  whatever it is, there is another way
        return None
    return data


@dataclass(frozen=True)
class Failure:
    """What made a task fail.

    Attributes
    ----------
    key : object
        Dask key of the task.
    pickled : bytes or None
        The exception, with traceback and causes; None where it cannot be pickled.
    text : str
        The traceback as text.
    """

    key: Any
    pickled: bytes | None
    text: str

    @classmethod
    def of(cls, key: Any, error: BaseException) -> Failure:
        """Pack ``error``; frames of dask_exo itself are left out of its traceback."""
        text = "".join(traceback.format_exception(error))
        tblib.pickling_support.install(error)
        whole = _round_trip(error)
        return cls(key, _round_trip(_Bare(error)) if whole is None else whole, text)

    def reraise(self) -> NoReturn:
        """Raise the exception as the task raised it, with a note that names the key."""
        if self.pickled is None:
            last = self.text.strip().splitlines()[-1]
            raise ResultError(
                f"task {self.key!r} failed with an exception that cannot be pickled: {last}\n"
                f"{self.text}"
            )
        error: BaseException = pickle.loads(self.pickled)  # noqa: S301  our own worker's bytes
        error.add_note(f"dask_exo: raised by task {self.key!r}")
        raise error
