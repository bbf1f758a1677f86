"""Commit Parquet files as one output: all of them, or nothing.

On a local file system, files are staged in a hidden directory beside the output, which then takes
its name. A reader sees all of the old output or all of the new one. Where the system cannot
exchange two names at once, there is a moment without an output; if the program dies then, the old
data has a hidden name, from which the next program restores it.

In an object store nothing can be renamed, and no two objects change at once. Tasks write below
``_exo-staging-…/`` of the output, which readers of Parquet ignore. One small object,
``_exo_commit.json``, then decides: with it the new files count, and the next writer finishes the
commit if the program has died. Files are copied to their places, then ``_exo_manifest.json`` is
replaced, then the old ones are deleted. A reader that calls `committed` sees the old files or the
new ones; one that lists may see both, between the first copy and the last deletion.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from dask_exo.checkpoint import atomic_io
from dask_exo.errors import InputError, OutputError, OutputExistsError

_LOCAL = LocalFileSystem()
PARALLEL = 16  # requests at a time
OLD = ".old"
METADATA = ("_metadata", "_common_metadata")  # files of Parquet


def publish(temporary: Path, target: Path, *, overwrite: bool) -> None:
    """Rename ``temporary`` to ``target``; replace an existing one if ``overwrite``."""
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
        atomic_io.remove(_LOCAL, str(temporary))
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


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two directories at once; return False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    cwd, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and not rename(
        cwd, os.fsencode(first), cwd, os.fsencode(second), flag
    )


def check_target(target: Path, *, overwrite: bool) -> None:
    """Recover an interrupted commit; raise an error if the output may not be written."""
    for old in target.parent.glob(f".{glob.escape(target.name)}.exo-*{OLD}"):
        if target.exists():
            atomic_io.remove(_LOCAL, str(old))
        else:
            old.rename(target)
    if target.exists() and not overwrite:
        raise OutputExistsError(
            f"the output {str(target)!r} exists: give another one, or overwrite it "
            f"(overwrite=True, --overwrite)"
        )
    foreign = [] if target.is_dir() or not target.exists() else [target]
    files = (file for file in target.rglob("*") if file.is_file())
    foreign += [file for file in files if file.suffix != ".parquet" and file.name not in METADATA]
    if foreign:  # replacing would remove it
        raise OutputError(
            f"will not overwrite {str(target)!r}: {foreign[0].name!r} is not a Parquet file; "
            f"give another path, or move that file away"
        )


class LocalCommitter:
    """Commit to a local file system.

    The token names the staging directory. It is stable, so that the next program finds the files.
    """

    def __init__(self, path: str, token: str) -> None:
        self._target = Path(path)
        self._temporary = self._target.parent / f".{self._target.name}.exo-{token}"

    @property
    def staging(self) -> str:
        """Directory or URL that tasks write to."""
        return str(self._temporary)

    def begin(self, *, overwrite: bool) -> None:
        """Recover an interrupted commit; check that the output may be written."""
        check_target(self._target, overwrite=overwrite)
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot write to {str(self._target.parent)!r}: {error.strerror}; choose another "
                f"output"
            ) from error

    def commit(self, written: Collection[str], *, overwrite: bool) -> None:
        """Make exactly these files the output."""
        committed = {self._temporary / file for file in written}
        for file in self._temporary.rglob("*"):
            if file.is_file() and file not in committed:
                file.unlink()  # of a failed or speculative attempt
        publish(self._temporary, self._target, overwrite=overwrite)

    def abandon(self) -> None:
        """Delete the staged files."""
        atomic_io.remove(_LOCAL, str(self._temporary))


COMMIT = "_exo_commit.json"
MANIFEST = "_exo_manifest.json"


class ObjectStoreCommitter:
    """Commit to an object store."""

    def __init__(self, fs: AbstractFileSystem, path: str, token: str) -> None:
        self._fs, self._path = fs, path
        self._folder = f"_exo-staging-{token}"

    @property
    def staging(self) -> str:
        """See `LocalCommitter`."""
        return str(self._fs.unstrip_protocol(f"{self._path}/{self._folder}"))

    def begin(self, *, overwrite: bool) -> None:
        """See `LocalCommitter`."""
        self._finish()
        if not overwrite and (files := self._data_files()):
            raise OutputExistsError(
                f"the output {self._path!r} exists (for example {files[0]!r}): give "
                f"another one, or overwrite=True"
            )

    def commit(self, written: Collection[str], *, overwrite: bool) -> None:
        """See `LocalCommitter`."""
        old = sorted(set(self._data_files()) - set(written)) if overwrite else []
        commit = {"files": sorted(written), "old": old, "staging": self._folder}
        self._write(COMMIT, commit)
        self._finish()

    def abandon(self) -> None:
        """See `LocalCommitter`."""
        atomic_io.remove(self._fs, f"{self._path}/{self._folder}")

    def _finish(self) -> None:
        """Execute the recorded commit; idempotent."""
        commit = _json(self._fs, f"{self._path}/{COMMIT}")
        if commit is None:
            return
        staging = f"{self._path}/{commit['staging']}"

        def copy(file: str) -> None:
            if self._fs.exists(f"{staging}/{file}"):
                self._fs.cp_file(f"{staging}/{file}", f"{self._path}/{file}")

        def delete(file: str) -> None:
            if self._fs.exists(f"{self._path}/{file}"):
                self._fs.rm_file(f"{self._path}/{file}")

        with ThreadPoolExecutor(PARALLEL) as pool:
            list(pool.map(copy, commit["files"]))
            self._write(MANIFEST, {"files": commit["files"]})
            list(pool.map(delete, commit["old"]))
        atomic_io.remove(self._fs, staging)
        self._fs.rm_file(f"{self._path}/{COMMIT}")

    def _data_files(self) -> list[str]:
        """Return the files of the output, relative to its path."""
        self._fs.invalidate_cache()
        files = [file.removeprefix(f"{self._path}/") for file in self._fs.find(self._path)]
        return sorted(file for file in files if not file.startswith("_exo"))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        atomic_io.put(self._fs, f"{self._path}/{name}", [json.dumps(content, indent=1).encode()])


def committed(path: str) -> list[str]:
    """Return the URLs of the committed files of an output in an object store.

    ``path`` is that of ``ddf.exo.to_parquet``.

    Raises
    ------
    InputError
        Nothing has been committed there.
    """
    fs, root = atomic_io.located(path)
    fs.invalidate_cache()
    manifest = _json(fs, f"{root}/{MANIFEST}")
    if manifest is None:
        raise InputError(
            f"there is no {MANIFEST} in {path!r}: ddf.exo.to_parquet writes it to object stores; "
            f"on a local disk, use the directory itself"
        )
    return [str(fs.unstrip_protocol(f"{root}/{file}")) for file in manifest["files"]]


def _json(fs: AbstractFileSystem, path: str) -> Any:
    try:
        return json.loads(fs.cat_file(path))
    except FileNotFoundError:
        return None
