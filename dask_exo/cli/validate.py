"""Validation of a sorted output: order, row count and checksum, read from disk.

It shares no code with the sort: it reads Parquet files with pyarrow and numpy, one thread per part,
with a bounded number of rows in memory. The checksum of the input comes from a pass of its own.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from dask.utils import natural_sort_key
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from dask_exo.errors import InputError, ValidationError

_BATCH = 32768  # rows hashed at a time: temporaries fit into the core's cache
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Checksum:
    """Number of rows and sum of their 64-bit hashes modulo 2**128, whatever their order."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Checksum) -> Checksum:
        """Checksum of both sets of rows together."""
        return Checksum(self.rows + other.rows, (self.total + other.total) % 2**128)


@dataclass(frozen=True)
class Disorder:
    """Row ``row`` of the file ``part`` is smaller than the row before it."""

    part: str
    row: int


@dataclass(frozen=True)
class Summary:
    """Contents of an output: a checksum of all columns, and the order of the keys."""

    checksum: Checksum
    duplicates: int  # rows whose key equals that of the row before
    first_disorder: Disorder | None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.checksum.rows


def checksum(frames: Iterable[pd.DataFrame | pa.Table]) -> Checksum:
    """Compute the checksum of the rows of ``frames``, over all their columns, without index.

    A row's hash mixes the hashes of its columns, each seeded with the column's name. Equal values
    have equal hashes in every type: numbers of any width, numpy, nullable or Arrow, and whole
    floats like integers (below 2**63); strings of any type, and categories like their values;
    points in time of any unit; null, NaN, NaT and None. Raises `InputError` if a column has no type
    in Arrow (objects of several types).

    Examples
    --------
    >>> frame = pd.DataFrame({"a": [1, 2, 3]})
    >>> checksum([frame]) == checksum([frame[2:].astype("Int8"), frame[:2]])
    True
    """
    return sum((_checksum(_table(frame)) for frame in frames), Checksum())


def validate(directory: str | Path, by: str | Sequence[str], *, workers: int = 1) -> Summary:
    """Read the ``*.parquet`` files of a sorted output, or a URL, in natural order of their names.

    Rows must ascend by the keys ``by``, the most significant first, nulls last. Each of the
    parallel readers needs memory for about one row group. Raises `InputError` if there is no file
    or key, and `ValidationError` if a file cannot be read.
    """
    keys = [by] if isinstance(by, str) else list(by)
    fs, folder = url_to_fs(str(directory))
    names = fs.glob(f"{folder.rstrip('/')}/*.parquet")
    paths = sorted(names, key=lambda path: natural_sort_key(PurePosixPath(path).name))
    if not paths:
        raise InputError(
            f"nothing to validate: no *.parquet in {str(directory)!r}; give another directory"
        )
    with ThreadPoolExecutor(max_workers=workers) as pool:
        parts = list(pool.map(functools.partial(_read_part, fs, keys=keys), paths))
    total = _Run()
    for part in parts:
        total.append(part)
    return Summary(total.checksum, total.duplicates, total.disorder)


def require(summary: Summary, expected: Checksum, *, where: str | Path) -> None:
    """Raise `ValidationError` unless the output is ordered and has exactly the input's rows.

    ``expected`` is the checksum of the input; the message names the output, ``where``.
    """
    actual, problems = summary.checksum, []
    if actual.rows != expected.rows:
        problems.append(f"it has {actual.rows} rows, the input has {expected.rows}")
    elif actual.total != expected.total:
        problems.append(
            f"its checksum is {actual.total:032x}, that of the input {expected.total:032x} "
            f"({actual.rows} rows each): at least one value differs"
        )
    if summary.first_disorder is not None:
        disorder = summary.first_disorder
        problems.append(f"row {disorder.row} of {disorder.part} is smaller than the row before it")
    if problems:
        raise ValidationError(
            f"the output in {str(where)!r} is not valid: {'; '.join(problems)}. Sort it again"
        )


@dataclass
class _Run:
    """Checksum and order of consecutive rows, which begin at a row of a part."""

    part: str = ""
    start: int = 0
    checksum: Checksum = Checksum()
    duplicates: int = 0
    disorder: Disorder | None = None
    first: list[pa.Array] = field(default_factory=list)  # keys of the first row, and of the last
    last: list[pa.Array] = field(default_factory=list)

    def append(self, other: _Run) -> None:
        """Append the next rows."""
        if self.last and other.first:
            greater, equal = _relation(self.last, other.first)
            self.duplicates += int(equal.sum())
            if greater.any() and self.disorder is None:
                self.disorder = Disorder(other.part, other.start)
        self.disorder = self.disorder or other.disorder
        self.checksum += other.checksum
        self.duplicates += other.duplicates
        self.first, self.last = self.first or other.first, other.last or self.last

    def shrink(self) -> None:
        """Copy the two rows of keys: slices would keep whole batches in memory."""
        self.first, self.last = ([c.take([0]) for c in row] for row in (self.first, self.last))


def _run(batch: pa.RecordBatch, keys: Sequence[str], part: str, start: int) -> _Run:
    columns, size = [_comparable(batch.column(name)) for name in keys], len(batch) - 1
    greater, equal = _relation([c.slice(0, size) for c in columns], [c.slice(1) for c in columns])
    disorder = Disorder(part, start + int(greater.argmax()) + 1) if greater.any() else None
    total = _checksum(pa.Table.from_batches([batch]))
    first, last = [c.slice(0, 1) for c in columns], [c.slice(size) for c in columns]
    return _Run(part, start, total, int(equal.sum()), disorder, first, last)


def _read_part(fs: AbstractFileSystem, path: str, keys: Sequence[str]) -> _Run:
    run, local = _Run(PurePosixPath(path).name), isinstance(fs, LocalFileSystem)
    try:
        with pq.ParquetFile(path if local else fs.open(path), memory_map=local) as file:
            columns = file.schema_arrow.names
            missing = [name for name in keys if name not in columns]
            if missing:
                raise InputError(
                    f"no column {missing[0]!r} in {str(path)!r}: there are {', '.join(columns)}"
                )
            for batch in file.iter_batches(_BATCH, use_threads=False):
                if len(batch):
                    run.append(_run(batch, keys, run.part, run.checksum.rows))
        run.shrink()
    except (OSError, pa.ArrowException) as error:
        raise ValidationError(f"cannot read {str(path)!r}: {error}. Sort it again") from error
    return run


def _comparable(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())  # Arrow has no comparison of the former
    return column


def _relation(before: Sequence[pa.Array], after: Sequence[pa.Array]) -> tuple[Array, Array]:
    """Return two masks of rows: the key before is greater, and both keys are equal."""
    size = len(before[0])
    greater, equal = np.zeros(size, bool), np.ones(size, bool)
    for left, right in zip(before, after, strict=True):
        if not equal.any():
            break
        if left.null_count == right.null_count == 0 and not pa.types.is_floating(left.type):
            above, same = _bools(pc.greater(left, right)), _bools(pc.equal(left, right))
        else:
            null_before, null_after = (
                _bools(pc.is_null(a, nan_is_null=True)) for a in (left, right)
            )
            above = (_bools(pc.greater(left, right)) & ~null_after) | (null_before & ~null_after)
            same = _bools(pc.equal(left, right)) | (null_before & null_after)
        greater |= equal & above
        equal &= same
    return greater, equal


def _bools(array: pa.Array) -> Array:
    absent_is_false = pc.fill_null(array, pa.scalar(value=False))
    return np.asarray(absent_is_false.to_numpy(zero_copy_only=False), bool)


def _table(frame: pd.DataFrame | pa.Table) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    try:
        return pa.Table.from_pandas(frame, preserve_index=False, nthreads=1)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"a column cannot be stored: {'; '.join(map(str, error.args))}. Convert it with "
            f".astype(...)"
        ) from error


def _checksum(table: pa.Table) -> Checksum:
    total = 0
    for batch in table.to_batches(max_chunksize=_BATCH):
        hashes = np.zeros(len(batch), np.uint64)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            hashes += _hash_column(column, _seed(name))
        _scramble(hashes)  # not linear: two rows that exchange values change the sum
        high = int((hashes >> np.uint64(32)).sum())
        total += (high << 32) + int((hashes & np.uint64(2**32 - 1)).sum())
    return Checksum(len(table), total % 2**128)


@functools.lru_cache(maxsize=1024)
def _seed(name: str) -> np.uint64:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _scramble(hashes: Array) -> None:
    hashes *= _FACTOR
    hashes ^= hashes >> np.uint64(32)


def _hash_column(column: pa.Array, seed: np.uint64) -> Array:
    null, words = _words(_plain(column))
    hashes = np.full(len(column), seed)
    for word in words:
        np.bitwise_xor(hashes, word, out=hashes)
        _scramble(hashes)
    _scramble(hashes)
    if null is not None:
        hashes[null] = ~seed
    return hashes


def _plain(column: pa.Array) -> pa.Array:
    """Unwrap types that are only another storage of the same values."""
    if isinstance(column.type, pa.BaseExtensionType):
        return _plain(column.storage)
    if pa.types.is_dictionary(column.type):
        return _plain(column.dictionary_decode())
    if pa.types.is_boolean(column.type):
        return column.cast(pa.uint8())
    if column.type in {pa.string_view(), pa.binary_view()}:
        return column.cast(pa.large_binary())
    return column


def _words(column: pa.Array) -> tuple[Array | None, Iterable[Array]]:
    """Return the null mask, if there are nulls, and the values as arrays of unsigned words."""
    kind = column.type
    null = _bools(column.is_null()) if column.null_count else None
    if pa.types.is_null(kind):
        return null, []
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_fixed_size_binary(kind):
        return null, _fixed(column)
    if pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)):
        return null, [_integers(column)]
    return null, [_objects(column)]


def _integers(column: pa.Array) -> Array:
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    wide = np.uint64 if pa.types.is_unsigned_integer(kind) else np.int64
    values: Array = column.fill_null(0).to_numpy().astype(wide, copy=False).view(np.uint64)
    if pa.types.is_date(kind):
        return values * np.uint64(86_400 * 10**9 if kind == pa.date32() else 10**6)
    # modulo 2**64, so that no unit overflows
    return values * np.uint64(_NANOSECONDS[kind.unit]) if pa.types.is_temporal(kind) else values


def _floats(column: pa.Array) -> tuple[Array, list[Array]]:
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    whole = (np.trunc(values) == values) & (np.abs(values) < 2.0**63)
    words = values.view(np.uint64).copy()
    words[whole] = values[whole].astype(np.int64).view(np.uint64)
    return np.isnan(values), [words]


def _fixed(column: pa.Array) -> Iterator[Array]:
    width, data, position = column.type.byte_width, column.buffers()[1], 0
    for size in (8, 4, 2, 1):
        while len(column) and position + size <= width:
            start = column.offset * width + position
            yield np.ndarray((len(column),), f"<u{size}", data, start, (width,))
            position += size


def _objects(column: pa.Array) -> Array:
    """Hash values without a fixed width: bytes of strings, else the text of the Python value."""
    if column.type in _BYTES:
        coded = column.dictionary_encode()
        distinct = coded.dictionary.to_numpy(zero_copy_only=False)
        codes = coded.indices.fill_null(0).to_numpy()
        if not len(distinct):
            return np.zeros(len(column), np.uint64)
    else:
        distinct = np.array([_text(value) for value in column.to_pylist()], object)
        codes = slice(None)
    hashes: Array = pd.util.hash_array(distinct, categorize=False)[codes]
    return hashes


_BYTES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _text(value: Any) -> str:
    return str(value.normalize()) if isinstance(value, Decimal) else repr(value)
