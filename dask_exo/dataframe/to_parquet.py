"""Store a dataframe: as Parquet files, all of them or nothing, or as a checkpoint.

Tasks write partitions into files named by a digest of their content, so two attempts of a
deterministic task write the same files. Otherwise names differ, and the receipt that reached the
driver decides which files count. A receipt is a frame with a row for each file: ``file``, ``rows``
and ``nbytes``.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
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
from dask_exo.dask_adapter import Task, new_collection
from dask_exo.dataframe.parquet_commit import LocalCommitter, ObjectStoreCommitter, committed
from dask_exo.errors import OutputError
from dask_exo.execution.checkpoints import CheckpointMark
from dask_exo.partitions.kernels import parquet
from dask_exo.planning.reorder import PartitionTasks
from dask_exo.planning.resume import CheckpointExpr


class OutputMethods:
    """Methods that store a dataframe."""

    _frame: dd.DataFrame

    def checkpoint(self) -> dd.DataFrame:
        """Store the partitions in ``exo.checkpoint.path``, for the next program that needs them.

        Partitions are written as they are computed. The next program with the same code and the
        same input reads them instead, even if this one fails. Without ``exo.checkpoint.path``
        nothing happens. See ``docs/checkpoints.md``.

        Examples
        --------
        >>> import dask
        >>> import pandas as pd
        >>> import dask_exo
        >>> from dask_exo.testing import InlineFutures
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(4)}), npartitions=2)
        >>> stored = ddf.assign(b=ddf.a * 2).exo.checkpoint()
        >>> exo = dask_exo.Scheduler(InlineFutures())
        >>> with dask.config.set({"exo.checkpoint.path": "memory://stored", "scheduler": exo}):
        ...     stored.b.sum().compute()
        np.int64(12)
        """
        return new_collection(CheckpointExpr(self._frame))

    def to_parquet(  # noqa: PLR0913  all by name
        self,
        path: str,
        *,
        target_file_size: int | str | None = None,
        partition_on: str | Sequence[Any] = (),
        overwrite: bool = False,
        write_index: bool = True,
        compression: str = "snappy",
        schema: pa.Schema | None = None,
    ) -> pd.DataFrame:
        """Write a directory of Parquet files: all of it, each row once, or nothing.

        Partitions are staged, and committed together once all are written. A recomputed task does
        not duplicate its rows. If the computation fails, ``path`` is unchanged. With
        ``exo.checkpoint.path``, the program that follows a killed one writes the missing
        partitions only. ``docs/checkpoints.md`` says what concurrent readers see, on disks and in
        object stores.

        Parameters
        ----------
        path : str
            Directory to create, or a URL for fsspec.
        target_file_size : int or str, optional
            Approximate bytes of a file: larger partitions are cut. Small ones are not concatenated:
            use ``repartition``. By default, one file for each partition.
        partition_on : label or list of labels
            Columns whose values become directories, ``column=value/``.
        overwrite : bool
            Whether to replace ``path``, if it has nothing but Parquet files.
        write_index : bool
            Whether the index becomes columns of the files.
        compression : str
            Argument of `pyarrow.parquet.write_table`.
        schema : pyarrow.Schema, optional
            Schema of all files; by default that of the dataframe's columns.

        Returns
        -------
        pandas.DataFrame
            A row for each file: ``file`` (below ``path``), ``rows`` and ``nbytes``.

        Raises
        ------
        OutputExistsError
            ``path`` exists, and ``overwrite`` is false.
        OutputError
            It cannot be written, or an argument is invalid.
        ColumnError
            ``partition_on`` names no column.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(4)}), npartitions=2)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     ddf.exo.to_parquet(f"{directory}/out").rows.tolist()
        ...     pd.read_parquet(f"{directory}/out").a.tolist()
        [2, 2]
        [0, 1, 2, 3]
        """
        frame: dd.DataFrame = self.to_pandas()  # type: ignore[attr-defined]
        by = (partition_on,) if isinstance(partition_on, str) else tuple(partition_on)
        validation.check_columns(list(by), frame, "to make directories of")
        if len(by) == len(frame.columns):
            raise OutputError(f"partition_on={list(by)} leaves no column to write: name fewer")
        target = None if target_file_size is None else int(parse_bytes(target_file_size))
        if target is not None and target <= 0:
            raise OutputError(
                f"target_file_size={target_file_size!r} is not above 0: give bytes, or '256MB'"
            )
        if schema is None:
            schema = _schema(frame._meta_nonempty.drop(columns=list(by)), index=write_index)
        options = WriteOptions(schema, target, by, write_index, compression)
        fs, root = atomic_io.located(path)
        token = tokenize(root, options)[:12]  # stable across programs, unlike Dask's names
        committer: LocalCommitter | ObjectStoreCommitter
        if atomic_io.is_local(fs):
            committer = LocalCommitter(root, token)
        else:
            committer = ObjectStoreCommitter(fs, root, token)
        committer.begin(overwrite=overwrite)
        try:
            receipts = new_collection(WriteParts(frame.expr, committer.staging, options)).compute()
        except BaseException:
            if Config.current().checkpoint_path is None:  # else the next program continues
                committer.abandon()
            raise
        committer.commit(receipts["file"].tolist(), overwrite=overwrite)
        return receipts.reset_index(drop=True)


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
    """Options of the Parquet files, as given to ``to_parquet``."""

    schema: pa.Schema
    target: int | None  # bytes of a file; None means a file for each partition
    partition_on: tuple[Any, ...]
    index: bool
    compression: str


class WriteParts(PartitionTasks):
    """The receipts of partitions that are written into a folder."""

    _parameters = ["frame", "staging", "options"]  # noqa: RUF012  as Dask's expressions have it

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        return receipt([])

    def _tasks(self) -> list[Task]:
        name, checkpoint = self._name, CheckpointMark(Staged(self.staging))
        tasks = []
        for i, part in enumerate(self._inputs):
            written = Task((f"written-{name}", i), write_part, part, i, self.staging, self.options)
            tasks += [written, Task((name, i), checkpoint, written.ref())]
        return tasks


@dataclass(frozen=True)
class Staged:
    """Predicate: all files of a receipt are still staged."""

    staging: str

    def __call__(self, files: pd.DataFrame) -> bool:
        """Return whether each file exists, with its size."""
        fs, folder = atomic_io.located(self.staging)
        fs.invalidate_cache()
        try:
            return all(
                fs.size(f"{folder}/{file}") == nbytes
                for file, nbytes in zip(files["file"], files["nbytes"], strict=True)
            )
        except FileNotFoundError:
            return False


def receipt(rows: list[tuple[str, int, int]]) -> pd.DataFrame:
    """Make a receipt of files, rows and bytes."""
    dtypes = {"file": "str", "rows": "int64", "nbytes": "int64"}
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)


def write_part(
    part: pd.DataFrame, number: int, staging: str, options: WriteOptions
) -> pd.DataFrame:
    """Write one partition in a task; return the receipt.

    An empty partition writes no file, except the first one, which stores the schema.
    """
    if not len(part) and (number or options.partition_on):
        return receipt([])
    fs, folder = atomic_io.located(staging)
    rows = []
    for directory, group in _groups(part, options.partition_on):
        for k, (count, data) in enumerate(_encoded(_table(group, options), options)):
            digest = hashlib.sha256(data).hexdigest()[:16]
            file = f"{directory}part-{number:05d}-{k:02d}-{digest}.parquet"
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


def _table(part: pd.DataFrame, options: WriteOptions) -> pa.Table:
    try:
        return pa.Table.from_pandas(part, schema=options.schema, preserve_index=options.index)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise OutputError(
            f"a partition does not fit the schema of the collection: {error}. Give to_parquet a "
            f"schema=pyarrow.schema(...), or convert the column"
        ) from error


def _encoded(table: pa.Table, options: WriteOptions) -> Iterator[tuple[int, memoryview]]:
    """Yield rows and bytes of each file, cut to about the target size."""
    data = _parquet(table, options)
    if options.target is None or len(data) <= options.target or len(table) < 2:
        yield len(table), data
        return
    rows_per_file = -(-len(table) // min(-(-len(data) // options.target), len(table)))
    for start in range(0, len(table), rows_per_file):
        piece = table.slice(start, rows_per_file)
        yield len(piece), _parquet(piece, options)


def _parquet(table: pa.Table, options: WriteOptions) -> memoryview:
    sink = pa.BufferOutputStream()
    dictionaries = parquet.dictionaries(len(table), table.take)
    pq.write_table(table, sink, compression=options.compression, use_dictionary=dictionaries)
    return memoryview(sink.getvalue())


__all__ = ["OutputMethods", "committed"]
