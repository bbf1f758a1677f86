"""An output on a local file system: a hidden directory beside it, which then takes its name.

A reader sees what was there before, or all that is new. Where the system cannot exchange two names
at once and there was something before, there is a moment without any; a program that dies in it has
left the old data under a hidden name, from which the next one brings it back.
"""

from __future__ import annotations

import glob
from collections.abc import Collection
from pathlib import Path

from dask_exo.dataframe.to_parquet import atomic_rename
from dask_exo.errors import OutputError, OutputExistsError


class LocalCommitter:
    """Implements `dask_exo.dataframe.to_parquet.write.Committer`.

    Parameters
    ----------
    path : str
        Absolute.
    token : str
        Of how it is written: the next program finds the files again.
    """

    def __init__(self, path: str, token: str) -> None:
        self._target = Path(path)
        self._temporary = self._target.parent / f".{self._target.name}.exo-{token}"

    @property
    def staging(self) -> str:
        """The URL or directory that tasks write to."""
        return str(self._temporary)

    def begin(self, *, overwrite: bool) -> None:
        """Recover an interrupted commit; check that the output may be written."""
        target = self._target
        for old in target.parent.glob(f".{glob.escape(target.name)}.exo-*{atomic_rename.OLD}"):
            if target.exists():
                atomic_rename.remove(old)
            else:
                old.rename(target)
        if target.exists() and not overwrite:
            raise OutputExistsError(
                f"the output {str(target)!r} is already there: give another one, or overwrite=True"
            )
        other = [] if target.is_dir() or not target.exists() else [target]
        other += [file for file in target.rglob("*") if file.is_file() and not _is_parquet(file)]
        if other:  # replacing would remove it
            raise OutputError(
                f"will not overwrite {str(target)!r}: {other[0].name!r} is not a Parquet file; "
                f"give another path, or move that away"
            )
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot write to {str(target.parent)!r}: {error.strerror}; choose another output"
            ) from error

    def commit(self, written: Collection[str], *, overwrite: bool) -> None:
        """Make exactly these files the output."""
        kept = {self._temporary / file for file in written}
        for file in self._temporary.rglob("*"):
            if file.is_file() and file not in kept:
                file.unlink()  # of an attempt that did not count
        atomic_rename.publish(self._temporary, self._target, overwrite=overwrite)

    def abandon(self) -> None:
        """Delete what has been written."""
        atomic_rename.remove(self._temporary)


def _is_parquet(file: Path) -> bool:
    return file.suffix == ".parquet" or file.name in ("_metadata", "_common_metadata")
