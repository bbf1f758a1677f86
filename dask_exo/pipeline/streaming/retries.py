"""Calls of users' functions: retried, set aside, or the end of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dask_exo.pipeline.streaming.provenance import Frame, Origin, RejectReason
from dask_exo.remote_error import Failure


class ErrorPolicy(NamedTuple):
    """Reaction to exceptions of users' functions.

    Attributes
    ----------
    retries : int
        How often a call is tried again.
    skip : bool
        Whether its input is set aside then; else the pipeline ends.
    """

    retries: int = 0
    skip: bool = False


RAISE = ErrorPolicy()


class CallError(Exception):
    """A call that failed for good; `failure` names the error and the rows."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.key)
        self.failure = failure


class UserCalls:
    """Calls of users' functions in one task.

    Parameters
    ----------
    stage : str
        Its name.

    Attributes
    ----------
    rejects : list of (RejectReason, object)
        Inputs that were set aside, in the order of the calls.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self.rejects: list[tuple[RejectReason, Any]] = []

    def outputs(
        self, function: str, error_policy: ErrorPolicy, call: Callable[[], Iterator[Any]], of: Frame
    ) -> Iterator[Any]:
        """Yield the outputs of a call; none if its input is set aside.

        Where that may happen, nothing is given before all has been made.

        Parameters
        ----------
        function : str
            Name of what is called.
        error_policy : ErrorPolicy
        call : callable
            Calls it; gives what it yields.
        of : Frame
            The input.

        Raises
        ------
        CallError
            It has failed, and may not be set aside.
        """
        given = 0
        for attempt in range(error_policy.retries + 1):
            try:
                if error_policy.skip:
                    yield from list(call())
                    return
                for i, one in enumerate(call()):
                    if i >= given:
                        given = i + 1
                        yield one
            except Exception as error:  # noqa: BLE001  raised in the driver, or set aside
                if attempt == error_policy.retries:
                    self.reject(function, error_policy, error, of)
            else:
                return

    def reject(self, function: str, error_policy: ErrorPolicy, error: Exception, of: Frame) -> None:
        """Set an input aside; raise `CallError` if that is not allowed."""
        failure = Failure.of(call_name(self._stage, function, of.origin), error)
        if not error_policy.skip:
            raise CallError(failure) from error
        self.rejects.append((RejectReason(self._stage, function, of.origin, failure), of.data))


def call_name(stage: str, function: str, origin: Origin) -> str:
    """Return a text that names a call."""
    where = stage if function == stage else f"{function} in {stage}"
    return f"{where} on {origin}"
