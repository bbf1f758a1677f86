"""Atomic file writes, on a local disk or in an object store."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from dask_exo.errors import CheckpointError

Bytes = bytes | memoryview


def located(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL (a plain path is local), and the path in it."""
    fs, path = url_to_fs(url)
    return fs, path.rstrip("/")


def is_local(fs: AbstractFileSystem) -> bool:
    """Return whether a file system is local, so that renaming is atomic."""
    return isinstance(fs, LocalFileSystem)


def put(fs: AbstractFileSystem, path: str, pieces: Sequence[Bytes]) -> None:
    """Write a file atomically.

    On a local file system it is written under a temporary name and renamed. Object stores show a
    file only when it is complete.
    """
    if not is_local(fs):
        with fs.open(path, "wb") as file:
            for piece in pieces:
                file.write(piece)
        return
    folder, name = os.path.split(path)
    Path(folder).mkdir(parents=True, exist_ok=True)
    temporary = Path(folder) / f".{name[:60]}-{secrets.token_hex(4)}"
    try:
        with temporary.open("wb") as local:
            local.writelines(pieces)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove(fs: AbstractFileSystem, folder: str) -> None:
    """Delete a folder, even while tasks that still run add files to it."""
    for _ in range(10):
        fs.invalidate_cache()
        if not fs.exists(folder):
            return
        with contextlib.suppress(OSError):
            fs.rm(folder, recursive=True)


def sizes(fs: AbstractFileSystem, folder: str) -> dict[str, int]:
    """Return the size of each file of a folder, by name; empty if there is no such folder."""
    return {
        _name(entry): int(entry["size"] or 0)
        for entry in _entries(fs, folder)
        if entry["type"] == "file"
    }


def folders(fs: AbstractFileSystem, folder: str) -> list[str]:
    """Return the sorted names of the folders in a folder."""
    return sorted(_name(entry) for entry in _entries(fs, folder) if entry["type"] != "file")


def _entries(fs: AbstractFileSystem, folder: str) -> list[Any]:
    fs.invalidate_cache()
    try:
        return list(fs.ls(folder, detail=True))
    except FileNotFoundError:
        return []


def _name(entry: Any) -> str:
    return str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]


def make_private(path: str) -> None:
    """Create a local directory that only its owner reads, or check that nobody else writes to it.

    Files in it are unpickled, so a directory that others may write to is refused.
    """
    directory = Path(path)
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise CheckpointError(
            f"exo.checkpoint.path={path!r} cannot be used: {error.strerror}; name another directory"
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CheckpointError(
            f"exo.checkpoint.path={path!r} is not safe: it must belong to you, and nobody else may "
            f"write to it, since its files are unpickled; it belongs to user "
            f"{status.st_uid}, with mode {stat.S_IMODE(status.st_mode):o}. chmod 700 it, or name "
            f"another directory"
        )
