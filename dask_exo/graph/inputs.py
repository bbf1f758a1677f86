"""What a task depends on: function and arguments, files with their code, files that it reads.

Dask has the time and size of files in the names of what reads them, but those names are not the
same in the next program (up to Dask 2026.8, those of ``read_parquet`` never are), so both are
looked up here. Tasks share most of what they are made of, so each object is looked at once.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from dask.tokenize import tokenize
from fsspec import AbstractFileSystem

from dask_exo.dask_adapter import Alias, DataNode, Task, TaskRef

Key = Any
PLAIN = (bool, int, float, complex, bytes, type(None), slice, range)


class Inputs:
    """Texts that say what the tasks of one graph are made of."""

    def __init__(self) -> None:
        self._objects: dict[int, tuple[Any, str]] = {}  # with the object, which keeps its identity
        self._files: dict[str, str] = {}

    def text(self, node: Any, below: Mapping[Key, str]) -> str:
        """All of a task, in which ``below`` stands for the tasks that it refers to.

        Raises
        ------
        dask.tokenize.TokenizationError
            Of an object, Dask has no deterministic token.
        """
        systems: list[AbstractFileSystem] = []
        paths: list[str] = []
        whole = self._text(node, below, systems, paths)
        stamps = sorted({self._stamp(path, systems) for path in paths} - {""})
        return "\n".join([whole, *stamps])

    def _text(
        self,
        value: Any,
        below: Mapping[Key, str],
        systems: list[AbstractFileSystem],
        paths: list[str],
    ) -> str:
        def text(inner: Any) -> str:
            return self._text(inner, below, systems, paths)

        kind = type(value).__name__
        if isinstance(value, str):
            paths.append(value)
            return repr(value)
        if isinstance(value, PLAIN):
            return f"{kind} {value!r}"
        if isinstance(value, (TaskRef, Alias)):
            return below[value.key if isinstance(value, TaskRef) else value.target]
        if (inner := _parts(value)) is not None:
            parts = [text(one) for one in inner]
            parts = sorted(parts) if isinstance(value, (set, frozenset)) else parts
            return f"{kind}({', '.join(parts)})"
        if (fs := _system(value)) is not None:
            systems.append(fs)
        return self._object(value)

    def _object(self, value: Any) -> str:
        if id(value) not in self._objects:
            module = getattr(value, "__module__", None) or type(value).__module__
            token = tokenize(value, ensure_deterministic=True)
            text = f"{token} {_source(str(module))} {_own_stamp(value)}"
            self._objects[id(value)] = value, text
        return self._objects[id(value)][1]

    def _stamp(self, path: str, systems: Sequence[AbstractFileSystem]) -> str:
        if path not in self._files:
            self._files[path] = stamp(path, systems)
        return self._files[path]


def _parts(value: Any) -> list[Any] | None:
    """What a task or container consists of."""
    if isinstance(value, Task):
        func = getattr(value, "klass", value.func)  # of containers in tasks
        return [func, list(value.args), value.kwargs]
    if isinstance(value, DataNode):
        return [value.value]
    if isinstance(value, functools.partial):
        return [value.func, list(value.args), value.keywords]
    if type(value) is dict:
        return [part for item in value.items() for part in item]
    return list(value) if type(value) in (list, tuple, set, frozenset) else None


def stamp(path: str, systems: Sequence[AbstractFileSystem]) -> str:
    """Path, size and time of a file, or nothing if it is none: here, or in one of ``systems``."""
    try:
        found = Path(path.removeprefix("file://")).stat()
        return f"{path} {found.st_size} {found.st_mtime_ns}" if _is_file(found) else ""
    except (OSError, ValueError):  # it is elsewhere, or no path
        pass
    for fs in systems if "/" in path else ():
        try:
            return f"{path} {fs.checksum(path)}"
        except (OSError, NotImplementedError, ValueError):
            continue
    return ""


def _own_stamp(value: Any) -> str:
    """That of the file which an object stands for, as those of fsspec and pyarrow do."""
    if isinstance(fragment := getattr(value, "fragment", None), ds.Fragment):
        info = fragment.filesystem.get_file_info(fragment.path)
        return f"{info.path} {info.size} {info.mtime_ns}"
    path, fs = getattr(value, "path", None), _system(value)
    return stamp(path, [] if fs is None else [fs]) if isinstance(path, str) else ""


def _system(value: Any) -> AbstractFileSystem | None:
    fs = value if isinstance(value, AbstractFileSystem) else getattr(value, "fs", None)
    return fs if isinstance(fs, AbstractFileSystem) else None


def _is_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode)


def _source(module: str) -> str:
    """A digest of the file of a module; of ``__main__``, Dask's tokens have the code itself."""
    if module in ("builtins", "__main__"):
        return module
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        found = Path(file or "").stat()
        return f"{module} {_digest(str(file), found.st_mtime_ns, found.st_size)}"
    except OSError:  # it is built in, or comes from an archive
        return module


@functools.cache
def _digest(file: str, _time: int, _size: int) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
