"""Files as rows: listing, grouping into partitions, and reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
from fsspec.core import url_to_fs

from dask_exo.errors import InputError


def list_files(paths: str | Path | Iterable[str | Path], options: Any) -> list[tuple[str, int]]:
    """Return names and sizes of files.

    Parameters
    ----------
    paths : path, or iterable of paths
        Or URLs; each a file, a directory (all files in it) or a pattern such as ``"img/*.png"``.
    options : mapping
        For `fsspec`.

    Raises
    ------
    InputError
        There is no such file.
    """
    found: list[tuple[str, int]] = []
    for path in [paths] if isinstance(paths, (str, Path)) else paths:
        system, root = url_to_fs(str(path), **options)
        if fsspec.core.has_magic(root):
            there = system.glob(root, detail=True)
        else:
            there = system.find(root, detail=True)
        files = {name: about for name, about in there.items() if about["type"] == "file"}
        if not files:
            raise InputError(
                f"{path}: there is no such file, and none that the pattern matches: give another "
                f"path"
            )
        local = "file" in system.protocol
        for name in sorted(files):
            full = name if local else system.unstrip_protocol(name)
            found.append((full, int(files[name]["size"] or 0)))
    return found


def group_by_bytes(sizes: Sequence[int], target: int) -> Iterator[range]:
    """Yield groups of neighbouring files of about ``target`` bytes, or of one larger file.

    Examples
    --------
    >>> list(group_by_bytes([4, 4, 4, 20, 1, 0], 10))
    [range(0, 2), range(2, 3), range(3, 4), range(4, 6)]
    """
    first = total = 0
    for i, nbytes in enumerate(sizes):
        if i > first and total + nbytes > target:
            yield range(first, i)
            first, total = i, 0
        total += nbytes
    if sizes:
        yield range(first, len(sizes))


def paths_of(files: Sequence[tuple[str, int]], target: int) -> list[pd.DataFrame]:
    """Return frames of file names, one for each partition."""
    groups = group_by_bytes([nbytes for _, nbytes in files], target)
    return [pd.DataFrame({"path": [files[i][0] for i in group]}) for group in groups]


def read(row: dict[str, Any], options: Any) -> list[dict[str, Any]]:
    """Read a file."""
    with fsspec.open(row["path"], "rb", **options) as file:
        return [{"path": row["path"], "bytes": file.read()}]
