"""What stages do to frames, and where pieces are cut."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.pipeline.steps import Step, groups
from dask_exo.stream.repartition import repartition, size
from dask_exo.stream.task import About, Code, Worker
from dask_exo.stream.transforms import Transform, apply

FRAMES = st.lists(st.integers(0, 40), min_size=1, max_size=6)


def frames(lengths):
    start = 0
    for i, n in enumerate(lengths):
        words = pd.Series([f"row {j}" for j in range(n)], dtype="str")
        frame = pd.DataFrame({"a": range(start, start + n), "s": words})
        yield frame, i + 1 == len(lengths)
        start += n


@given(FRAMES, st.integers(50, 3000))
def test_pieces_have_all_rows_in_order_and_about_the_target(lengths, target):
    pieces = list(repartition(frames(lengths), target))
    whole = pd.concat([frame for frame, _ in frames(lengths)])
    got = pd.concat([piece.frame for piece in pieces])
    pd.testing.assert_frame_equal(got, whole)
    assert [piece.more for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert all(piece.nbytes == size(piece.frame) for piece in pieces)
    biggest = max(size(frame) for frame, _ in frames(lengths))
    assert all(len(p.frame) <= 1 or p.nbytes < 2 * target + biggest for p in pieces)
    again = [len(piece.frame) for piece in repartition(frames(lengths), target)]
    assert again == [len(piece.frame) for piece in pieces]


@given(FRAMES, st.integers(1, 20), st.sampled_from(["pandas", "numpy", "arrow"]))
def test_batches_have_the_rows_that_are_asked_for(lengths, rows, form):
    seen = []

    def double(batch):
        data = batch.to_pandas() if form == "arrow" else pd.DataFrame(batch)
        seen.append(len(data))
        return {"a": np.asarray(data["a"]) * 2}

    transform = Transform("batches", double, batch_size=rows, format=form)
    got = list(apply(transform, transform.make(), frames(lengths)))
    whole = pd.concat([frame for frame, _ in frames(lengths)])
    assert pd.concat([frame for frame, _ in got]).a.tolist() == (whole.a * 2).tolist()
    assert all(n <= rows for n in seen)
    assert [last for _, last in got] == [False] * (len(got) - 1) + [True]


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
    assert [len(frame) for frame, _ in got] == [2, 2, 1, 0, 2, 1]
    assert not any(last for _, last in got)  # what is yielded goes on before that is known
    assert Cutter.made == 1
    with pytest.raises(TypeError, match="returned int"):
        list(apply(Transform("partitions", len), len, frames([3])))


def test_a_piece_goes_on_before_the_function_makes_the_next_one():
    made = []

    def parts(frame):
        for part in range(3):
            made.append(part)
            yield frame.assign(part=part)

    code = Code("stage", [Transform("partitions", parts)], 1, 0, {})
    (frame, _), *_ = frames([1])
    pairs = Worker().run(code, (0,), 0, frame)
    for part in range(3):
        got, about = next(pairs), next(pairs)
        assert got.part.tolist() == [part]
        assert about.more
        assert made == list(range(part + 1))
    assert list(pairs) == []


@given(FRAMES, st.integers(100, 2000), st.integers(0, 5))
def test_a_task_that_starts_anew_gives_what_is_missing(lengths, target, given_):
    inputs = [frame for frame, _ in frames(lengths)]
    code = Code("stage", [Transform("partitions", lambda frame: frame.assign(b=1))], target, 0, {})
    all_ = list(Worker().run(code, (0,), 0, *inputs))
    rest = list(Worker().run(code, (0,), given_, *inputs))
    told, wanted = ([about._replace(seconds=0) for about in some[1::2]] for some in (rest, all_))
    assert told == wanted[given_:]
    assert all(isinstance(about, About) for about in told)
    for a, b in zip(rest[::2], all_[2 * given_ :: 2], strict=True):
        pd.testing.assert_frame_equal(a, b)


def test_a_task_that_fails_is_tried_again_and_then_says_so():
    tries = []

    def flaky(frame):
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not yet")
        return frame

    code = Code("stage", [Transform("partitions", flaky)], 10**6, 2, {})
    (frame, _), *_ = frames([4])
    got, about = Worker().run(code, (0,), 0, frame)
    assert (about.rows, len(got)) == (4, 4)
    tries.clear()
    (_, failed) = Worker().run(code._replace(retries=1), (0,), 0, frame)
    with pytest.raises(OSError, match="not yet"):
        failed.failure.reraise()


def step(needs, func=len, concurrency=(0, None)):
    return Step(Transform("partitions", func), needs, concurrency, 0)


def test_neighbours_that_ask_for_the_same_share_tasks_and_no_others():
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
