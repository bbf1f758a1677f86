"""An exception on its way from a worker to the caller, with its traceback."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

import cloudpickle
import tblib.pickling_support

from dask_exo.errors import ResultError


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
        try:
            tblib.pickling_support.install(error)
            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)  # noqa: S301  some exceptions only fail on the way back
        except Exception:  # noqa: BLE001  any failure to pickle means: send the text
            pickled = None
        return cls(key, pickled, text)

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
