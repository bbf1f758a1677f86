"""An output in an object store, where nothing can be renamed and no two objects change at once.

Tasks write below ``_exo-staging-…/`` of the output, which readers of Parquet pass over. One small
object, ``_exo_commit.json``, then decides: with it the new files count, and whoever writes there
next finishes what it says if the program has died. Files are copied to their places, then
``_exo_manifest.json`` is replaced, then the old ones are deleted. A reader that asks `committed`
sees the old files or the new ones; one that lists may see both, between the first copy and the last
deletion.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from fsspec import AbstractFileSystem

from dask_exo.checkpoint import atomic_io
from dask_exo.errors import InputError, OutputExistsError

COMMIT = "_exo_commit.json"
MANIFEST = "_exo_manifest.json"


class ObjectStoreCommitter:
    """Implements `dask_exo.dataframe.to_parquet.write.Committer`.

    Parameters
    ----------
    fs : AbstractFileSystem
    path : str
    token : str
        Of how it is written: the next program finds the files again.
    """

    def __init__(self, fs: AbstractFileSystem, path: str, token: str) -> None:
        self._fs, self._path = fs, path
        self._folder = f"_exo-staging-{token}"

    @property
    def staging(self) -> str:
        """The URL or directory that tasks write to."""
        return str(self._fs.unstrip_protocol(f"{self._path}/{self._folder}"))

    def begin(self, *, overwrite: bool) -> None:
        """Finish an interrupted commit; check that the output may be written."""
        self._finish()
        if not overwrite and (there := self._data_files()):
            raise OutputExistsError(
                f"the output {self._path!r} is already there ({there[0]!r}, for one): give another "
                f"one, or overwrite=True"
            )

    def commit(self, written: Collection[str], *, overwrite: bool) -> None:
        """Make exactly these files the output."""
        old = sorted(set(self._data_files()) - set(written)) if overwrite else []
        decided = {"files": sorted(written), "old": old, "staging": self._folder}
        self._write(COMMIT, decided)
        self._finish()

    def abandon(self) -> None:
        """Delete what has been written."""
        self._delete(f"{self._path}/{self._folder}")

    def _finish(self) -> None:
        """Execute the recorded commit; idempotent."""
        decided = _json(self._fs, f"{self._path}/{COMMIT}")
        if decided is None:
            return
        staging = f"{self._path}/{decided['staging']}"
        for file in decided["files"]:
            if self._fs.exists(f"{staging}/{file}"):
                self._fs.cp_file(f"{staging}/{file}", f"{self._path}/{file}")
        self._write(MANIFEST, {"files": decided["files"]})
        for file in decided["old"]:
            if self._fs.exists(f"{self._path}/{file}"):
                self._fs.rm_file(f"{self._path}/{file}")
        self._delete(staging)
        self._fs.rm_file(f"{self._path}/{COMMIT}")

    def _data_files(self) -> list[str]:
        """Return the files of the output, relative to its path."""
        self._fs.invalidate_cache()
        found = [file.removeprefix(f"{self._path}/") for file in self._fs.find(self._path)]
        return sorted(file for file in found if not file.startswith("_exo"))

    def _write(self, name: str, content: dict[str, Any]) -> None:
        atomic_io.put(self._fs, f"{self._path}/{name}", [json.dumps(content, indent=1).encode()])

    def _delete(self, folder: str) -> None:
        self._fs.invalidate_cache()
        if self._fs.exists(folder):
            self._fs.rm(folder, recursive=True)


def committed(path: str) -> list[str]:
    """Return the committed files of an output in an object store.

    Parameters
    ----------
    path : str
        As it was given to ``ddf.exo.to_parquet``.

    Returns
    -------
    list of str
        URLs, for `pandas.read_parquet` and all others.

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
