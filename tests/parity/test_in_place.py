"""What a task does to its inputs, nobody else sees, and not itself when it runs again."""

from __future__ import annotations

import operator
import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo import Scheduler
from dask_exo.execution import worker
from dask_exo.testing import InlineFutures

ROWS = 6000
FRAME = pd.DataFrame(
    {
        "a": np.arange(ROWS) - 100,
        "x": np.arange(ROWS) * 0.5,
        "s": [f"row {i}" for i in range(ROWS)],
        "n": pd.array([None if i % 5 == 0 else i for i in range(ROWS)], dtype="Int64"),
        "t": pd.date_range("2026-01-01", periods=ROWS, freq="min", tz="UTC"),
        "c": pd.Categorical(["a", "b", "c"] * (ROWS // 3)),
        "o": pd.Series([[i] for i in range(ROWS)], dtype=object),
    }
)
X = np.arange(40_000.0).reshape(200, 200) - 1000


@pytest.fixture
def exo(monkeypatch):
    """A scheduler that keeps almost every value in its store, and has seen nobody write."""
    monkeypatch.setattr(worker, "_writing_groups", set())
    with dask.config.set({"exo.scheduler.small-result": 100, "dataframe.convert-string": False}):
        yield Scheduler(InlineFutures())


def mixed():
    """Containers and buffers in one value."""
    return {"array": np.zeros(5000), "list": [0], "frame": FRAME[["a", "x"]].head(3)}


def two_writes(value):
    """Change a container, and then a buffer."""
    value["list"].append(1)
    value["frame"]["y"] = 1
    value["array"] += 1
    return len(value["list"]), list(value["frame"].columns), value["array"].sum()


AFTER_TWO_WRITES = (2, ["a", "x", "y"], 5000.0)


def test_a_second_run_sees_what_the_first_one_saw(exo) -> None:
    assert dask.delayed(two_writes)(dask.delayed(mixed)()).compute(scheduler=exo) == (
        AFTER_TWO_WRITES
    )


def change_frame(df):
    df.insert(0, "first", 1)  # done twice it would raise
    df["o"].iloc[0].append("more")
    df.iloc[0, 1] = 7
    return df


def test_a_frame_is_what_it_was_when_a_task_runs_again(exo) -> None:
    shared = dask.delayed(FRAME.set_index)("a", drop=False)
    got = dask.delayed(change_frame)(shared).compute(scheduler=exo)
    expected = FRAME.set_index("a", drop=False)
    expected["o"] = [list(o) for o in FRAME["o"]]
    pd.testing.assert_frame_equal(got, change_frame(expected))


def test_a_shuffled_frame_is_what_it_was_when_a_task_runs_again(exo) -> None:
    ddf = dd.from_pandas(FRAME, npartitions=1).shuffle("a", npartitions=2)
    got = ddf.map_partitions(
        change_frame, meta=change_frame(FRAME.iloc[:1].assign(o=[[]])).iloc[:0]
    ).compute(scheduler=exo)
    assert list(got.columns) == ["first", *FRAME.columns]
    assert (got["o"].map(len) == 2).sum() == 2
    assert len(FRAME["o"].iloc[0]) == 1


runs: list[int] = []


def fail_once(value, options):
    value["list"].append(1)
    options["n"] = options.get("n", 0) + 1
    runs.append(1)
    if len(runs) == 1:
        raise OSError("try again")
    return len(value["list"]), options["n"]


def test_a_retry_sees_what_the_first_one_saw(exo) -> None:
    runs.clear()
    task = dask.delayed(fail_once)(dask.delayed(mixed)(), dask.delayed({}))
    assert task.compute(scheduler=exo, retries=2) == (2, 1)
    assert len(runs) == 2


def grow(items, i):
    items.append(i)
    return len(items)


@pytest.mark.parametrize("small", [100, 10**6])
def test_tasks_of_one_call_do_not_see_each_others_writes(exo, small) -> None:
    made = dask.delayed(list)(range(1000))
    given = dask.delayed(list(range(1000)), pure=True)
    with dask.config.set({"exo.scheduler.small-result": small}):
        for shared in (made, given):
            tasks = [dask.delayed(grow)(shared, i) for i in range(50)]
            assert dask.compute(*tasks, scheduler=exo) == (1001,) * 50


def test_an_item_of_a_value_is_its_own(exo) -> None:
    pair = dask.delayed(lambda: ([1], [1]), nout=2)()
    first, _ = pair
    tasks = [dask.delayed(grow)(operator.getitem(pair, 0), 1), dask.delayed(grow)(first, 2)]
    assert dask.compute(*tasks, dask.delayed(len)(first), scheduler=exo) == (2, 2, 1)


class WrappedError(Exception):
    pass


def complain(error):
    def write(x):
        if not x.flags.writeable:
            raise error
        x += 1
        return x

    return write


def wrapped(x):
    try:
        x += 1
    except ValueError as error:
        raise WrappedError("the model could not be applied") from error
    return x


def hidden(x):
    try:
        x += 1
    except ValueError:
        raise WrappedError("the model could not be applied") from None
    return x


def buffer(x):
    if memoryview(x).readonly:
        raise BufferError("Object is not writable.")
    x += 1
    return x


def as_tensor(x):
    """As torch.from_numpy does, whose tensors write wherever they point."""
    if not x.flags.writeable:
        message = "The given NumPy array is not writable, and PyTorch does not support it"
        warnings.warn(message, UserWarning, stacklevel=2)
    x = x if x.flags.writeable else np.frombuffer(bytearray(x.nbytes))  # stands for what is lost
    x += 1
    return x


def into_bytes(x):
    import ctypes

    (ctypes.c_double * x.size).from_buffer(x)[0] = 8
    return x


COMPLAINTS = [
    complain(ValueError("buffer source array is read-only")),  # Cython
    complain(ValueError("output array is read-only")),  # numpy
    complain(ValueError("array is not writeable")),  # pybind11
    complain(TypeError("Cannot modify readonly array of type: readonly array")),  # numba
    complain(TypeError("Cannot modify read-only memory")),
    complain(RuntimeError("underlying array is Read Only")),
    wrapped,
    hidden,
    buffer,
    as_tensor,
    into_bytes,
]


@pytest.mark.parametrize("write", COMPLAINTS)
def test_any_read_only_error_leads_to_a_copy(exo, write) -> None:
    x = da.from_array(X, chunks=(100, 200)).map_blocks(np.negative)
    shared = x.persist(scheduler=exo)
    got = shared.map_blocks(write, dtype=float).compute(scheduler=exo)
    expected = np.vstack([write(-X[:100]), write(-X[100:])])
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(shared.compute(scheduler=exo), -X)


def write(x):
    runs.append(1)
    x += 1
    return x


def test_what_has_to_write_does_so_at_once_the_next_time(exo) -> None:
    x = da.from_array(X, chunks=(20, 200)).map_blocks(np.negative).persist(scheduler=exo)
    written = x.map_blocks(write, dtype=float)
    runs.clear()
    np.testing.assert_array_equal(written.compute(scheduler=exo), 1 - X)
    assert len(runs) == 10 + 1


def test_a_reader_gets_no_copy(exo) -> None:
    def look(x):
        return np.full((1, 1), x.flags.writeable)

    x = da.from_array(X, chunks=(100, 200)).map_blocks(np.negative).persist(scheduler=exo)
    looked = x.map_blocks(look, dtype=bool, chunks=(1, 1))
    np.testing.assert_array_equal(looked.compute(scheduler=exo), [[False], [False]])


def full_disk(value):
    runs.append(1)
    raise OSError("Read-only file system")


def test_an_unrelated_error_is_raised_at_once(exo) -> None:
    runs.clear()
    with pytest.raises(OSError, match="Read-only file system"):
        dask.delayed(full_disk)(dask.delayed(mixed)()).compute(scheduler=exo)
    assert len(runs) == 1
