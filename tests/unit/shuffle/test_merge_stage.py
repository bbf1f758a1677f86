"""Merges of a bounded number of bytes: where rounds are cut, and that nothing else changes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.cluster.futures import Node
from dask_exo.cluster.waiting import drive
from dask_exo.shuffle.algorithms import riffle
from dask_exo.shuffle.blocks import merge, pack
from dask_exo.shuffle.choose import Limits, Shape, round_knobs
from dask_exo.shuffle.map_stage import BlockSizes, Refs
from dask_exo.shuffle.merge_stage import group_by_bytes
from dask_exo.shuffle.run_shuffle import run_shuffle
from dask_exo.shuffle.spec import Receipt, Spec, Tally
from dask_exo.testing import InlineFutures

MERGING = ["push", "magnet", "riffle", "two-level"]


@given(st.lists(st.integers(0, 100)), st.one_of(st.none(), st.integers(1, 150)))
def test_groups_are_as_large_as_the_cap_allows(sizes, cap) -> None:
    groups = group_by_bytes(sizes, cap)
    assert [i for group in groups for i in group] == list(range(len(sizes)))
    held = [sum(sizes[i] for i in group) for group in groups]
    if cap is None:
        assert len(groups) == bool(sizes)
        return
    assert all(nbytes <= cap or len(group) == 1 for group, nbytes in zip(groups, held, strict=True))
    assert all(one + sizes[after.start] > cap for one, after in zip(held, groups[1:], strict=False))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 10**6)), min_size=1, max_size=40))
def test_block_sizes_are_estimated_from_the_last_ones(calls) -> None:
    sizes, owned = BlockSizes(), (range(3), range(3, 4))
    for parts, nbytes in calls:
        sizes.record(owned, parts, (nbytes, 0))
    last = [nbytes / parts for parts, nbytes in calls[-16:]]
    assert sizes.expected(owned) == pytest.approx([sum(last) / len(last), 0])
    assert sum(sizes.expected((range(1), range(1, 4)))) == pytest.approx(sum(last) / len(last))


def test_without_sizes_all_reducers_are_taken_to_get_the_same() -> None:
    sizes = BlockSizes()
    assert sizes.expected((range(3), range(3, 4))) == [0, 0]
    sizes.record((range(3), range(3, 4)), 2, (), nbytes=80)
    assert sizes.expected((range(3), range(3, 4))) == [30, 10]


def cut(owned, *frames):
    """Map of a shuffle by ``k % R``, which tells what its blocks weigh."""
    frame = pd.concat(frames)
    ids = (frame["k"] % owned[-1].stop).to_numpy().astype("uint16")
    packed = pack(frame, ids, owned)
    sizes = tuple(block.nbytes for block in packed)
    return [*packed, Receipt(Tally(len(frame)), sum(sizes), seconds=1.0, sizes=sizes)]


class Weighed(InlineFutures):
    """Notes what each merge takes, and how many bytes that is."""

    def __init__(self, nodes) -> None:
        super().__init__(nodes)
        self.merges: list[tuple[int, int]] = []

    def stream(self, count, fn, *args, node=None, options=None):
        taken = [ref.value.nbytes for ref in args if hasattr(ref, "value")]
        self.merges.append((len(taken), sum(taken)))
        return super().stream(count, fn, *args, node=node)


def run(frames, reducers, count, **limits):
    f = Weighed([Node(f"n{i}", 2, 10**6) for i in range(count)])
    spec = Spec(reducers, tuple(f.nodes()), cut, merge)
    shuffled = drive(f, run_shuffle(f, Refs([f.put(x) for x in frames]), spec, Limits(**limits)))
    parts = []
    for column in shuffled.inputs:
        blocks = [packed.block(column.slot) for packed in f.get(column.refs)]
        parts.append(pd.concat(blocks))
    return parts, f


def skewed(parts: int, share: float) -> list[pd.DataFrame]:
    """Parts of 100 rows, of which a share has the key 0."""
    rng = np.random.default_rng(5)
    keys = np.where(rng.random(100 * parts) < share, 0, rng.integers(0, 50, 100 * parts))
    whole = pd.DataFrame({"k": keys, "n": range(len(keys))})
    return [whole.iloc[a:b] for a, b in pairwise(range(0, len(whole) + 1, 100))]


@pytest.mark.parametrize("share", [0.9, 1.0])
@pytest.mark.parametrize("reducers", [2, 12])
@pytest.mark.parametrize("algorithm", MERGING)
def test_no_merge_of_a_frequent_key_exceeds_the_cap(algorithm, reducers, share) -> None:
    frames = skewed(24, share)
    settings = {"algorithm": algorithm, "round_fraction": 0.01, "bundle_target": 1e-9}
    limit = 6000  # of 2400 bytes that a part has, of which nine tenths go to one node
    parts, f = run(frames, reducers, 2, merge_limit=limit, **settings)
    whole = pd.concat(frames)
    for r, part in enumerate(parts):
        pd.testing.assert_frame_equal(part, whole[whole["k"] % reducers == r])
    assert all(nbytes <= limit or blocks == 1 for blocks, nbytes in f.merges)
    _, free = run(frames, reducers, 2, merge_limit=10**9, **settings)
    assert max(nbytes for _, nbytes in free.merges) > limit


@pytest.mark.parametrize("algorithm", ["push", "magnet"])
def test_a_block_that_exceeds_the_cap_goes_on_unmerged(algorithm) -> None:
    """One reducer a node: what would be merged with nothing is not copied."""
    frames = skewed(24, 1.0)
    settings = {"algorithm": algorithm, "round_fraction": 0.01, "bundle_target": 1e-9}
    parts, f = run(frames, 2, 2, merge_limit=1000, **settings)
    pd.testing.assert_frame_equal(parts[0], pd.concat(frames))
    assert {nbytes for _, nbytes in f.merges} == {0}  # those of the other node


@pytest.mark.parametrize("algorithm", MERGING)
def test_growing_parts_are_merged_in_smaller_groups(algorithm) -> None:
    whole = pd.DataFrame({"k": range(8 * 10 + 40 * 200), "n": 1})
    ends = [*range(0, 80, 10), *range(80, len(whole) + 1, 200)]
    frames = [whole.iloc[a:b] for a, b in pairwise(ends)]
    settings = {"algorithm": algorithm, "round_fraction": 0.01, "bundle_target": 1e-9}
    parts, f = run(frames, 4, 1, merge_limit=15_000, **settings)
    assert sum(map(len, parts)) == len(whole)
    assert all(nbytes <= 15_000 or blocks == 1 for blocks, nbytes in f.merges)


@given(
    st.integers(1, 10**14), st.integers(1, 10**4), st.integers(1, 50), st.integers(10**7, 10**12)
)
def test_no_cap_bites_where_all_nodes_get_the_same(nbytes, parts, count, store) -> None:
    shape = Shape(nbytes, parts, 100, count, 4 * count, count * store)
    knobs = {**round_knobs(shape, Limits())._asdict(), **riffle.tune(shape, Limits())}
    part = max(nbytes // parts, 1)
    measured, others = knobs["caps"]
    assert max(knobs["per_round"], min(parts, shape.slots)) * part / count <= measured
    assert knobs["per_round"] * part / count <= others or knobs["per_round"] == 1
    assert knobs["factor"] * part <= others or knobs["factor"] == 1


def test_blocks_are_grouped_up_to_the_cap() -> None:
    assert group_by_bytes([3, 3, 3, 9, 1], cap=6) == [
        range(2),
        range(2, 3),
        range(3, 4),
        range(4, 5),
    ]
    assert group_by_bytes([3, 3], cap=None) == [range(2)]


def test_sizes_are_divided_for_other_ranges_of_reducers() -> None:
    assert Refs(["a", "b", "c"]).call(0, 2) == ("a", "b")
    sizes, halves = BlockSizes(), (range(4), range(4, 8))
    sizes.record(halves, 2, (20, 180))
    assert sizes.expected(halves) == [10.0, 90.0]
    assert sizes.expected((range(2), range(2, 8))) == [5.0, 95.0]
