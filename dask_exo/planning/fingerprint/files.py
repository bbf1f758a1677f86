"""Stamps of local files: a text that changes when a file changes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dask_exo.planning.fingerprint.node import UnfollowableError

SMALL = 16 * 1024  # bytes up to which a file is read: as fast as its metadata
MOST_FILES = 10_000  # of a directory or pattern
_DATABASES = (".db", ".sqlite", ".sqlite3")


def file_stamp(path: str, found: os.stat_result | None = None) -> str:
    """Return the stamp of a file: its content if it is small, else its metadata."""
    try:
        found = found or Path(path).stat()
        if found.st_size <= SMALL and not path.endswith(_DATABASES):
            return f"{found.st_size} {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    log = f"{path}-wal"  # of a database, which writes there first
    if path.endswith(_DATABASES) and Path(log).exists():
        return f"{_state(found)} {file_stamp(log)}"
    return _state(found)


def _state(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"


def is_common_directory(path: str) -> bool:
    """Return whether strings name a directory by chance, or all programs write to it."""
    temporary = os.path.realpath(tempfile.gettempdir())
    return not path.strip("./~") or os.path.realpath(path) == temporary


def files_in(path: str, besides: str | None) -> Iterator[str]:
    """Yield a file, or all files of a directory except hidden and compiled ones."""
    if not os.path.isdir(path):  # noqa: PTH112  of thousands
        yield path
        return
    seen = {besides}
    for place, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [one for one in folders if not one.startswith((".", "__pycache__"))]
        yield from (str(Path(place) / one) for one in names if not one.startswith("."))


def at_most_files(name: str, paths: Iterator[str]) -> list[str]:
    """List paths; raise `UnfollowableError` above `MOST_FILES`."""
    found = []
    for path in paths:
        found.append(path)
        if len(found) > MOST_FILES:
            raise UnfollowableError(f"{name!r} has more than {MOST_FILES:,} files")
    return found
