"""The validator finds what a broken sort would do, and nothing else."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.cli.validate import Checksum, Disorder, Summary, checksum, require, validate
from dask_exo.errors import InputError, ValidationError
from dask_exo.testing.gensort import KEYS, records

BY = list(KEYS)


def write(directory: Path, parts: list[pd.DataFrame], **options) -> Path:
    directory.mkdir(exist_ok=True)
    for number, part in enumerate(parts):
        table = pa.Table.from_pandas(part, preserve_index=False)
        pq.write_table(table, directory / f"part.{number}.parquet", **options)
    return directory


def cut(frame: pd.DataFrame, count: int) -> list[pd.DataFrame]:
    edges = [len(frame) * i // count for i in range(count + 1)]
    return [frame.iloc[a:b] for a, b in itertools.pairwise(edges)]


@pytest.fixture
def rows() -> pd.DataFrame:
    made = records(0, 3000, seed=3, skew=100.0).sort_values(BY, ignore_index=True)
    assert made.duplicated(BY).sum() > 10
    return made


@pytest.mark.parametrize("workers", [1, 3])
def test_valid_output(tmp_path, rows, workers):
    # more than ten parts: their order is that of numbers, not of names
    directory = write(tmp_path / "out", cut(rows, 12), row_group_size=100)
    summary = validate(directory, BY, workers=workers)
    assert summary.rows == 3000
    assert summary.first_disorder is None
    assert summary.duplicates == rows.duplicated(BY).sum()
    expected = checksum(cut(records(0, 3000, seed=3, skew=100.0), 5))
    assert summary.checksum == expected
    require(summary, expected, where=directory)


def swapped(rows: pd.DataFrame) -> pd.DataFrame:
    order = np.arange(len(rows))
    order[[1500, 2100]] = order[[2100, 1500]]
    return rows.take(order)


def changed(rows: pd.DataFrame) -> pd.DataFrame:
    values = rows["payload"].to_list()
    values[77] = values[77][:-1] + bytes([values[77][-1] ^ 1])
    return rows.assign(payload=pd.array(values, dtype=rows["payload"].dtype))


def exchanged(rows: pd.DataFrame) -> pd.DataFrame:
    values = rows["payload"].to_list()
    values[5], values[6] = values[6], values[5]
    return rows.assign(payload=pd.array(values, dtype=rows["payload"].dtype))


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (swapped, "row 1 of part.6.parquet is smaller"),
        (lambda rows: rows.drop(index=1234), "2999 rows, the input has 3000"),
        (lambda rows: rows.take([*range(10), 9, *range(10, 3000)]), "3001 rows"),
        (lambda rows: rows.take([*range(10), 9, *range(11, 3000)]), "checksum"),
        (changed, "checksum"),
        (exchanged, "checksum"),
        (lambda rows: rows.iloc[:0], "0 rows, the input has 3000"),
    ],
)
def test_corruption_is_found(tmp_path, rows, corrupt, message):
    broken = corrupt(rows)
    directory = write(tmp_path / "out", cut(broken, 12))
    with pytest.raises(ValidationError, match=message) as caught:
        require(validate(directory, BY), checksum([rows]), where=directory)
    assert str(directory) in str(caught.value)


def test_disorder_across_a_boundary_and_duplicates_there(tmp_path):
    parts = [pd.DataFrame({"a": a}) for a in ([1, 2], [], [2, 3], [1])]
    summary = validate(write(tmp_path / "out", parts), "a")
    assert summary.duplicates == 1
    assert summary.first_disorder == Disorder("part.3.parquet", 0)


def test_disorder_beyond_the_first_batch(tmp_path):
    values = np.arange(100_000)
    values[70_000] = 3
    summary = validate(write(tmp_path / "out", [pd.DataFrame({"a": values})]), "a")
    assert summary.first_disorder == Disorder("part.0.parquet", 70_000)
    values[[65_536, 70_000]] = [0, 70_000]
    summary = validate(write(tmp_path / "out", [pd.DataFrame({"a": values})]), "a")
    assert summary.first_disorder == Disorder("part.0.parquet", 65_536)


value = st.one_of(st.none(), st.integers(0, 3))


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(value, value), min_size=1, max_size=8),
    kind=st.sampled_from(["float64", "Int64", "str", "int64[pyarrow]", "datetime64[us]"]),
    parts=st.integers(1, 3),
    presort=st.booleans(),
)
def test_order_is_that_of_pandas(tmp_path_factory, rows, kind, parts, presort):
    frame = pd.DataFrame(rows, columns=["a", "b"], dtype="Int64").astype(kind)
    if presort:
        frame = frame.sort_values(["a", "b"], na_position="last")
    key = [tuple((bool(pd.isna(x)), "" if pd.isna(x) else str(x)) for x in row)
           for row in frame.itertuples(index=False)]  # fmt: skip
    directory = write(tmp_path_factory.mktemp("out"), cut(frame, parts))
    summary = validate(directory, ["a", "b"])
    assert (summary.first_disorder is None) == (key == sorted(key))
    assert summary.duplicates == sum(x == y for x, y in itertools.pairwise(key))
    assert summary.checksum == checksum([frame])


@pytest.mark.parametrize("values", [[b"a", b"ab", b"b"], ["é", "z", "Z"]])
def test_bytes_and_strings_order(tmp_path, values):
    for order in (sorted(values), sorted(values)[::-1]):
        directory = write(tmp_path / "out", [pd.DataFrame({"a": order})])
        assert (validate(directory, "a").first_disorder is None) == (order == sorted(values))


def test_fixed_size_binary_key(tmp_path):
    keys = pd.array([b"\x01b", b"\x80a", b"\xffa"], dtype=pd.ArrowDtype(pa.binary(2)))
    summary = validate(write(tmp_path / "out", [pd.DataFrame({"a": keys})]), "a")
    assert summary.first_disorder is None


EQUAL = {
    "ints": [
        pd.Series([3, 2, 1], dtype=kind)
        for kind in ("int8", "int64", "uint16", "Int32", "int64[pyarrow]", "float32", "float64")
    ],
    "negative": [pd.Series([-1, -(2**40)], dtype=k) for k in ("int64", "Int64", "float64")],
    "null ints": [
        pd.Series([3, None], dtype=k) for k in ("float64", "Int8", "int64[pyarrow]", "Float32")
    ]
    + [pd.Series([3, None], dtype=object), pd.Series(pd.array([3.0, np.nan], "double[pyarrow]"))],
    "strings": [
        pd.Series(["x", None, "é"], dtype=k)
        for k in (object, "str", "string[python]", "string[pyarrow]", "category",
                  pd.ArrowDtype(pa.large_string()))
    ],
    "bools": [pd.Series([True, None], dtype=k) for k in (object, "boolean", "bool[pyarrow]")],
    "times": [
        pd.Series(["2020-01-01 10:00", None]).astype(k)
        for k in ("datetime64[s]", "datetime64[ns]", "timestamp[ms][pyarrow]")
    ],
    "nothing": [pd.Series([None, None], dtype=k) for k in (object, "float64", "str", "Int8")],
    "zeros": [pd.Series([0.0]), pd.Series([-0.0]), pd.Series([0]), pd.Series([False])],
    "dates": [
        pd.Series([dt.date(2020, 1, 2)]), pd.Series(pd.to_datetime(["2020-01-02"])),
    ],
    "decimals": [
        pd.Series([decimal.Decimal("1.5")], dtype=object),
        pd.Series([decimal.Decimal("1.5")], dtype=pd.ArrowDtype(pa.decimal128(9, 4))),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_equal_values_have_equal_checksums_in_any_type(name):
    sums = [checksum([pd.DataFrame({"a": series})]) for series in EQUAL[name]]
    assert len(set(sums)) == 1, [str(s.dtype) for s in EQUAL[name]]
    flipped = [checksum([pd.DataFrame({"a": series[::-1]})]) for series in EQUAL[name]]
    assert set(flipped) == set(sums)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.binary()])
def test_strings_of_any_arrow_type(kind):
    tables = [pa.table({"a": pa.array(["x", None, "é"], k)}) for k in (pa.string(), kind)]
    assert checksum(tables[:1]) == checksum(tables[1:]) == checksum([tables[1][1:], tables[0][:1]])


def test_different_values_have_different_checksums():
    alone = {"0.5": 0.5, "-0.5": -0.5, "inf": np.inf, "1": 1, "big": 2**62 + 1, "null": None,
             "text": "1", "empty": "", "zero": 0, "list": [1], "lists": [1, 2]}  # fmt: skip
    sums = {k: checksum([pd.DataFrame({"a": [v]})]).total for k, v in alone.items()}
    sums["other name"] = checksum([pd.DataFrame({"b": [1]})]).total
    assert len(set(sums.values())) == len(sums)


@given(st.integers(1, 20), st.integers(0, 19), st.integers(0, 255))
def test_every_byte_of_fixed_size_binary_counts(width, at, byte):
    at %= width
    one = bytes(width)
    two = one[:at] + bytes([byte]) + one[at + 1 :]
    kind = pd.ArrowDtype(pa.binary(width))
    sums = [checksum([pd.DataFrame({"a": pd.array([b"\x01" * width, v], kind)})[1:]])
            for v in (one, two)]  # fmt: skip
    assert (sums[0] == sums[1]) == (one == two)


rows_of = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=3), st.booleans())
)


@settings(deadline=None)
@given(rows=rows_of, data=st.data())
def test_checksum_ignores_order_and_partitioning(rows, data):
    names = ["a", "b", "c", "d"]
    frame = pd.DataFrame(rows, columns=names)
    shuffled = pd.DataFrame(data.draw(st.permutations(rows)), columns=names)
    pieces = cut(shuffled, data.draw(st.integers(1, 4)))
    whole = checksum([frame])
    assert whole == checksum(pieces)
    assert whole == sum((checksum([p]) for p in pieces), Checksum())
    assert whole == checksum([frame[names[::-1]]])
    assert whole.rows == len(rows)


@settings(deadline=None)
@given(rows=rows_of.filter(len), data=st.data())
def test_checksum_sees_a_changed_value(rows, data):
    names = ["a", "b", "c", "d"]
    row, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.sampled_from([0, 2, 3]))
    other = list(rows[row])
    old = other[column]
    other[column] = {0: lambda v: v ^ 1, 2: lambda v: v + "x", 3: lambda v: not v}[column](old)
    broken = [*rows[:row], tuple(other), *rows[row + 1 :]]
    one, two = (checksum([pd.DataFrame(r, columns=names)]) for r in (rows, broken))
    assert one != two


def test_checksum_is_not_linear_in_the_columns():
    one = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    sums = [checksum([one]), checksum([one.assign(b=[4, 3])])]
    assert (sums[0].total - sums[1].total) % 2**64  # above that, carries differ by chance


def test_the_checksum_detects_sign_flips_that_cancel():
    one = pd.DataFrame({"a": [1.5], "b": [2.5]})
    assert checksum([one]) != checksum([-one])


def test_bad_places(tmp_path):
    with pytest.raises(InputError, match="nothing to validate"):
        validate(tmp_path, "a")
    directory = write(tmp_path / "out", [pd.DataFrame({"a": [1]})])
    with pytest.raises(InputError, match="no column 'b'"):
        validate(directory, "b")
    part = directory / "part.0.parquet"
    part.write_bytes(part.read_bytes()[:-5])
    with pytest.raises(ValidationError, match=r"cannot read .*part\.0\.parquet"):
        validate(directory, "a")


def test_mixed_objects_cannot_be_summed():
    with pytest.raises(InputError, match="cannot be stored"):
        checksum([pd.DataFrame({"a": pd.Series([1, "x"], dtype=object)})])


def test_empty_part(tmp_path):
    summary = validate(write(tmp_path / "out", [pd.DataFrame({"a": [1]})[:0]]), "a")
    assert summary == Summary(Checksum(), 0, None)
