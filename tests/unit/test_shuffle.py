"""The shuffle algorithms on plain calls, against a loop over all rows; and what they cost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.errors import IntegrityError
from dask_exo.futures import Node, drive
from dask_exo.shuffle.blocks import merge, pack
from dask_exo.shuffle.choose import batch_size, choose
from dask_exo.shuffle.exchange import Limits, exchange
from dask_exo.shuffle.integrity import Tally, verify
from dask_exo.shuffle.maps import Refs
from dask_exo.shuffle.push import push_objects
from dask_exo.shuffle.simple import simple_objects
from dask_exo.shuffle.spec import Receipt, Spec
from dask_exo.testing import InlineFutures


def cut(owned, *frames):
    """Map of a shuffle by ``k % R``; each part is a frame that exists already."""
    frame = pd.concat(frames)
    ids = (frame["k"] % owned[-1].stop).to_numpy().astype("uint16")
    nbytes = int(frame.memory_usage().sum())
    return [*pack(frame, ids, owned), Receipt(Tally(len(frame)), nbytes, seconds=1.0)]


def nodes(count: int, slots: int = 2, store: int = 10**9) -> tuple[Node, ...]:
    return tuple(Node(f"n{i}", slots, store) for i in range(count))


def run(frames, reducers, machines, **limits):
    f = InlineFutures(machines)
    spec = Spec(reducers, tuple(machines), cut, merge)
    shuffled = drive(f, exchange(f, Refs([f.put(x) for x in frames]), spec, Limits(**limits)))
    parts = []
    for column in shuffled.columns:
        blocks = [packed.block(column.slot) for packed in f.get(column.refs)]
        parts.append(pd.concat(blocks))
    return shuffled, parts, f


@st.composite
def inputs(draw: st.DrawFn):
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=9))
    total = sum(lengths)
    keys = draw(st.lists(st.integers(0, 50), min_size=total, max_size=total))
    whole = pd.DataFrame({"k": np.array(keys, "i8"), "n": range(total)})
    cuts = np.cumsum([0, *lengths])
    return [whole.iloc[a:b] for a, b in pairwise(cuts)], whole


@given(
    inputs(),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from(["simple", "push"]),
    st.floats(0.000001, 1.0),
)
def test_every_row_arrives_once_and_in_input_order(data, reducers, count, algorithm, share) -> None:
    frames, whole = data
    machines = nodes(count, store=4000)
    _, parts, _ = run(
        frames, reducers, machines, algorithm=algorithm, round_fraction=share, bundle_target=2.0
    )
    assert len(parts) == reducers
    for r, part in enumerate(parts):
        expected = whole[whole["k"] % reducers == r]
        pd.testing.assert_frame_equal(part, expected)


@pytest.mark.parametrize("m", [1, 5, 40])
@pytest.mark.parametrize("w", [1, 3])
@pytest.mark.parametrize("algorithm", ["simple", "push"])
def test_an_algorithm_makes_as_many_objects_as_it_says(m: int, w: int, algorithm: str) -> None:
    frames = [pd.DataFrame({"k": range(20)}) for _ in range(m)]
    machines = nodes(w)
    shuffled, _, f = run(frames, 7, machines, algorithm=algorithm, round_fraction=1e-9)
    puts = m
    rounds = -(-m // shuffled.choice.per_round)
    expected = (
        simple_objects(shuffled.calls, w)
        if algorithm == "simple"
        else push_objects(shuffled.calls, 7, w, rounds, shuffled.choice.width)
    )
    assert f.objects - puts == expected


def test_map_outputs_of_push_are_dropped_when_they_are_merged() -> None:
    frames = [pd.DataFrame({"k": range(20)}) for _ in range(12)]
    shuffled, _, f = run(frames, 5, nodes(1), algorithm="push", round_fraction=1e-9)
    rounds = 12 // shuffled.choice.per_round
    assert f.live == rounds * -(-5 // shuffled.choice.width)


def test_small_parts_share_calls_and_large_ones_do_not() -> None:
    frames = [pd.DataFrame({"k": range(20)}) for _ in range(40)]
    shuffled, _, _ = run(frames, 3, nodes(1), algorithm="simple", bundle_target=10.0)
    assert shuffled.calls == 2 + -(-38 // 10)
    shuffled, _, _ = run(frames, 3, nodes(1), algorithm="simple", bundle_target=0.5)
    assert shuffled.calls == 40


def test_the_totals_of_the_map_side_are_those_of_the_rows() -> None:
    frames = [pd.DataFrame({"k": range(n)}) for n in (3, 0, 7)]
    shuffled, parts, _ = run(frames, 4, nodes(2))
    assert shuffled.tally.rows == 10
    verify("s", shuffled.tally, Tally(sum(len(part) for part in parts)))
    with pytest.raises(IntegrityError):
        verify("s", shuffled.tally, Tally(9))


@given(st.floats(1e-7, 100), st.integers(0, 10**10), st.integers(0, 10**6), st.integers(1, 1000))
def test_a_batch_never_exceeds_its_share_time_or_bytes(seconds, nbytes, remaining, slots) -> None:
    size = batch_size(seconds=seconds, nbytes=nbytes, remaining=remaining, slots=slots, target=0.05)
    assert size >= 1
    assert size == 1 or size * seconds <= 0.05 + 1e-9
    assert size == 1 or size * nbytes <= 64 * 2**20
    assert size == 1 or size <= -(-remaining // (2 * slots))


@given(
    st.integers(1, 10**15), st.integers(1, 10**5), st.integers(1, 40), st.integers(10**8, 10**12)
)
def test_a_round_fits_its_share_of_the_store_unless_slots_would_idle(
    nbytes, parts, w, store
) -> None:
    slots = 4 * w
    choice = choose(
        nbytes=nbytes, parts=parts, slots=slots, store=w * store,
        memory_fraction=0.5, round_fraction=0.15,
    )  # fmt: skip
    assert choice.algorithm == ("simple" if nbytes <= 0.5 * w * store else "push")
    assert 1 <= choice.per_round <= parts
    filled = choice.per_round * (nbytes // parts)
    assert filled <= 0.15 * w * store or choice.per_round <= slots
    assert filled <= 0.3 * w * store or choice.per_round == 1
    assert choice.reason


def test_the_users_word_is_taken() -> None:
    choice = choose(
        nbytes=1, parts=1, slots=1, store=10, memory_fraction=0.5, round_fraction=0.15,
        wanted="push",
    )  # fmt: skip
    assert choice.algorithm == "push"
    assert "exo.shuffle.algorithm" in choice.reason
