"""Digests: the same for what is equal, another for whatever differs."""

from __future__ import annotations

import itertools
import pickle
from datetime import date
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.partitions.digest import digest
from dask_exo.partitions.wire_format import to_wire
from dask_exo.shuffle.blocks import Packed, pack
from tests._data import table

N = 1200  # more than there are lanes
FEW = settings(max_examples=15)
ROWS = np.arange(N)
FRAME = pd.DataFrame(
    {
        "i": ROWS,
        "f": np.sqrt(ROWS),
        "s": pd.array([f"row {i}" for i in ROWS], dtype="str"),
        "n": pd.array([None if i % 7 == 0 else f"row {i}" for i in ROWS], dtype="str"),
        "c": pd.Categorical([f"kind {i % 5}" for i in ROWS]),
        "t": pd.date_range("2026", periods=N, freq="s"),
        "z": pd.date_range("2026", periods=N, freq="s", tz="UTC"),
    },
    index=pd.Index(ROWS * 2, name="at"),
)


def sent(value):
    """As it comes out of a store: another process made other objects of the same bytes."""
    buffers = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(b.raw()) for b in buffers])  # noqa: S301


def blocks(frame):
    return pack(frame, np.asarray(frame.index) % 8, [range(4), range(4, 8)])


@pytest.mark.parametrize("name", list(FRAME.columns))
@FEW
@given(row=st.integers(0, N - 1))
def test_one_cell_is_enough_to_make_a_difference(name, row) -> None:
    other = FRAME.copy()
    place = other.columns.get_loc(name)
    other.iloc[row, place] = other.iloc[(row + 1) % N, place]
    assert digest(FRAME) == digest(sent(FRAME)) != digest(other)
    assert digest(FRAME[name]) != digest(other[name])
    assert digest(*blocks(FRAME)) == digest(*blocks(sent(FRAME))) != digest(*blocks(other))


@FEW
@given(st.integers(0, N - 1), st.integers(0, N - 1))
def test_so_is_the_order_of_two_rows(one, two) -> None:
    order = ROWS.copy()
    order[[one, two]] = order[[two, one]]
    same = one == two
    assert (digest(FRAME) == digest(FRAME.iloc[order])) is same
    assert (digest(FRAME["f"].to_numpy()) == digest(FRAME["f"].to_numpy()[order])) is same


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3), st.sampled_from(["i4", "f8", "?", "M8[s]"])
)
def test_arrays_of_any_shape_and_layout(shape, dtype) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    assert digest(array) == digest(np.asfortranarray(array)) == digest(sent(array))
    assert digest(array) != digest(array[None])
    assert digest(array[..., ::-1]) == digest(array[..., ::-1].copy())


def test_of_objects_that_have_no_text_only_the_number_counts() -> None:
    one, two = [pd.DataFrame({"o": np.array(v, object)}) for v in ([{1}, "a"], [{2}, "b"])]
    assert digest(one) == digest(two) != digest(one[:1])
    assert digest([{"a"}]) == digest([{"b"}]) != digest([{"a"}, {"b"}])


VALUES = {
    "text": ["a", None, "c"],
    "mixed": [1, "1", 2.5],
    "decimals": [Decimal("1.5"), Decimal("1.25"), None],
    "dates": [date(2026, 1, 2), date(2026, 1, 3), None],
    "Int64": pd.array([1, None, 2**60 + 1], dtype="Int64"),
    "Float64": pd.array([1.5, None, 2.5], dtype="Float64"),
    "boolean": pd.array([True, None, False], dtype="boolean"),
    **{
        f"arrow {kind}": pd.array(values, dtype=pd.ArrowDtype(kind))
        for kind, values in {
            pa.int64(): [1, None, 2**60 + 1],
            pa.float32(): [1.5, None, 2.5],
            pa.bool_(): [True, None, False],
            pa.timestamp("ns"): [1, None, 3],
            pa.date32(): [date(2026, 1, 2), None, date(2026, 1, 3)],
            pa.decimal128(5, 2): [Decimal("1.5"), None, Decimal("1.25")],
            pa.string(): ["a", None, "c"],
        }.items()
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_cells_of_every_other_kind_count_too(name) -> None:
    values = VALUES[name]
    column = pd.Series(values, dtype=object) if isinstance(values, list) else pd.Series(values)
    digests = {digest(column.iloc[list(order)]) for order in itertools.permutations(range(3))}
    digests |= {digest(column.iloc[[0, 0, 2]].reset_index(drop=True)), digest(column.iloc[:2])}
    assert len(digests) == 8
    assert 0 not in digests
    assert digest(sent(column)) == digest(column) == digest(column.iloc[[0, 1, 2]])


def test_what_is_under_a_null_does_not_count() -> None:
    one, two = (pd.arrays.IntegerArray(np.array([1, n]), np.array([False, True])) for n in (5, 6))
    assert digest(pd.Series(one)) == digest(pd.Series(two))
    masked = [pa.array(np.array([1, n]), mask=np.array([False, True])) for n in (5, 6)]
    assert digest(masked[0]) == digest(masked[1])


def test_containers_count_by_their_items() -> None:
    for one, two in ((1, 2), ("a", b"a"), ([1, ["a"]], [1, ["b"]]), ({"a": 1}, {"a": 2})):
        assert digest(one) == digest(sent(one)) != digest(two)


def test_packed_slices_of_one_array_have_different_digests() -> None:
    rows = to_wire(FRAME[["i", "f"]], ROWS)
    first, second = (Packed(rows.slice(a, a + 100), np.array([0, 100])) for a in (0, 100))
    assert digest(first) == digest(sent(first)) != digest(second)


def test_columns_of_a_block_are_digested_together() -> None:
    wide = pd.DataFrame(np.arange(4000.0).reshape(4, 1000))
    apart = pd.concat([wide.iloc[:, [i]] for i in range(1000)], axis=1)  # as many blocks
    assert digest(wide) == digest(apart) == digest(sent(wide))
    assert digest(wide) != digest(wide.iloc[:, ::-1].set_axis(wide.columns, axis=1))
    other = wide.copy()
    other.iloc[3, 999] += 1
    assert digest(wide) != digest(other)
    mixed = wide.assign(s="a", n=1)
    assert digest(mixed) == digest(sent(mixed)) != digest(mixed.assign(n=2))


@pytest.mark.parametrize("index", [None, "i", "s", ["c", "z"]])
def test_a_value_has_the_same_digest_after_its_journey(index) -> None:
    frame = table(200).astype({"s": "string[pyarrow]"}).assign(o=[{"a": 1}, None] * 100)
    frame = frame.assign(**{f"w{i}": np.arange(200) for i in range(20)}, t="text")
    frame = frame if index is None else frame.set_index(index)
    for value in (frame, frame.iloc[3:50], frame.t, frame.index, frame[["n"]].to_numpy(), [frame]):
        assert digest(sent(value)) == digest(value) != 0
