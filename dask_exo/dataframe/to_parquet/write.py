"""Write a collection as Parquet, all of it or nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
from dask.tokenize import tokenize
from dask.utils import parse_bytes
from pandas.api.types import is_object_dtype

from dask_exo import validation
from dask_exo.checkpoint import atomic_io
from dask_exo.config import Config
from dask_exo.dask_adapter import new_collection
from dask_exo.dataframe.to_parquet.local_commit import LocalCommitter
from dask_exo.dataframe.to_parquet.object_store_commit import ObjectStoreCommitter
from dask_exo.dataframe.to_parquet.writer import WriteOptions, WriteParts
from dask_exo.errors import OutputError


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
