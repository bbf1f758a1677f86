"""Write a collection as Parquet, all of it or nothing.

Tasks write partitions into files named by a digest of their content, so two attempts of a
deterministic task write the same files. Otherwise names differ, and the receipt that reached the
driver decides which files count. A receipt is a frame with a row for each file: ``file``, ``rows``
and ``nbytes``.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from dask.tokenize import tokenize
from dask.utils import parse_bytes
from pandas.api.types import is_object_dtype

from dask_exo import validation
from dask_exo.checkpoint import atomic_io
from dask_exo.config import Config
from dask_exo.dask_adapter import Expr, Task, TaskRef, new_collection
from dask_exo.dataframe.parquet_commit import LocalCommitter, ObjectStoreCommitter, committed
from dask_exo.errors import OutputError
from dask_exo.execution.checkpoints import CheckpointMark
from dask_exo.partitions.kernels import parquet


class Committer(Protocol):
    """Commit protocol of an output, for disks or object stores."""

    @property
    def staging(self) -> str:
        """The URL or directory that tasks write to."""
        ...

    def begin(self, *, overwrite: bool) -> None:
        """Recover an interrupted commit; check that the output may be written."""
        ...

    def commit(self, written: Collection[str], *, overwrite: bool) -> None:
        """Make exactly these files the output."""
        ...

    def abandon(self) -> None:
        """Delete what has been written."""
        ...


def write(  # noqa: PLR0913  all by name
    frame: dd.DataFrame,
    path: str,
    *,
    target_file_size: int | str | None = None,
    partition_on: Sequence[Any] = (),
    overwrite: bool = False,
    write_index: bool = True,
    compression: str = "snappy",
    schema: pa.Schema | None = None,
) -> pd.DataFrame:
    """Write a dataframe; see `dask_exo.dataframe.io.OutputMethods.to_parquet`."""
    by = (partition_on,) if isinstance(partition_on, str) else tuple(partition_on)
    validation.check_columns(list(by), frame, "to make directories of")
    if len(by) == len(frame.columns):
        raise OutputError(f"partition_on={list(by)} leaves no column to be written: name fewer")
    target = None if target_file_size is None else int(parse_bytes(target_file_size))
    if target is not None and target <= 0:
        raise OutputError(
            f"target_file_size={target_file_size!r} is not above 0: give bytes, or '256MB'"
        )
    if schema is None:
        schema = _schema(frame._meta_nonempty.drop(columns=list(by)), index=write_index)
    how = WriteOptions(schema, target, by, write_index, compression)
    fs, root = atomic_io.located(path)
    token = tokenize(root, how)[:12]  # stable across programs, unlike Dask's names
    local = atomic_io.is_local(fs)
    committer = LocalCommitter(root, token) if local else ObjectStoreCommitter(fs, root, token)
    committer.begin(overwrite=overwrite)
    try:
        written = new_collection(WriteParts(frame.expr, committer.staging, how)).compute()
    except BaseException:
        if Config.current().checkpoint_path is None:  # else the next program goes on from there
            committer.abandon()
        raise
    committer.commit(written["file"].tolist(), overwrite=overwrite)
    return written.reset_index(drop=True)


def _schema(example: pd.DataFrame, *, index: bool) -> pa.Schema:
    """Return the types of the columns of an example; columns of objects become strings."""
    texts = pd.Series(["text"] * len(example), index=example.index, dtype=object)
    for place, dtype in enumerate(example.dtypes):
        if is_object_dtype(dtype):
            example.isetitem(place, texts)
    if is_object_dtype(example.index.dtype) and example.index.nlevels == 1:
        example.index = pd.Index(texts.to_numpy(), dtype=object, name=example.index.name)
    return pa.Schema.from_pandas(example, preserve_index=index)


NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class WriteOptions:
    """Options of the Parquet files.

    Attributes
    ----------
    schema : pyarrow.Schema
        Of all files.
    target : int, optional
        Bytes of a file; None means a file for each partition.
    partition_on : tuple of labels
        Columns whose values become directories.
    index : bool
        Whether the index is written.
    compression : str
    """

    schema: pa.Schema
    target: int | None
    partition_on: tuple[Any, ...]
    index: bool
    compression: str


class WriteParts(Expr):
    """The receipts of partitions that are written into a folder."""

    _parameters = ["frame", "staging", "how"]  # noqa: RUF012  as Dask's expressions have it

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        return receipt([])

    def _divisions(self) -> Any:
        return (None,) * (self.frame.npartitions + 1)

    def _layer(self) -> dict[Any, Any]:
        name, still = self._name, CheckpointMark(Staged(self.staging))
        tasks = []
        for i in range(self.frame.npartitions):
            part = TaskRef((self.frame._name, i))
            written = Task((f"written-{name}", i), write_part, part, i, self.staging, self.how)
            tasks += [written, Task((name, i), still, written.ref())]
        return {task.key: task for task in tasks}


@dataclass(frozen=True)
class Staged:
    """Predicate: all files of a receipt are still staged."""

    staging: str

    def __call__(self, written: pd.DataFrame) -> bool:
        """Return whether each file exists with its size."""
        fs, folder = atomic_io.located(self.staging)
        fs.invalidate_cache()
        try:
            return all(
                fs.size(f"{folder}/{file}") == nbytes
                for file, nbytes in zip(written["file"], written["nbytes"], strict=True)
            )
        except FileNotFoundError:
            return False


def receipt(rows: list[tuple[str, int, int]]) -> pd.DataFrame:
    """Make a receipt of files, rows and bytes."""
    made = pd.DataFrame(rows, columns=["file", "rows", "nbytes"])
    return made.astype({"file": "str", "rows": "int64", "nbytes": "int64"})


def write_part(part: pd.DataFrame, number: int, staging: str, how: WriteOptions) -> pd.DataFrame:
    """Write one partition in a task; return the receipt.

    An empty partition writes no file, except the first one, which stores the schema.
    """
    if not len(part) and (number or how.partition_on):
        return receipt([])
    fs, folder = atomic_io.located(staging)
    rows = []
    for place, group in _groups(part, how.partition_on):
        for k, (count, data) in enumerate(_encoded(_table(group, how), how)):
            mark = hashlib.sha256(data).hexdigest()[:16]
            file = f"{place}part-{number:05d}-{k:02d}-{mark}.parquet"
            atomic_io.put(fs, f"{folder}/{file}", [data])
            rows.append((file, count, len(data)))
    return receipt(rows)


def _groups(part: pd.DataFrame, by: tuple[Any, ...]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the directories of a partition, and the rows of each."""
    if not by:
        yield "", part
        return
    for values, group in part.groupby(list(by), dropna=False, observed=True, sort=True):
        names = [
            f"{name}={NULL if pd.isna(value) else quote(str(value), safe='')}/"
            for name, value in zip(by, values, strict=True)
        ]
        yield "".join(names), group.drop(columns=list(by))


def _table(part: pd.DataFrame, how: WriteOptions) -> pa.Table:
    try:
        return pa.Table.from_pandas(part, schema=how.schema, preserve_index=how.index)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise OutputError(
            f"a partition cannot be written with the columns that the collection has: {error}. "
            f"Give to_parquet a schema=pyarrow.schema(...), or convert the column"
        ) from error


def _encoded(table: pa.Table, how: WriteOptions) -> Iterator[tuple[int, memoryview]]:
    """Yield rows and bytes of each file, cut to about the target size."""
    whole = _parquet(table, how)
    if how.target is None or len(whole) <= how.target or len(table) < 2:
        yield len(table), whole
        return
    each = -(-len(table) // min(-(-len(whole) // how.target), len(table)))
    for start in range(0, len(table), each):
        piece = table.slice(start, each)
        yield len(piece), _parquet(piece, how)


def _parquet(table: pa.Table, how: WriteOptions) -> memoryview:
    sink = pa.BufferOutputStream()
    chosen = parquet.dictionaries(len(table), table.take)
    pq.write_table(table, sink, compression=how.compression, use_dictionary=chosen)
    return memoryview(sink.getvalue())


__all__ = ["committed", "write"]
