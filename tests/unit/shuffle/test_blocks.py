"""Splitting, packing and merging against pandas' own boolean masks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.cluster.ownership import writable
from dask_exo.cluster.resources import split_evenly
from dask_exo.partitions import protocol
from dask_exo.shuffle.blocks import Packed, merge, pack, pickled

DTYPES = {
    "int64": lambda v: pd.Series(v, dtype="int64"),
    "int8": lambda v: pd.Series([x % 100 for x in v], dtype="int8"),
    "float32": lambda v: pd.Series(v, dtype="float32"),
    "nullable": lambda v: pd.Series([None if x % 3 == 0 else x for x in v], dtype="Int64"),
    "bool": lambda v: pd.Series([x % 2 == 0 for x in v], dtype="bool"),
    "str": lambda v: pd.Series([f"s{x}" for x in v], dtype="str"),
    "object": lambda v: pd.Series([(x, "t") for x in v], dtype="object"),
    "category": lambda v: pd.Series([f"c{x % 5}" for x in v], dtype="category"),
    "zoned": lambda v: pd.Series(pd.to_datetime(v, unit="s", utc=True).tz_convert("Asia/Tokyo")),
    "timedelta": lambda v: pd.Series(pd.to_timedelta(v, unit="s")),
}


@st.composite
def frames(draw: st.DrawFn) -> tuple[pd.DataFrame, np.ndarray, int, int]:
    """A frame of some dtypes, the reducer of each row, and R and W."""
    values = draw(st.lists(st.integers(0, 10**6), max_size=40))
    names = draw(st.lists(st.sampled_from(sorted(DTYPES)), min_size=1, unique=True))
    reducers = draw(st.integers(1, 30))
    nodes = draw(st.integers(1, 5))
    ids = draw(st.lists(st.integers(0, reducers - 1), min_size=len(values), max_size=len(values)))
    frame = pd.DataFrame({name: DTYPES[name](values) for name in names})
    frame.index = pd.Index(range(100, 100 + len(values)), name="idx")
    return frame, np.array(ids, dtype=np.uint8), reducers, nodes


@given(frames())
def test_a_packed_block_has_its_rows_in_their_order(data) -> None:
    frame, ids, reducers, nodes = data
    owned = split_evenly(reducers, nodes)
    packed = pack(frame, ids, owned)
    assert len(packed) == nodes
    for mine, one in zip(owned, packed, strict=True):
        for r in mine:
            pd.testing.assert_frame_equal(one.part(r).to_frame(), frame[ids == r])


@st.composite
def packs(draw: st.DrawFn) -> tuple[list[pd.DataFrame], list[np.ndarray], int]:
    """Frames of one schema, or of nearly one; the reducer of each row; R."""
    frame, ids, reducers, _ = draw(frames())
    order = draw(st.permutations(range(len(frame)))) if len(frame) else []
    other, others = frame.iloc[list(order)], ids[list(order)]
    if draw(st.booleans()):
        other = other.astype({c: "category" for c in other.columns if c in ("category", "str")})
        other = other.astype({c: "float64" for c in other.columns if c in ("int64", "int8")})
    return [frame, other], [ids, others], reducers


@given(packs(), st.integers(1, 9))
def test_merging_packed_blocks_is_concatenation_block_by_block(data, width) -> None:
    parts, ids, reducers = data
    packed = [
        pack(part, numbers, [range(reducers)])[0] for part, numbers in zip(parts, ids, strict=True)
    ]
    slots = [range(at, min(at + width, reducers)) for at in range(0, reducers, width)]
    for mine, merged in zip(slots, merge(slots, *packed), strict=True):
        for r in mine:
            expected = protocol.concat([p[n == r] for p, n in zip(parts, ids, strict=True)])
            pd.testing.assert_frame_equal(merged.part(r).to_frame(), expected)


@given(packs(), st.data())
def test_collected_blocks_equal_those_assembled_singly(data, draw) -> None:
    parts, ids, reducers = data
    packed = [
        pack(part, numbers, [range(reducers)])[0] for part, numbers in zip(parts, ids, strict=True)
    ]
    slots = sorted(draw.draw(st.sets(st.integers(0, reducers - 1), min_size=1)))
    collected = Packed.collect(packed, slots)
    one_schema = parts[0].dtypes.equals(parts[1].dtypes)
    if collected is not None:
        assert one_schema
        for i, r in enumerate(slots):
            expected = protocol.concat([p[n == r] for p, n in zip(parts, ids, strict=True)])
            pd.testing.assert_frame_equal(collected.part(i).to_frame(), expected)


def test_frames_of_numbers_and_strings_are_collected_at_once() -> None:
    frame = pd.DataFrame({"i": range(6), "f": 0.5, "s": list("abcdef")}).astype({"s": "str"})
    packed = [pack(frame, np.array([0, 1, 2] * 2, np.uint8), [range(3)])[0] for _ in range(2)]
    collected = Packed.collect(packed, [0, 2])
    assert collected is not None
    assert collected.part(1).to_frame()["s"].tolist() == ["c", "f"] * 2
    changed = pack(frame.astype({"i": "int32"}), np.zeros(6, np.uint8), [range(3)])[0]
    assert Packed.collect([packed[0], changed], [0, 2]) is None


VALUES = st.one_of(st.integers(), st.text(), st.none(), st.tuples(st.floats(allow_nan=False)))


@given(st.lists(st.lists(VALUES), min_size=1, max_size=9), st.integers(1, 4))
def test_pickled_blocks_have_their_values_also_when_merged(lists, nodes) -> None:
    owned = split_evenly(len(lists), nodes)
    packed = pickled(lists, owned)
    for mine, one in zip(owned, packed, strict=True):
        assert [one.block(slot) for slot in mine] == [lists[r] for r in mine]
        (merged,) = merge([mine], one, one)
        assert [merged.block(slot) for slot in mine] == [lists[r] * 2 for r in mine]


def test_arrays_in_a_pickled_block_are_views_of_it() -> None:
    import pickle

    (packed,) = pickled([[np.arange(1000.0)], [np.arange(5)]], [range(2)])
    assert 8000 < packed.nbytes < 9000
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 1000
    again = pickle.loads(data, buffers=buffers)  # noqa: S301
    assert np.shares_memory(again.block(0)[0], again.pickles[0][0][1])
    np.testing.assert_array_equal(again.block(1)[0], np.arange(5))


def test_partition_numbers_out_of_range_wrap_as_in_dask() -> None:
    frame = pd.DataFrame({"_partitions": [-1, 0, 5, 7]})
    assert protocol.partition_ids(frame, "_partitions", 5).tolist() == [4, 0, 0, 2]
    assert protocol.partition_column(frame, "_partitions", np.array([4, 0, 0, 2])) is None


def test_a_column_of_partition_numbers_is_restored_from_the_ids() -> None:
    frame = pd.DataFrame({"a": [1, 2], "_partitions": np.array([3, 1], dtype="int32")})
    ids = protocol.partition_ids(frame, "_partitions", 4)
    assert protocol.partition_column(frame, "_partitions", ids) == (1, np.dtype("int32"))


@pytest.mark.parametrize("npartitions", [2, 3, 200, 300, 70_000])
def test_ids_have_the_smallest_type_and_equal_a_dask_hash(npartitions: int) -> None:
    from dask.dataframe.dispatch import hash_object_dispatch

    frame = pd.DataFrame({"k": range(1000)})
    ids = protocol.partition_ids(frame, ["k"], npartitions)
    assert ids.dtype == np.min_scalar_type(npartitions - 1)
    expected = hash_object_dispatch(frame[["k"]], index=False) % npartitions
    np.testing.assert_array_equal(ids, expected)


def test_own_copies_foreign_buffers_to_writable_ones() -> None:
    import pickle

    frame = pd.DataFrame({"a": np.arange(5.0), "s": list("abcde")})
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(frame, protocol=5, buffer_callback=buffers.append)
    foreign = pickle.loads(data, buffers=[bytes(b.raw()) for b in buffers])  # noqa: S301
    with pytest.raises(ValueError, match="read-only"):
        foreign.iloc[0, 0] = 7.0
    mine = writable(foreign)
    mine.iloc[0, 0] = 7.0
    assert mine["a"].tolist() == [7.0, 1.0, 2.0, 3.0, 4.0]
    assert foreign["a"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_merged_blocks_of_other_categories_merge_again() -> None:
    ids = np.array([0, 1, 2, 2])
    packed = [
        pack(pd.DataFrame({"n": range(4), "c": pd.Categorical([name] * 4)}), ids, [range(3)])[0]
        for name in "abc"
    ]
    (two,) = merge([range(3)], *packed[:2])
    for order in ([two, packed[2]], [packed[2], two]):
        (three,) = merge([range(3)], *order)
        assert three.block(2).c.tolist() == [
            name for one in order for name in (["a", "a", "b", "b"] if one is two else ["c", "c"])
        ]
