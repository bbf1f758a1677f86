"""Stages of a pipeline whose frames lie on a device, for which numpy stands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_exo  # noqa: F401  the accessor
from dask_exo.errors import DeviceError
from dask_exo.partitions.gpu import arrays, memory
from dask_exo.partitions.gpu_frames import DeviceFrame
from dask_exo.pipeline.operators import Operator, groups
from dask_exo.pipeline.streaming import transforms
from dask_exo.pipeline.streaming.blocks import Frame, Origin, RowRange
from dask_exo.pipeline.streaming.task import StageCode, TaskInputs, run, to_host_ahead
from dask_exo.pipeline.streaming.transforms import ErrorPolicy, Transform

SIMULATE = {"exo.gpu.simulate": True}


class OutOfMemoryError(MemoryError):
    """As cupy's is called."""


def rows(n: int) -> pd.DataFrame:
    words = pd.Series(["a", "bb", None] * (n // 3 + 1), dtype="str").head(n)
    return pd.DataFrame({"a": np.arange(n), "s": words})


def double(frame: Any, kinds: list[type]) -> Any:
    kinds.append(type(frame))
    return frame.assign(a=frame.a * 2)


class Doubles:
    """A model."""

    def __init__(self, kinds: list[type]) -> None:
        self.call = partial(double, kinds=kinds)

    def __call__(self, frame: Any) -> Any:
        return self.call(frame)


def done(*transforms: Transform, inputs: list[Any], target: int = 10**6) -> list[pd.DataFrame]:
    """What a task of a stage gives."""
    code = StageCode("key", transforms, target, ErrorPolicy(), SIMULATE)
    start = TaskInputs((0,), 0, [Origin((RowRange(i),)) for i, _ in enumerate(inputs)])
    given = list(run(code, start, *inputs))
    for about in given[1::2]:
        if about.failure is not None:
            about.failure.reraise()
    return given[::2]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is copied between host and device."""
    made: list[str] = []
    pack, from_pandas = memory.pack, DeviceFrame.from_pandas.__func__  # type: ignore[attr-defined]

    def back(values: Any, **options: Any) -> Any:
        made.append("back")
        return pack(values, **options)

    monkeypatch.setattr(memory, "pack", back)

    def there(cls: type, frame: pd.DataFrame, module: str) -> Any:
        made.append("there")
        return from_pandas(cls, frame, module)

    monkeypatch.setattr(DeviceFrame, "from_pandas", classmethod(there))
    return made


def test_frames_stay_on_the_device_between_the_steps_of_a_stage(copies: list[str]) -> None:
    kinds: list[type] = []
    steps = [
        Transform("batches", double, (kinds,), format="device"),
        Transform("batches", Doubles, (kinds,), format="device"),
        Transform("batches", double, (kinds,), format="device"),
    ]
    (found,) = done(*steps, inputs=[rows(20)])
    pd.testing.assert_frame_equal(found, rows(20).assign(a=rows(20).a * 8))
    assert kinds == [DeviceFrame] * 3
    assert copies == ["there", "back"]


def test_other_steps_get_frames_of_the_host() -> None:
    kinds: list[type] = []
    steps = [
        Transform("batches", double, (kinds,), format="device"),
        Transform("partitions", double, (kinds,)),
        Transform("filter", lambda frame: frame.a % 8 == 0),
        Transform("batches", lambda b: {"a": b["a"] + 1}, format="numpy"),
        Transform("rows", lambda row: [row]),
    ]
    (found,) = done(*steps, inputs=[rows(20)])
    assert found.a.tolist() == [4 * i + 1 for i in range(20) if i % 2 == 0]
    assert kinds == [DeviceFrame, pd.DataFrame]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(1, 12))
@settings(max_examples=30)
def test_batches_of_a_device_are_all_rows_in_order(lengths: list[int], size: int) -> None:
    kinds: list[type] = []
    step = Transform("batches", double, (kinds,), batch_size=size, format="device")
    inputs = [rows(n).assign(a=np.arange(n) + 100 * i) for i, n in enumerate(lengths)]
    found = pd.concat(done(step, step, inputs=inputs, target=200))
    expected = pd.concat(inputs)
    pd.testing.assert_frame_equal(found, expected.assign(a=expected.a * 4))


def test_a_copy_ends_after_the_next_frame_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    pack = memory.pack

    def slow(values: Any, **options: Any) -> Any:
        said.append("begin")
        wait, places = pack(values, **options)
        return lambda: (said.append("end"), wait())[1], places

    monkeypatch.setattr(memory, "pack", slow)

    def frames() -> Iterator[Frame]:
        for i in range(3):
            said.append(f"compute {i}")
            yield Frame(DeviceFrame.from_pandas(rows(i + 1), "numpy"), last=i == 2)

    found = list(to_host_ahead(frames()))
    assert [len(frame.data) for frame in found] == [1, 2, 3]
    assert all(isinstance(frame.data, pd.DataFrame) for frame in found)
    assert said == [
        *("compute 0", "begin", "compute 1", "begin", "end", "compute 2", "begin", "end", "end")
    ]


def test_a_batch_is_copied_to_the_gpu_while_the_one_before_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    def start(frame: pd.DataFrame, module: str) -> Any:
        assert module == "a GPU"
        if frame.a.iloc[0] == 6:
            raise OutOfMemoryError
        said.append(f"start {frame.a.iloc[0]}")

        def end() -> DeviceFrame:
            said.append(f"end {frame.a.iloc[0]}")
            return DeviceFrame.from_pandas(frame, "numpy")

        return end

    class OutOfMemoryError(MemoryError):
        """Of a GPU."""

    def use(frame: DeviceFrame) -> DeviceFrame:
        first = int(frame.a.values[0])
        said.append(f"use {first}")
        if first == 8:
            raise OutOfMemoryError if len(frame) > 1 else ValueError("wrong")
        return frame

    monkeypatch.setattr(transforms, "start_to_gpu", start)
    monkeypatch.setattr(arrays, "here", lambda: "a GPU")
    monkeypatch.setattr(transforms, "to_device", lambda f, _: DeviceFrame.from_pandas(f, "numpy"))
    step = Transform("batches", use, batch_size=2, format="device")
    with pytest.raises(ValueError, match="wrong"):
        done(step, inputs=[rows(12)])
    assert said == [
        *("start 0", "start 2", "end 0", "use 0", "start 4", "end 2", "use 2"),
        *("end 4", "use 4"),  # there was no room for 6 meanwhile
        *("start 8", "use 6", "start 10", "end 8", "use 8", "use 8"),  # and for all of 8
        "end 10",  # its memory is not given back before
    ]


def test_a_batch_that_cannot_be_on_a_gpu_is_set_aside_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def copied(frame: pd.DataFrame, _: str) -> DeviceFrame:
        return DeviceFrame.from_pandas(frame, "numpy")  # refuses objects

    def start(frame: pd.DataFrame, module: str) -> Any:
        there = copied(frame, module)
        return lambda: there

    monkeypatch.setattr(transforms, "start_to_gpu", start)
    monkeypatch.setattr(transforms, "to_device", copied)
    monkeypatch.setattr(arrays, "here", lambda: "a GPU")
    skip = ErrorPolicy(skip=True)
    step = Transform("batches", lambda f: f, batch_size=2, format="device", error_policy=skip)
    frames = [pd.DataFrame({"a": [i, i]}, index=[i, i]) for i in range(3)]
    frames[1]["a"] = pd.Series([{}, {}], frames[1].index, object)
    calls = transforms.UserCalls("abs")
    batches = (Frame(frame, last=False) for frame in frames)
    found = list(transforms.apply(step, step.make(), batches, calls=calls))
    assert [frame.data.to_pandas().a.tolist() for frame in found if frame.data is not None] == [
        [0, 0],
        [2, 2],
    ]
    assert [len(data) for _, data in calls.rejects] == [2]


def test_frames_of_the_host_are_not_kept_back() -> None:
    given = (Frame(rows(i), last=False) for i in range(3))
    out = to_host_ahead(given)
    assert len(next(out).data) == 0
    assert len(next(given).data) == 1  # the second one has not been taken before it was wanted


def test_classes_on_one_device_share_a_stage() -> None:
    def step(func: Any, form: str = "device", gpus: float = 1.0) -> Operator:
        return Operator(Transform("batches", func, format=form), {"GPU": gpus}, (0, None))

    same = [step(Doubles), step(double), step(Doubles)]
    assert groups(same, makes=False) == [same]
    assert len(groups([step(Doubles), step(Doubles, gpus=0.5)], makes=False)) == 2
    assert len(groups([step(Doubles, "numpy"), step(Doubles, "numpy")], makes=False)) == 2


def test_a_batch_that_does_not_fit_the_device_is_halved() -> None:
    sizes: list[int] = []

    def model(batch: DeviceFrame) -> DeviceFrame:
        if len(batch) > 6:
            raise OutOfMemoryError
        sizes.append(len(batch))
        return batch.assign(a=batch.a + 1)

    (found,) = done(Transform("batches", model, format="device"), inputs=[rows(20)])
    pd.testing.assert_frame_equal(found, rows(20).assign(a=rows(20).a + 1))
    assert sizes == [5, 5, 5, 5]


def test_without_a_gpu_the_format_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "devices", lambda: 0)
    with pytest.raises(DeviceError, match=r"needs 1 GPU.*has 0 GPUs.*num_gpus=.*simulate"):
        arrays.here()


def test_a_stage_on_a_device_asks_for_a_gpu_by_itself() -> None:
    ddf = dd.from_pandas(rows(6), npartitions=2)
    with dask.config.set({"exo.gpu.per-task": 0.5}):
        made = ddf.exo.pipeline().map_batches(double, [], format="device", num_cpus=0)
        assert "(0.5 GPU)" in repr(made)
        fixed = ddf.exo.pipeline().map_batches(double, [], format="device", num_gpus=0.25)
    assert fixed.steps[0].request == {"CPU": 1.0, "GPU": 0.25}


def test_columns_on_the_gpu_equal_those_on_the_host() -> None:
    ddf = dd.from_pandas(rows(6), npartitions=2)
    with dask.config.set(SIMULATE):
        made = ddf.exo.pipeline().map_batches(double, [], format="device").to_dask()
    assert isinstance(made._meta, pd.DataFrame)
    assert list(made.columns) == ["a", "s"]


def test_gpu_partitions_return_to_the_host_in_gpu_tasks() -> None:
    with dask.config.set(SIMULATE):
        there = dd.from_pandas(rows(6), npartitions=2).exo.to_gpu()
    assert isinstance(there.exo.pipeline().source.frame._meta, pd.DataFrame)


def test_a_piece_says_what_its_task_has_held_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_arenas", {})  # other tests may have used a GPU

    def tell(n: int, *transforms: Transform) -> list[memory.GpuMemoryUse | None]:
        frame = pd.DataFrame({"a": np.arange(n)})
        start = TaskInputs((0,), 0, [Origin((RowRange(0),))])
        code = StageCode("key", transforms, 10**6, ErrorPolicy(), settings)
        return [about.held for about in list(run(code, start, frame))[1::2]]

    add = Transform("batches", lambda frame: frame.assign(b=frame.a + 1), format="device")
    settings = {**SIMULATE, "exo.gpu.memory": 10_000, "exo.gpu.per-task": 0.25}
    # 8 bytes a row of two columns, and two times 1024 when they come back in one buffer: numpy
    # stands for both sides
    assert tell(100, add) == [memory.GpuMemoryUse(1600 + 2048, 40_000)]
    assert tell(10, add) == [memory.GpuMemoryUse(160 + 512, 40_000)]  # of this task alone
    settings = {**settings, "exo.gpu.memory": 1800}
    assert tell(100, add) == [memory.GpuMemoryUse(2048, 7200)]  # the others were put on the host
    settings = dict(SIMULATE)
    tell(1, add)  # forgets the budget
    assert tell(100, add) == [None]
