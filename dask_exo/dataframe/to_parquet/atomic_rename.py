"""Atomic replacement of a directory."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from dask_exo.errors import OutputError, OutputExistsError

OLD = ".old"


def publish(temporary: Path, target: Path, *, overwrite: bool) -> None:
    """Give ``temporary`` the name ``target``; replace an existing one if ``overwrite``.

    Raises
    ------
    OutputExistsError
        ``target`` exists, and ``overwrite`` is false.
    OutputError
        It cannot be renamed.
    """
    if overwrite and target.exists():
        if not exchange(temporary, target):
            old = temporary.with_name(temporary.name + OLD)
            target.rename(old)
            try:
                temporary.rename(target)
            except BaseException:
                old.rename(target)
                raise
            temporary = old
        remove(temporary)
        return
    try:
        temporary.rename(target)
    except OSError as error:
        if target.exists():
            raise OutputExistsError(
                f"the output {str(target)!r} was created by another program: choose another"
            ) from error
        raise OutputError(
            f"cannot write {str(target)!r}: {error.strerror}; choose another output"
        ) from error


def exchange(one: Path, two: Path) -> bool:
    """Exchange two directories' names at once, where the system can (Linux ``renameat2``)."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and not rename(here, os.fsencode(one), here, os.fsencode(two), flag)


def remove(directory: Path) -> None:
    """Delete a directory, also one that grows meanwhile."""
    # tasks that still run may add a file between two looks
    for _ in range(10):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
