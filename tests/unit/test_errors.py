"""Exceptions on their way from a worker to the caller."""

from __future__ import annotations

import pickle
import threading

import pytest
import tblib.pickling_support

from dask_exo import errors
from dask_exo.errors import MOST_FRAMES, Failure

LEAVES = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.ExoError) and cls is not errors.ExoError
]


@pytest.mark.parametrize("cls", LEAVES)
def test_errors_are_pickled_by_tblib_as_in_distributed(cls) -> None:
    error = cls("what, where")
    tblib.pickling_support.install(error)
    assert str(pickle.loads(pickle.dumps(error))) == "what, where"  # noqa: S301


@pytest.mark.parametrize("cls", LEAVES)
def test_errors_are_builtins_too_and_survive_pickling(cls) -> None:
    assert len(cls.__mro__) > len(errors.ExoError.__mro__) + 1
    assert str(pickle.loads(pickle.dumps(cls("what, where")))) == "what, where"  # noqa: S301
    with pytest.raises(cls, match="what, where") as caught:
        Failure.of("key", cls("what, where")).reraise()
    assert caught.value.__notes__ == ["dask_exo: raised by task 'key'"]


def divide(x: int) -> float:
    return x / 0


def test_the_traceback_of_the_task_comes_along() -> None:
    try:
        divide(1)
    except ZeroDivisionError as error:
        failure = Failure.of(("name", 3), error)
    with pytest.raises(ZeroDivisionError) as caught:
        pickle.loads(pickle.dumps(failure)).reraise()  # noqa: S301
    assert caught.traceback[-1].name == "divide"


def chained() -> None:
    try:
        divide(1)
    except ZeroDivisionError as error:
        raise KeyError("no such ratio") from error


def test_causes_and_their_tracebacks_come_along() -> None:
    try:
        chained()
    except KeyError as error:
        failure = Failure.of("key", error)
    with pytest.raises(KeyError) as caught:
        pickle.loads(pickle.dumps(failure)).reraise()  # noqa: S301
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert cause.__traceback__.tb_next.tb_frame.f_code.co_name == "divide"


def descend(depth: int) -> None:
    if depth == 0:
        raise ValueError("bad leaf")
    descend(depth - 1)


@pytest.mark.parametrize("depth", [50, 150, 250, 600, 900])
def test_a_deep_traceback_loses_its_middle_and_nothing_else(depth: int) -> None:
    try:
        descend(depth)
    except ValueError as error:
        failure = Failure.of("key", error)
    with pytest.raises(ValueError, match="bad leaf") as caught:
        pickle.loads(pickle.dumps(failure)).reraise()  # noqa: S301
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "descend"
    left_out = depth + 2 - MOST_FRAMES
    assert names.count("descend") == min(depth + 1, MOST_FRAMES - 1)
    notes = " ".join(caught.value.__notes__)
    assert (f"{left_out} frames in the middle are left out" in notes) == (left_out > 0)


def endless(depth: int) -> int:
    return endless(depth + 1) + 1


def test_a_recursion_without_end_is_a_recursion_error() -> None:
    try:
        endless(0)
    except RecursionError as error:
        failure = Failure.of("key", error)
    with pytest.raises(RecursionError, match="maximum recursion depth"):
        pickle.loads(pickle.dumps(failure)).reraise()  # noqa: S301


def test_what_cannot_be_pickled_comes_as_text() -> None:
    error = ValueError("held", threading.Lock())
    with pytest.raises(errors.ResultError, match=r"'key' failed .* ValueError: \('held'"):
        Failure.of("key", error).reraise()
