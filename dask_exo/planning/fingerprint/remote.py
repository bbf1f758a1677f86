"""Stamps of data elsewhere: web pages, and files in file systems of fsspec."""

from __future__ import annotations

import email.utils
import re
import urllib.request
from collections.abc import Sequence
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from dask_exo.planning.fingerprint.files import at_most_files
from dask_exo.planning.fingerprint.node import UnfollowableError

PATIENCE = 5.0  # seconds until a server has to answer
STRONG = 2.0  # seconds after which a changed page has another time
MAGIC = re.compile(r"[*?\[]")


def page_stamp(url: str) -> str:
    """Return the stamp of a web page: its etag, or its time of modification."""
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            headers = answer.headers
    except (OSError, ValueError) as error:
        raise UnfollowableError(f"whether {url} has changed: {error}") from error
    if headers["ETag"]:
        return f"{headers['ETag']} {headers['Content-Length']}"
    changed, now = (_seconds(headers[name]) for name in ("Last-Modified", "Date"))
    if changed is None or now is None or now - changed < STRONG:
        raise UnfollowableError(f"whether {url} has changed: it comes with no etag")
    return f"{changed} {headers['Content-Length']}"


def _seconds(date: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None


def object_stamp(url: str, protocol: str) -> str:
    """Return the stamp of files in a file system of fsspec."""
    if protocol not in fsspec.available_protocols():
        raise UnfollowableError(f"whether {url} has changed: fsspec does not know {protocol!r}")
    try:
        fs, path = url_to_fs(url)
        fs.invalidate_cache()
        if MAGIC.search(path) or fs.isdir(path):
            found: Any = fs.glob(path) if MAGIC.search(path) else fs.find(path)
            return " ".join(
                f"{one} {fs.checksum(one)}" for one in at_most_files(url, iter(sorted(found)))
            )
        return str(fs.checksum(path)) if fs.exists(path) else ""
    except UnfollowableError:
        raise
    except Exception as error:
        raise UnfollowableError(f"whether {url} has changed: {error}") from error


def stamp_in(systems: Sequence[AbstractFileSystem], path: str) -> str:
    """Return the stamp of a path in the first file system that has it; else nothing."""
    for fs in systems:
        try:
            return f"{path} {fs.checksum(path)}"
        except (OSError, NotImplementedError, ValueError):
            continue
    return ""
