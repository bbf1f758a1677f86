"""Stamps of the data that strings name: texts that change when the data changes.

The stamp of a small local file is of its content. That of a larger one is of its size, its inode,
and its times of modification and of change; no program can set the last one back. A directory has
the stamps of all files in it, a pattern those of its matches. An object in a store has its etag or
the checksum of its file system; a page has its etag or its time. Data without any of these has no
stamp, which is an error.
"""

from __future__ import annotations

import bisect
import copy
import email.utils
import functools
import glob
import hashlib
import itertools
import os
import re
import stat
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from dask_exo.planning.fingerprint.objects import LONG, UnfollowableError

MOST_PAGES = 64  # of one graph

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://\S+")
_STAGED = re.compile(r"/\.[^/]+\.exo-|_exo-staging-")
"""Staging directories of `to_parquet`, whose files are outputs of tasks."""
_PATTERN = re.compile(r"/|\.\w+$")
_FIELD = re.compile(r"\{[^{}]*\}|%\(\w+\)\w|%[-#0]?\d*[a-zA-Z]|\$\{?\w+\}?")
"""Placeholder of a number or name in a template."""
_FILE = re.compile(r"[\w./~-]*\w\.\w+|[\w.~-]*/[\w./-]+")
_SEPARATOR = re.compile(r"""[\s,;'"()=<>|]+""")
MOST_LETTERS = 256  # of a part of a path


class Stamps:
    """Stamps of the strings of one graph, each computed once.

    The directory ``excluded`` does not count: this program writes there itself.
    """

    def __init__(self, excluded: str | None = None) -> None:
        self._excluded = None if excluded is None else os.path.realpath(excluded)
        self._known: dict[str, str | UnfollowableError] = {}
        self._near = functools.cache(self._look_near)
        self._names_in = functools.cache(_names_in)
        self._is_file = functools.cache(os.path.isfile)
        self._pages = 0

    def of(self, name: str, systems: Sequence[AbstractFileSystem] = ()) -> str:
        """Return the stamp of the data with a name, or nothing if there is none.

        The name is any string: a path, a pattern, a URL, or something else. ``systems`` may have
        the data if nothing else has it. Raise `UnfollowableError` if the string names data, and it
        is not known whether the data has changed.
        """
        if name not in self._known:
            try:
                self._known[name] = self._look(name)
            except UnfollowableError as error:
                self._known[name] = error.with_traceback(None)
        known = self._known[name]
        if isinstance(known, UnfollowableError):
            raise copy.copy(known)  # its traceback refers to the frames of all callers
        return known or (stamp_in(systems, name) if "/" in name else "")

    def near(self, names: Iterable[str]) -> set[str]:
        """Return the stamps of files whose paths code may build from some strings."""
        names = {name for name in names if 1 < len(name) < MOST_LETTERS and "\n" not in name}
        folders = {Path(name).parent for name in names if self._is_file(name)}
        siblings = {str(f / name) for f in folders for name in names if _FILE.fullmatch(name)}
        return {self.of(name) for name in siblings} | {self._near(name) for name in names}

    def _look_near(self, name: str) -> str:
        """Return the stamp of all files that begin or end like a string."""
        folder, base = os.path.split(name)
        paths: list[str] = []
        if name.startswith((".", "/")) and name.strip("./"):
            paths = glob.glob(f"*{glob.escape(name)}")  # noqa: PTH207
        stem = os.path.splitext(base)[0] or base  # noqa: PTH122
        if stem and not (folder and is_common_directory(folder)):
            names = self._names_in(folder or ".")
            candidates = names[bisect.bisect_left(names, stem) :]
            beginning = itertools.takewhile(lambda name: name.startswith(stem), candidates)
            paths += [str(Path(folder) / name) for name in beginning]
        return self._several(name, iter(paths)) if paths else ""

    def _look(self, name: str) -> str:
        if not name or len(name) > LONG or "\0" in name or _STAGED.search(name):
            return ""
        if "://" in name and "::" in name:
            raise UnfollowableError(f"{name} may have changed: it is a chain of file systems")
        if (url := _URL.fullmatch(name)) and url[1] not in ("file", "local"):
            return self._page(name) if url[1] in ("http", "https") else object_stamp(name, url[1])
        path = os.path.expandvars(re.sub("^(file|local)://", "", name))
        try:
            path = str(Path(path).expanduser()) if path.startswith("~") else path
            status = os.stat(path)  # noqa: PTH116  for thousands of strings, most of them no paths
        except (OSError, ValueError, RuntimeError):
            return self._pattern(path) or self._words(name)
        if stat.S_ISREG(status.st_mode):
            return file_stamp(path, status)
        if stat.S_ISDIR(status.st_mode) and not is_common_directory(path):
            return self._several(path, iter([path]))
        return ""

    def _pattern(self, path: str) -> str:
        """Return the stamp of all files that a pattern or template may name."""
        pattern = _FIELD.sub("*", path)
        fixed = os.path.dirname(MAGIC.split(pattern)[0])  # noqa: PTH120
        if "\n" in path or not MAGIC.search(pattern) or not _PATTERN.search(pattern):
            return ""
        if fixed and is_common_directory(fixed):
            return ""
        paths = glob.iglob(pattern, recursive=True)  # noqa: PTH207  as written, not resolved
        return self._several(path, paths)

    def _words(self, text: str) -> str:
        """Return the stamps of paths in a longer text, such as a command."""
        words = {word for word in _SEPARATOR.split(text) if word != text and "://" not in word}
        stamps = [self.of(word) for word in sorted(words) if _FILE.search(word)]
        return " ".join(filter(None, stamps))

    def _several(self, name: str, paths: Iterator[str]) -> str:
        digest, count = hashlib.sha256(), 0
        files = (file for path in paths for file in files_in(path, self._excluded))
        for path in sorted(at_most_files(name, files)):
            digest.update(f"{path} {file_stamp(path)}\n".encode(errors="surrogatepass"))
            count += 1
        return f"{count} files {digest.hexdigest()}"

    def _page(self, url: str) -> str:
        self._pages += 1
        if self._pages > MOST_PAGES:
            raise UnfollowableError(f"more than {MOST_PAGES} pages to check, such as {url}")
        return page_stamp(url)


def _names_in(folder: str) -> list[str]:
    """List a directory, sorted; nothing if it cannot be read."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


SMALL = 16 * 1024  # bytes up to which a file is read: as fast as its metadata
MOST_FILES = 10_000  # of a directory or pattern
_DATABASES = (".db", ".sqlite", ".sqlite3")


def file_stamp(path: str, status: os.stat_result | None = None) -> str:
    """Return the stamp of a file: its content if it is small, else its metadata."""
    try:
        status = status or Path(path).stat()
        if status.st_size <= SMALL and not path.endswith(_DATABASES):
            return f"{status.st_size} {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    state = f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"
    log = f"{path}-wal"  # of a database, which writes there first
    if path.endswith(_DATABASES) and Path(log).exists():
        return f"{state} {file_stamp(log)}"
    return state


def is_common_directory(path: str) -> bool:
    """Return whether strings name a directory by chance, or all programs write to it."""
    temporary = os.path.realpath(tempfile.gettempdir())
    return not path.strip("./~") or os.path.realpath(path) == temporary


def files_in(path: str, excluded: str | None) -> Iterator[str]:
    """Yield a file, or all files of a directory except hidden and compiled ones."""
    if not os.path.isdir(path):  # noqa: PTH112  of thousands
        yield path
        return
    seen = {excluded}
    for directory, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(directory)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        yield from (str(Path(directory) / name) for name in names if not name.startswith("."))


def at_most_files(name: str, paths: Iterator[str]) -> list[str]:
    """List paths; raise `UnfollowableError` above `MOST_FILES`."""
    files = []
    for path in paths:
        files.append(path)
        if len(files) > MOST_FILES:
            raise UnfollowableError(f"{name!r} has more than {MOST_FILES:,} files")
    return files


PATIENCE = 5.0  # seconds until a server has to answer
STRONG = 2.0  # seconds after which a changed page has another modification time
MAGIC = re.compile(r"[*?\[]")


def page_stamp(url: str) -> str:
    """Return the stamp of a web page: its etag, or its time of modification."""
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            headers = response.headers
    except (OSError, ValueError) as error:
        raise UnfollowableError(f"{url} may have changed: {error}") from error
    if headers["ETag"]:
        return f"{headers['ETag']} {headers['Content-Length']}"
    changed, now = (_seconds(headers[name]) for name in ("Last-Modified", "Date"))
    if changed is None or now is None or now - changed < STRONG:
        raise UnfollowableError(f"{url} may have changed: it comes with no etag")
    return f"{changed} {headers['Content-Length']}"


def _seconds(date: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None


def object_stamp(url: str, protocol: str) -> str:
    """Return the stamp of files in a file system of fsspec."""
    if protocol not in fsspec.available_protocols():
        raise UnfollowableError(f"{url} may have changed: fsspec does not know {protocol!r}")
    try:
        fs, path = url_to_fs(url)
        fs.invalidate_cache()
        if MAGIC.search(path) or fs.isdir(path):
            found: Any = fs.glob(path) if MAGIC.search(path) else fs.find(path)
            files = at_most_files(url, iter(sorted(found)))
            return " ".join(f"{file} {fs.checksum(file)}" for file in files)
        return str(fs.checksum(path)) if fs.exists(path) else ""
    except UnfollowableError:
        raise
    except Exception as error:
        raise UnfollowableError(f"{url} may have changed: {error}") from error


def stamp_in(systems: Sequence[AbstractFileSystem], path: str) -> str:
    """Return the stamp of a path in the first file system that has it; else nothing."""
    for fs in systems:
        try:
            return f"{path} {fs.checksum(path)}"
        except (OSError, NotImplementedError, ValueError):
            continue
    return ""
