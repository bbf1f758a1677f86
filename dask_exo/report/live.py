"""The live page of a running program; ``dask exo top`` reads it too.

It is served on the loopback address only, and only with the token of its URL. Details are recorded
only while the page is read.
"""

from __future__ import annotations

import contextlib
import getpass
import hmac
import importlib
import json
import os
import secrets
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil

from dask_exo import events
from dask_exo.errors import LiveError
from dask_exo.events import wall_time
from dask_exo.report.collector import Collector
from dask_exo.report.render import BODY, POLICY, STYLE, bokeh_script, fragment
from dask_exo.report.report import Report

PATIENCE = 60.0  # seconds without a reader after which recording stops
LOOPBACK = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": f"{POLICY}; connect-src 'self'; frame-ancestors 'none'",
}
SHELL = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>dask_exo</title>
<style>%s%s</style>%s</head><body><div class="exo"><h1>dask_exo</h1><p id="footer">…</p>
<div class="wide"><table id="rows"></table></div><div id="plots"></div>
<p><a id="report" target="_blank" rel="noreferrer">save as a report</a>%s</p></div>
<div id="figures"></div><script>
const token = location.search, by = id => document.getElementById(id), drawn = new Map();
let shown = "";
by("report").href = "/report" + token;
const read = async path => (await fetch(path)).json();
const text = (tag, words) => Object.assign(document.createElement(tag), {textContent: words});
async function refresh() {
  try {
    const now = await read("/now" + token);
    by("footer").textContent = now.footer;
    by("rows").replaceChildren(...now.rows.map(row => {
      const line = document.createElement("tr"), bar = document.createElement("td");
      if (row.share !== null)
        bar.append(Object.assign(document.createElement("progress"), {value: row.share}));
      line.append(...row.cells.map(cell => text("td", cell)));
      line.firstChild.after(bar);
      return line; }));
    if (now.html !== shown) {
      const summaries = which => [...document.querySelectorAll(`details${which} > summary`)];
      const open = new Set(summaries("[open]").map(item => item.textContent));
      by("figures").innerHTML = shown = now.html;
      for (const item of summaries("")) item.parentElement.open = open.has(item.textContent);
    }
  } catch (gone) { by("footer").textContent = "the program has ended, or does not answer"; }
  setTimeout(refresh, 1000);
}
function inView(box) {
  const {top, bottom} = box.getBoundingClientRect();
  return bottom >= 0 && top <= innerHeight;
}
async function draw() {
  let wait = 1000;
  try {
    const have = [...drawn].map(([key, plot]) =>
      `&${inView(plot.box) ? "have" : "hidden"}=${encodeURIComponent(key)}`).join("");
    const nothing = {plots: [], seconds: 0};
    const {plots, seconds} =
      document.hidden ? nothing : await read("/plots" + token + have);
    // 5 %% of one processor of the program; more if plots are new
    wait = Math.max(wait, (plots.some(plot => plot.item) ? 4e3 : 2e4) * seconds);
    let added = false;
    for (const plot of plots) {
      if (plot.data) {
        for (const [name, data] of Object.entries(plot.data))
          drawn.get(plot.key).get_model_by_name(name).data = data;
        await new Promise(requestAnimationFrame);  // the page answers between two plots
      }
      if (!plot.item) continue;
      const box = document.createElement("div");
      by("plots").append(box);
      await Bokeh.embed.embed_item(plot.item, box);
      drawn.set(plot.key, Bokeh.documents.at(-1));
      drawn.get(plot.key).box = box;
      box.prepend(text("h2", plot.heading), text("p", plot.caption));
      added = true;
    }
    const keys = plots.map(plot => plot.key);
    if (keys.length) for (const [key, old] of drawn) if (!keys.includes(key)) {
      old.clear(); old.box.remove(); drawn.delete(key);
      Bokeh.documents.splice(Bokeh.documents.indexOf(old), 1);
    }
    if (added) by("plots").append(...keys.map(key => drawn.get(key).box));
  } catch (gone) { }  // as refresh says
  setTimeout(draw, wait);
}
refresh(); if (window.Bokeh) draw();
</script></body></html>"""


class Live:
    """The page, while the program runs, at ``url``, which has the token.

    ``dashboard`` is the address of Ray's own page, which it names.
    """

    def __init__(self, dashboard: str = "") -> None:
        self._dashboard = dashboard
        self._token = secrets.token_urlsafe(16)
        self._progress, self._record = Collector(), Collector(detailed=True)
        self._lock, self._read = threading.Lock(), 0.0
        self._recording = contextlib.ExitStack()
        self._observing = contextlib.ExitStack()
        self._observing.enter_context(events.observing(self._observe, closely=False))
        self._server = ThreadingHTTPServer((LOOPBACK, 0), self._handler())
        self._server.daemon_threads = True
        self.url: str = f"http://{LOOPBACK}:{self._server.server_port}/?token={self._token}"
        self._note = _write_note(self.url)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="dask_exo-live", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the server and its observers."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._observing.close()
        self._recording.close()
        self._note.unlink(missing_ok=True)

    def _observe(self, event: events.Event) -> None:
        with self._lock:
            self._progress(event)
            is_end = isinstance(event, events.RunFinished)
            if is_end and not self._progress.active_runs:  # a program may run for months
                self._progress = Collector()
            if self._read and time.monotonic() - self._read > PATIENCE:
                self._read, self._record = 0.0, Collector(detailed=True)
                self._recording.close()

    def answer(self, path: str, query: Mapping[str, Collection[str]]) -> tuple[str, str]:
        """Return content type and text of a path; raise `KeyError` for an unknown one.

        ``query`` has the keys of the page's plots: ``have`` in view, ``hidden`` elsewhere.
        """
        with self._lock:
            if not self._read:
                self._recording.enter_context(events.observing(self._record))
            self._read = time.monotonic()
        report = Report(self._record)
        if path == "/":
            link = (
                f"<a href='http://{escape(self._dashboard)}' rel='noreferrer'>Ray's dashboard</a>"
            )
            parts = STYLE, BODY, bokeh_script(), f" · {link}" if self._dashboard else ""
            return "text/html", SHELL % parts
        if path == "/report":
            return "text/html", report.to_html("dask_exo, so far")
        if path == "/plots":
            importlib.import_module("dask_exo.report.plots")  # once, a second
            began = time.thread_time()
            plots = report.plot_updates(query.get("have", ()), query.get("hidden", ()))
            answer = {"plots": plots, "seconds": time.thread_time() - began}
            return "application/json", json.dumps(answer)
        if path != "/now":
            raise KeyError(path)
        now = wall_time()
        with self._lock:
            state = self._progress
        rows = [{"cells": [r.name, *r.cells(now)], "share": r.share} for r in state.rows()]
        footer = state.footer(now) if state.active_runs else "nothing runs"
        figures = report.figures
        html = fragment(figures) if figures.runs else ""
        return "application/json", json.dumps({"rows": rows, "footer": footer, "html": html})

    def _allowed(self, host: str, query: str) -> bool:
        """Return whether a request has the token and a local host name.

        The host name defends against DNS rebinding.
        """
        token = parse_qs(query).get("token", [""])[0]
        is_valid = hmac.compare_digest(token.encode(), self._token.encode())
        return is_valid and host.rpartition(":")[0] in {LOOPBACK, "localhost"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        live = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if not live._allowed(self.headers.get("Host", ""), url.query):
                    self.send_error(HTTPStatus.FORBIDDEN, "the token is missing or wrong")
                    return
                try:
                    kind, text = live.answer(url.path, parse_qs(url.query))
                except KeyError:
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                data = text.encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                for name, value in HEADERS.items():
                    self.send_header(name, value)
                with contextlib.suppress(ConnectionError):  # the page was closed meanwhile
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        return Handler


def latest_url() -> str:
    """Return the URL of the page of this user's newest program."""
    notes = sorted(_notes(), key=lambda path: path.stat().st_mtime, reverse=True)
    for note in notes:
        if psutil.pid_exists(int(note.stem)):
            return note.read_text(encoding="utf-8")
    raise LiveError(
        "no program of this user has a live page on this machine: call dask_exo.enable() in it "
        "(exo.report.live must be true), or give the address that its repr names"
    )


def _notes() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        if _is_owned(_directory()):
            yield from (path for path in _directory().iterdir() if path.stem.isdigit())


def _write_note(url: str) -> Path:
    """Write the URL to a file that only this user can read."""
    directory = _directory()
    note = directory / f"{os.getpid()}.url"
    with contextlib.suppress(OSError):  # then the address has to be given
        directory.mkdir(mode=0o700, exist_ok=True)
        note.unlink(missing_ok=True)
        if _is_owned(directory):
            with os.fdopen(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(url)
    return note


def _is_owned(directory: Path) -> bool:
    """Return whether a directory belongs to this user: others may write to the temporary one."""
    return not hasattr(os, "getuid") or directory.stat().st_uid == os.getuid()


def _directory() -> Path:
    return Path(tempfile.gettempdir()) / f"dask-exo-live-{getpass.getuser()}"


PAUSE = 1.0  # seconds between two polls
CLEAR = "\x1b[H\x1b[J"  # clears a terminal


def poll(url: str | None) -> Iterator[list[str]]:
    """Yield the lines of the page at ``url``, by default `latest_url`, each time anew."""
    address = latest_url() if url is None else url
    if urlsplit(address).hostname not in {LOOPBACK, "localhost"}:
        raise LiveError(
            f"{address!r} is no page on this machine: its address begins with 127.0.0.1. "
            f"Give the one that the repr of dask_exo.enable() shows"
        )
    while True:
        now = _read(address)
        lines = []
        for row in now["rows"]:  # without control characters
            cells = [
                "".join(c if c.isprintable() else "?" for c in cell)
                for cell in row["cells"]
                if cell
            ]
            lines.append(f"{cells[0]:<40} {'  '.join(cells[1:])}")
        yield [*lines, now["footer"]]


def watch(url: str | None, *, once: bool = False) -> None:
    """Write the progress of a program, once or until it ends; see `poll`."""
    for lines in poll(url):
        text = "\n".join(lines)
        sys.stdout.write(f"{CLEAR}{text}\n" if sys.stdout.isatty() else f"{text}\n\n")
        sys.stdout.flush()
        if once:
            return
        time.sleep(PAUSE)


def _read(address: str) -> Any:
    parts = urlsplit(address)
    now = parts._replace(path="/now").geturl()
    try:
        with urllib.request.urlopen(now, timeout=10) as answer:
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
