"""``dask exo top``: the live page of another program, in a terminal."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, TextIO
from urllib.parse import urlsplit

from dask_exo.errors import LiveError
from dask_exo.report.live import LOOPBACK, latest_url

PAUSE = 1.0  # seconds between two polls
CLEAR = "\x1b[H\x1b[J"  # clears a terminal


def poll(url: str | None) -> Iterator[list[str]]:
    """Yield the current lines about a program, repeatedly.

    Parameters
    ----------
    url : str, optional
        Its page; by default that of the program of this user which was started last.

    Raises
    ------
    LiveError
        There is no such program, or it does not answer.
    """
    address = latest_url() if url is None else url
    if urlsplit(address).hostname not in {LOOPBACK, "localhost"}:
        raise LiveError(
            f"{address!r} is no page on this machine: its address begins with 127.0.0.1. "
            f"Give the one that the repr of dask_exo.enable() shows"
        )
    while True:
        now = _read(address)
        yield [*(_line(row) for row in now["rows"]), now["footer"]]


def watch(url: str | None, *, once: bool = False, stream: TextIO | None = None) -> None:
    """Write the progress of a program, once or until it ends; see `poll`."""
    out = sys.stdout if stream is None else stream
    for lines in poll(url):
        text = "\n".join(lines) + "\n"
        out.write(CLEAR + text if out.isatty() else text + "\n")
        out.flush()
        if once:
            return
        time.sleep(PAUSE)


def _read(address: str) -> Any:
    parts = urlsplit(address)
    asked = parts._replace(path="/now").geturl()
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise LiveError(
            f"{parts.netloc} refuses: {error.reason}. Give the whole address, with its token"
        ) from error
    except OSError as error:
        raise LiveError(
            f"nothing answers at {parts.netloc}: the program may have ended. Start it again, or "
            f"give the address of another one"
        ) from error


def _line(row: list[str]) -> str:
    """Return one row, without control characters."""
    cells = ["".join(c if c.isprintable() else "?" for c in cell) for cell in row if cell]
    return f"{cells[0]:<40} {'  '.join(cells[1:])}"
