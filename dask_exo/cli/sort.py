"""Sort a data set into Parquet with ordinary Dask code; write the whole output or none of it."""

from __future__ import annotations

import contextlib
import errno
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
from dask.utils import format_bytes

from dask_exo import validation
from dask_exo.checkpoint import atomic_io
from dask_exo.cli.validate import Checksum, checksum
from dask_exo.cluster.ownership import PANDAS_3
from dask_exo.dataframe.parquet_commit import (
    LocalCommitter,
    ObjectStoreCommitter,
    check_target,
    publish,
)
from dask_exo.errors import ExoError, InputError, OutputError, SortKeyError
from dask_exo.partitions.kernels.parquet import ParquetEngine
from dask_exo.partitions.wire_format import to_wire
from dask_exo.pipeline import sources

ROW_GROUP = 2**17
"""Rows in a row group: about 13 MB of 100-byte records, so that readers need little memory."""

_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".parq": "parquet", ".csv": "csv"}


def files(path: str | Path) -> dict[str, int]:
    """List the data files of a file, a directory (not below it) or a glob, in order of name.

    ``path`` may be a URL for fsspec. Return the path or URL of each file, and its bytes.
    """
    fs, source = atomic_io.located(str(path))
    if fs.isdir(source):
        listed = fs.ls(source, detail=True)
        found = [entry for entry in listed if _suffix(entry["name"]) in _SUFFIXES]
        found = list(filter(_is_visible, found))
        if not found:
            raise InputError(
                f"no Parquet or CSV files in the directory {str(path)!r}: give another one"
            )
    elif fs.exists(source):
        found = [fs.info(source)]
    else:
        found = list(filter(_is_visible, fs.glob(source, detail=True).values()))
        if not found:
            raise InputError(f"no file, directory or glob matches {str(path)!r}: give another path")
    sizes = {entry["name"]: int(entry["size"]) for entry in found}
    local = atomic_io.is_local(fs)
    return {name if local else fs.unstrip_protocol(name): sizes[name] for name in sorted(sizes)}


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix


def _is_visible(entry: Mapping[str, Any]) -> bool:
    hidden = PurePosixPath(entry["name"]).name.startswith((".", "_"))
    return entry["type"] == "file" and not hidden


def read(path: str | Path, *, partition_bytes: int | None = None) -> dd.DataFrame:
    """Read Parquet or CSV files, by their suffix: a file, a directory, a glob, or a URL of one.

    ``partition_bytes`` is the approximate size of a partition in the files.
    """
    paths = files(path)
    suffixes = set(map(_suffix, paths))
    kind, *others = {_SUFFIXES.get(suffix, suffix) for suffix in suffixes}
    if others or kind not in _SUFFIXES.values():
        actual = f"suffixes {sorted(suffixes)}"
        raise InputError(f"cannot read {str(path)!r}: {actual}, need all parquet or all csv")
    read_files = dd.read_csv if kind == "csv" else dd.read_parquet
    try:
        frame: dd.DataFrame = read_files(list(paths), blocksize=partition_bytes or "default")
    except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
        raise InputError(
            f"cannot read {str(path)!r} as {kind}: {error}. Name the files that are {kind}"
        ) from error
    # a stored index is a column like others; one without a name is a row number
    return frame if frame.index.name is None else frame.reset_index()


@dataclass
class SortInput:
    """Rows to sort, and what is known about them."""

    frame: dd.DataFrame
    nbytes: int
    by: list[str] = field(default_factory=list)
    expected: int | None = None  # bytes of the output, if known
    options: dict[str, Any] = field(default_factory=dict)  # for `to_parquet`


def partition_bytes(nbytes: int, slots: int, store: int | None = None) -> int:
    """Choose a partition size: 4 for each slot, but of 8 MB to 128 MB, and 32 in a small store.

    Examples
    --------
    >>> partition_bytes(10**9, 8), partition_bytes(10**6, 8), partition_bytes(10**12, 8)
    (31250000, 8000000, 128000000)
    >>> partition_bytes(10**12, 8, store=2 * 10**9)
    62500000
    """
    least, most = 8_000_000, 128_000_000 if store is None else min(128_000_000, store // 32)
    return sources.partition_bytes(nbytes, slots, max(least, most), least)


def generated_input(size: int, seed: int, skew: float, partition_bytes: int) -> SortInput:
    """Return generated records of the sort benchmark, which are to be sorted by their keys."""
    from dask_exo.testing import gensort

    frame = gensort.frame(size, seed=seed, skew=skew, partition_bytes=partition_bytes)
    nbytes = size // gensort.RECORD_BYTES * gensort.RECORD_BYTES
    # random bytes: compressing them, or looking for repeated values, only takes time
    plain = {"compression": None, "use_dictionary": False}
    return SortInput(frame, nbytes, list(gensort.KEYS), nbytes, plain)


def file_input(path: str, choose_size: Callable[[int], int]) -> SortInput:
    """Return the rows of files; ``choose_size`` maps their bytes to those of a partition."""
    nbytes = sum(files(path).values())
    return SortInput(read(path, partition_bytes=choose_size(nbytes)), nbytes)


def input_checksum(frame: dd.DataFrame) -> Checksum:
    """Compute the checksum of a Dask DataFrame in a pass of its own."""
    meta = pd.Series([], dtype=object)
    return sum(frame.map_partitions(_partition_checksum, meta=meta).compute(), Checksum())


def _partition_checksum(partition: pd.DataFrame) -> pd.Series[Any]:
    return pd.Series([checksum([partition])], dtype=object)


def sort_to_parquet(
    frame: dd.DataFrame,
    by: str | Sequence[str],
    output: str | Path,
    *,
    overwrite: bool = False,
    nbytes: int | None = None,
    **options: Any,
) -> Path | str:
    """Sort a Dask DataFrame, ascending with nulls last, into a directory of Parquet files.

    Tasks write to a hidden directory beside ``output``, which is renamed at the end: there is never
    half an output, and a failure or Ctrl-C leaves an old one as it was. ``part.0.parquet`` has the
    smallest rows. A URL is written by ``ddf.exo.to_parquet``.

    ``overwrite`` replaces an existing output, if it contains only Parquet files. With ``nbytes``,
    the size of the output, refuse to start if it does not fit on the disk. Other options are those
    of `dask.dataframe.DataFrame.to_parquet`. Raises `ColumnError`, `SortKeyError`,
    `OutputExistsError` or `OutputError`.
    """
    keys = [by] if isinstance(by, str) else list(by)
    target = check(frame, keys, output, overwrite=overwrite, nbytes=nbytes)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_named_null_keys(keys))
        frame = _with_comparable_keys(frame, keys)
        ordered = frame.sort_values(keys, ignore_index=True, sort_function=sort_rows)
        if not isinstance(target, Path):
            compression = options.get("compression", "snappy") or "none"
            ordered.exo.to_parquet(
                target, overwrite=overwrite, write_index=False, compression=compression
            )
            return target
        temporary = stack.enter_context(_replacing(target, overwrite=overwrite))
        ordered.to_parquet(
            temporary,
            write_index=False,
            write_metadata_file=False,
            engine=NamelessEngine,
            **{"row_group_size": ROW_GROUP, **options},
        )
    return target


def check(
    frame: dd.DataFrame,
    by: Sequence[str],
    output: str | Path,
    *,
    overwrite: bool = False,
    nbytes: int | None = None,
) -> Path | str:
    """Raise those errors of `sort_to_parquet` that are known before anything runs.

    Return the absolute path of the output, or its URL.
    """
    _check_columns(frame, by)
    fs, root = atomic_io.located(str(output))
    if not atomic_io.is_local(fs):
        ObjectStoreCommitter(fs, root, "").begin(overwrite=overwrite)
        return str(output)
    target = Path(output).resolve()
    if not target.parent.is_dir():
        raise OutputError(
            f"cannot write {str(target)!r}: no directory {str(target.parent)!r}; make it first"
        )
    check_target(target, overwrite=overwrite)
    free = shutil.disk_usage(target.parent).free
    if nbytes is not None and nbytes > free:
        raise OutputError(
            f"the disk of {str(target)!r} is too small: need {format_bytes(nbytes)}, have "
            f"{format_bytes(free)}; free some space, or choose another output"
        )
    return target


def sort_rows(frame: pd.DataFrame, by: Sequence[str] = (), **kwargs: Any) -> pd.DataFrame:
    """Sort one partition, ascending: `DataFrame.sort_values`, faster for integer keys.

    pandas factorizes several keys. Here the second one is read only if the first has ties: 5 times
    faster on sort-benchmark records.
    """
    keys = [frame[name] for name in by]
    if not all(isinstance(k.dtype, np.dtype) and k.dtype.kind in "iu" for k in keys):
        return frame.sort_values(list(by), **kwargs)
    values = [k.to_numpy() for k in keys]
    order = np.argsort(values[0])
    first = values[0][order]
    if len(keys) > 1 and (first[1:] == first[:-1]).any():
        order = np.lexsort(values[::-1])
    return to_wire(frame, order, ignore_index=bool(kwargs.get("ignore_index"))).to_frame()


class NamelessEngine(ParquetEngine):
    """An engine whose files pandas can read.

    Files name the columns' types for pandas, but pandas cannot parse its own names of Arrow types
    with parameters (``fixed_size_binary[90][pyarrow]``): ``read_parquet`` refuses such a file. So
    files with such types omit the names.
    """

    @classmethod
    def _pandas_to_arrow_table(
        cls,
        df: pd.DataFrame,
        preserve_index: bool = False,  # Dask's signature
        schema: pa.Schema | None = None,
    ) -> pa.Table:
        table = super()._pandas_to_arrow_table(df, preserve_index=preserve_index, schema=schema)
        return table if all(map(_has_name, df.dtypes)) else table.replace_schema_metadata(None)


def _has_name(dtype: Any) -> bool:
    try:
        return not isinstance(dtype, pd.ArrowDtype) or bool(pd.api.types.pandas_dtype(str(dtype)))
    except (TypeError, NotImplementedError):
        return False


def _check_columns(frame: dd.DataFrame, keys: Sequence[str]) -> None:
    validation.check_columns(keys, frame, "to sort by")
    for name in keys:
        if isinstance(frame.dtypes[name], pd.CategoricalDtype):
            raise SortKeyError(
                f"column {name!r} is categorical, and Parquet does not keep the order of its "
                f"categories: convert it with .astype(str)"
            )


_TEXT = "str" if PANDAS_3 else "string[pyarrow]"  # None stays None


def _with_comparable_keys(frame: dd.DataFrame, keys: Sequence[str]) -> dd.DataFrame:
    """Convert keys of type object, which Dask does not sort, to strings; refuse other values."""
    for name in keys:
        if not pd.api.types.is_object_dtype(frame.dtypes[name]):
            continue
        names = frame[name].map_partitions(_types, meta=pd.Series([], dtype=object)).compute()
        kinds = sorted(set(names))
        if kinds not in ([], ["str"]):
            raise SortKeyError(
                f"column {name!r} is of type object, with values of type {', '.join(kinds)}, and "
                f"Dask does not know their order: convert it with .astype(str), or to numbers"
            )
        frame = frame.assign(**{name: frame[name].astype(_TEXT)})
    return frame


def _types(values: pd.Series[Any]) -> pd.Series[Any]:
    kinds = {type(value).__name__ for value in values[values.notna()]}
    return pd.Series(sorted(kinds), dtype=object)


@contextlib.contextmanager
def _named_null_keys(keys: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except NotImplementedError as error:
        if "Divisions calculation failed" not in str(error):
            raise
        raise SortKeyError(
            f"column {keys[0]!r} has nulls, and Dask cannot sort by strings with nulls among "
            f"them: .fillna or .dropna them, or make another column the first key"
        ) from error


@contextlib.contextmanager
def _replacing(target: Path, *, overwrite: bool) -> Iterator[str]:
    """Yield a directory to write to, which becomes ``target`` at the end or is removed."""
    committer = LocalCommitter(str(target), secrets.token_hex(4))
    committer.begin(overwrite=overwrite)
    try:
        yield committer.staging
        publish(Path(committer.staging), target, overwrite=overwrite)
    except BaseException as error:
        committer.abandon()
        if isinstance(error, ExoError) or not _is_full(error):
            raise
        free = format_bytes(shutil.disk_usage(target.parent).free)
        raise OutputError(
            f"the disk of {str(target)!r} is full: need more than the {free} that are free after "
            f"removing what was written; free some space, or choose another output"
        ) from error


def _is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return True
        error = error.__cause__ or error.__context__
    return False
