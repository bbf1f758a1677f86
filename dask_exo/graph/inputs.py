"""What a task depends on beside its arguments: files that it reads, and files that its code is in.

Dask has the time and size of files in the names of what reads them, but those names are not the
same in the next program (up to Dask 2026.8, those of ``read_parquet`` never are), so both are
looked up here.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

from dask_exo.dask_adapter import DataNode, Task


def leaves(value: Any) -> Iterator[Any]:
    """Functions, arguments and what is in them, without the containers."""
    if isinstance(value, Task):
        for inner in (value.func, *value.args, *value.kwargs.values()):
            yield from leaves(inner)
    elif isinstance(value, DataNode):
        yield from leaves(value.value)
    elif isinstance(value, functools.partial):
        yield from leaves((value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, Mapping):
        yield from leaves(list(value.values()))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def sources(found: Sequence[Any]) -> list[str]:
    """Digests of the files with the modules of functions and objects.

    Of ``__main__`` Dask's tokens have the code itself.
    """
    names = {getattr(one, "__module__", None) or type(one).__module__ for one in found}
    plain = sorted(name for name in names if isinstance(name, str))
    return [_source(name) for name in plain if name not in ("builtins", "__main__")]


def stamps(found: Sequence[Any], known: dict[str, str | None]) -> list[str]:
    """Path, size and time of each file that arguments name: a path, or an object that has one.

    Parameters
    ----------
    found : sequence
        The `leaves` of a task.
    known : dict
        What has been looked up: path → stamp, or None if it is no file. It is added to.
    """
    systems = [fs for one in found if (fs := _system(one)) is not None]
    made: set[str] = set()
    for one in found:
        path = one if isinstance(one, str) else getattr(one, "path", None)
        if isinstance(path, str):
            if path not in known:
                known[path] = _stamp(path, systems)
            made.add(known[path] or "")
        elif hasattr(fragment := getattr(one, "fragment", None), "filesystem"):  # of pyarrow
            info = fragment.filesystem.get_file_info(fragment.path)
            made.add(f"{info.path} {info.size} {info.mtime_ns}")
    return sorted(made - {""})


def _system(one: Any) -> AbstractFileSystem | None:
    fs = one if isinstance(one, AbstractFileSystem) else getattr(one, "fs", None)
    return fs if isinstance(fs, AbstractFileSystem) else None


def _stamp(path: str, systems: Sequence[AbstractFileSystem]) -> str | None:
    try:
        found = Path(path.removeprefix("file://")).stat()
        return f"{path} {found.st_size} {found.st_mtime_ns}" if _is_file(found) else None
    except (OSError, ValueError):  # it is elsewhere, or no path
        pass
    for fs in systems if "/" in path else ():
        try:
            return f"{path} {fs.checksum(path)}"
        except (OSError, NotImplementedError, ValueError):
            continue
    return None


def _is_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode)


def _source(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        found = Path(file or "").stat()
        return f"{module} {_digest(str(file), found.st_mtime_ns, found.st_size)}"
    except OSError:  # it is built in, or comes from an archive
        return module


@functools.cache
def _digest(file: str, _time: int, _size: int) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
