"""What stages do to frames, and where pieces are cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.errors import PipelineError
from dask_exo.pipeline.operators import Operator, check_requests, groups
from dask_exo.pipeline.streaming.blocks import Frame, Origin, RowRange
from dask_exo.pipeline.streaming.task import (
    BlockMetadata,
    StageActor,
    StageCode,
    TaskInputs,
    repartition,
    size,
)
from dask_exo.pipeline.streaming.transforms import CallError, ErrorPolicy, Transform, apply


def starting(inputs, skip=0):
    """A task whose inputs are partitions of the source."""
    return TaskInputs((0,), skip, [Origin((RowRange(i),)) for i, _ in enumerate(inputs)])


FRAMES = st.lists(st.integers(0, 40), min_size=1, max_size=6)


def frames(lengths):
    start = 0
    for i, n in enumerate(lengths):
        words = pd.Series([f"row {j}" for j in range(n)], dtype="str")
        frame = pd.DataFrame({"a": range(start, start + n), "s": words})
        yield Frame(frame, i + 1 == len(lengths), Origin((RowRange(i, 0, n),)))
        start += n


@given(FRAMES, st.integers(50, 3000))
def test_pieces_have_all_rows_in_order_and_about_the_target(lengths, target):
    pieces = list(repartition(frames(lengths), target))
    whole = pd.concat([frame for frame, *_ in frames(lengths)])
    got = pd.concat([frame for _, frame in pieces])
    pd.testing.assert_frame_equal(got, whole)
    assert [block.more for block, _ in pieces] == [True] * (len(pieces) - 1) + [False]
    assert all((block.nbytes, block.rows) == (size(frame), len(frame)) for block, frame in pieces)
    biggest = max(size(frame) for frame, *_ in frames(lengths))
    assert all(block.rows <= 1 or block.nbytes < 2 * target + biggest for block, _ in pieces)
    again = [block.rows for block, _ in repartition(frames(lengths), target)]
    assert again == [block.rows for block, _ in pieces]


@given(FRAMES, st.integers(1, 20), st.sampled_from(["pandas", "numpy", "arrow"]))
def test_batches_have_the_rows_that_are_asked_for(lengths, rows, form):
    seen = []

    def double(batch):
        data = batch.to_pandas() if form == "arrow" else pd.DataFrame(batch)
        seen.append(len(data))
        return {"a": np.asarray(data["a"]) * 2}

    transform = Transform("batches", double, batch_size=rows, format=form)
    got = list(apply(transform, transform.make(), frames(lengths)))
    whole = pd.concat([frame for frame, *_ in frames(lengths)])
    assert pd.concat([frame for frame, *_ in got]).a.tolist() == (whole.a * 2).tolist()
    assert all(n <= rows for n in seen)
    assert [last for _, last, _ in got] == [False] * (len(got) - 1) + [True]


def test_functions_may_yield_and_classes_are_made_once():
    class Cutter:
        made = 0

        def __init__(self, n):
            Cutter.made += 1
            self.n = n

        def __call__(self, frame):
            for start in range(0, len(frame), self.n):
                yield frame.iloc[start : start + self.n]

    transform = Transform("partitions", Cutter, (2,))
    func = transform.make()
    got = list(apply(transform, func, frames([5, 0, 3])))
    assert [0 if one is None else len(one) for one, *_ in got] == [2, 2, 1, 0, 2, 1]
    assert not any(one.last for one in got)  # what is yielded goes on before that is known
    assert Cutter.made == 1
    with pytest.raises(CallError) as caught:
        list(apply(Transform("partitions", len), len, frames([3])))
    with pytest.raises(TypeError, match="returned int"):
        caught.value.failure.reraise()


def test_a_piece_goes_on_before_the_function_makes_the_next_one():
    made = []

    def parts(frame):
        for part in range(3):
            made.append(part)
            yield frame.assign(part=part)

    code = StageCode("stage", [Transform("partitions", parts)], 1, ErrorPolicy(), {})
    (frame, *_), *_ = frames([1])
    pairs = StageActor().run(code, starting([frame]), frame)
    for part in range(3):
        got, about = next(pairs), next(pairs)
        assert got.part.tolist() == [part]
        assert about.more
        assert made == list(range(part + 1))
    assert list(pairs) == []


@given(FRAMES, st.integers(100, 2000), st.integers(0, 5))
def test_a_task_that_starts_anew_gives_what_is_missing(lengths, target, given_):
    inputs = [frame for frame, *_ in frames(lengths)]
    code = StageCode(
        "stage",
        [Transform("partitions", lambda frame: frame.assign(b=1))],
        target,
        ErrorPolicy(),
        {},
    )
    all_ = list(StageActor().run(code, starting(inputs), *inputs))
    rest = list(StageActor().run(code, starting(inputs, given_), *inputs))
    told, wanted = ([about._replace(seconds=0) for about in some[1::2]] for some in (rest, all_))
    assert told == wanted[given_:]
    assert all(isinstance(about, BlockMetadata) for about in told)
    for a, b in zip(rest[::2], all_[2 * given_ :: 2], strict=True):
        pd.testing.assert_frame_equal(a, b)


def test_a_task_that_fails_is_tried_again_and_then_says_so():
    tries = []

    def flaky(frame):
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not yet")
        return frame

    flaky_ = Transform("partitions", flaky, error_policy=ErrorPolicy(2))
    code = StageCode("stage", [flaky_], 10**6, ErrorPolicy(), {})
    (frame, *_), *_ = frames([4])
    got, about = StageActor().run(code, starting([frame]), frame)
    assert (about.rows, len(got)) == (4, 4)
    tries.clear()
    code = code._replace(transforms=[replace(flaky_, error_policy=ErrorPolicy(1))])
    (_, failed) = StageActor().run(code, starting([frame]), frame)
    with pytest.raises(OSError, match="not yet"):
        failed.failure.reraise()


def step(needs, func=len, concurrency=(0, None)):
    return Operator(Transform("partitions", func), needs, concurrency)


def test_neighbours_with_equal_requests_share_tasks():
    class Model:
        pass

    cpu, gpu = step({"CPU": 1.0}), step({"GPU": 1.0})
    model = step({"GPU": 1.0}, Model)
    assert groups([cpu, cpu, gpu, gpu, cpu], makes=True) == [[cpu, cpu], [gpu, gpu], [cpu]]
    assert groups([gpu, model, gpu], makes=True) == [[], [gpu], [model], [gpu]]
    assert groups([cpu], makes=False) == [[cpu]]
    assert groups([], makes=True) == [[]]
    narrow = step({"CPU": 1.0}, concurrency=(0, 2))
    assert groups([narrow, cpu], makes=True) == [[], [narrow], [cpu]]


def test_a_stage_that_fits_the_cluster_and_no_node_is_refused():
    both, apart = {"CPU": 4.0, "GPU": 1.0}, [{"CPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}]
    total = {"CPU": 6.0, "GPU": 1.0}
    check_requests([[step({"CPU": 4.0})], [step({"GPU": 1.0})], []], total, apart)
    with pytest.raises(PipelineError, match=r"4 CPU, 1 GPU on one node.* 4 CPU, 0 GPU; 2"):
        check_requests([[step(both)]], total, apart)
    with pytest.raises(PipelineError, match="needs 2 GPU, the cluster has 1"):
        check_requests([[], [step({"GPU": 2.0})]], total, apart)
    check_requests([[step(both)]], total, [*apart, both])


@settings(max_examples=30)
@given(FRAMES, st.integers(1, 15), st.integers(100, 2000), st.integers(2, 9), st.integers(0, 6))
def test_poison_is_set_aside_with_its_rows_and_the_rest_goes_on(lengths, rows, target, bad, skip):
    """All that comes out and all that is set aside are the input; and again after a loss."""

    def picky(batch):
        if (batch.a % bad == 1).any():
            raise ValueError("poison")
        return batch

    calls = [
        Transform("partitions", lambda frame: frame.assign(b=frame.a)),
        Transform("batches", picky, batch_size=rows, error_policy=ErrorPolicy(1, skip=True)),
    ]
    code = StageCode("stage", calls, target, ErrorPolicy(), {})
    inputs = [frame.assign(part=i) for i, (frame, *_) in enumerate(frames(lengths))]
    whole = pd.concat(inputs)
    items = list(StageActor().run(code, starting(inputs), *inputs))
    pairs = list(zip(items[1::2], items[::2], strict=True))
    assert sorted(pd.concat([frame for _, frame in pairs]).a) == whole.a.tolist()
    for about, frame in pairs:
        places = [(r.partition, j) for r in about.origin.rows for j in range(r.start, r.stop)]
        assert about.origin.exact
        assert about.rows == len(frame)
        starts = {part: group.a.iloc[0] for part, group in whole.groupby("part")}
        if len(frame):
            assert [(part, starts[part] + j) for part, j in places] == [
                *zip(frame.part, frame.a, strict=True)
            ]
        poison = bool(len(frame)) and any(frame.a % bad == 1)
        assert (about.rejected is not None) == poison
    rest = list(StageActor().run(code, starting(inputs, skip), *inputs))
    assert [about.rows for about in rest[1::2]] == [about.rows for about, _ in pairs[skip:]]


def test_flat_map_rejects_single_rows():
    def each(row):
        yield {"n": row["a"]}
        if row["a"] in (1, 3):
            raise KeyError(row["a"])

    def needs(frame):
        return frame.n >= 0

    transforms = [
        Transform("rows", each, error_policy=ErrorPolicy(skip=True)),
        Transform("filter", needs),
    ]
    code = StageCode("stage", transforms, 10**6, ErrorPolicy(), {})
    (frame, *_), *_ = frames([5])
    *rejects, got, about = StageActor().run(code, starting([frame]), frame)
    assert got.n.tolist() == [0, 2, 4]
    assert not about.origin.exact
    assert [str(about.rejected.origin) for about in rejects[1::2]] == [
        "partition 0 rows 1:2",
        "partition 0 rows 3:4",
    ]
    assert [one.a.tolist() for one in rejects[::2]] == [[1], [3]]
    only = list(StageActor().run(code, starting([frame]), frame.iloc[[1, 3]]))
    assert [about.rejected is not None for about in only[1::2]] == [True, True]


def test_an_error_names_the_function_the_partition_and_the_rows():
    def half(frame):
        yield frame.iloc[::2]

    def fail(batch):
        if 8 in batch.a.tolist():
            raise OSError("no")
        return batch

    def made():
        raise KeyError("cannot be read")

    batches = Transform("batches", fail, batch_size=3)
    code = StageCode("stage", [batches], 10**6, ErrorPolicy(), {})
    (frame, *_), *_ = frames([10])
    with pytest.raises(OSError, match="no") as caught:
        [*StageActor().run(code, starting([frame]), frame)][-1].failure.reraise()
    assert "fail on partition 0 rows 6:9" in caught.value.__notes__[0]
    both = code._replace(transforms=[Transform("partitions", half), batches])
    with pytest.raises(OSError, match="no") as caught:
        [*StageActor().run(both, starting([frame]), frame)][-1].failure.reraise()
    note = caught.value.__notes__[0]
    assert "fail in half > fail on derived from partition 0 rows 0:10" in note
    with pytest.raises(KeyError, match="cannot be read") as caught:
        [*StageActor().run(code, starting([frame]), made)][-1].failure.reraise()
    assert "source in fail on partition 0" in caught.value.__notes__[0]
    code = code._replace(error_policy=ErrorPolicy(2, skip=True))
    got, about = StageActor().run(code, starting([frame]), made)
    assert (str(about.rejected.origin), about.rows, got) == ("partition 0", 0, None)


def test_the_size_of_a_frame_is_that_of_pandas() -> None:
    frame = pd.DataFrame(
        {"i": range(5), "b": True, "s": list("abcde"), "o": [[1], 2, None, "x", b""]}
    )
    frame = frame.astype({"s": "string[pyarrow]"}).assign(c=frame.s.astype("category"))
    for one in (frame, frame.iloc[:0], frame.set_index("s"), frame[["i"]]):
        assert size(one) == one.memory_usage(deep=True).sum()
