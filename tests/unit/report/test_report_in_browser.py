"""The page of a report in a real browser: drawn, clicked, and without a word of complaint."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo import Scheduler
from dask_exo.cluster.futures import Node
from dask_exo.testing import InlineFutures

HOSTILE = "</script><script>document.title='broken'</script>$$\\href{x}{y}$$"
NODES = (Node("a", 2, 10**9), Node("b", 2, 10**9))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# counts errors, waits until all is drawn, clicks each button, and says so in the title
CLICK = """<script>
let errors = 0, clicked = 0;
addEventListener("error", one => { errors += !/ResizeObserver/.test(one.message); });
addEventListener("unhandledrejection", () => errors++);
function* all(root) {
  for (const one of root.querySelectorAll("*")) {
    yield one; if (one.shadowRoot) yield* all(one.shadowRoot);
  }
}
setTimeout(() => {
  let drawn = 0;
  for (const one of all(document)) {
    drawn += one.tagName === "CANVAS";
    if (/bk-tool-icon|bk-ToolButton|bk-OnOffButton|bk-ClickButton/.test(one.className)) {
      one.click(); clicked++;
    }
  }
  document.title = `errors=${errors} drawn=${drawn} clicked=${clicked}`;
}, 6000);
</script>"""


def browser() -> str:
    """The browser to use: that which EXO_BROWSER names, or one that is installed."""
    named = os.environ.get("EXO_BROWSER")
    found = named or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    return found


def test_all_is_drawn_and_bears_clicks(tmp_path) -> None:
    program, path = browser(), tmp_path / "report.html"
    source = pd.DataFrame({HOSTILE: np.arange(3000) % 53, "v": 1.0})
    job = dd.from_pandas(source, npartitions=30).shuffle(HOSTILE, npartitions=30)
    exo = dask.config.set(scheduler=Scheduler(InlineFutures(NODES)))
    with exo, dask_exo.performance_report(path):
        job.compute()
    page = path.read_text()
    assert len(page) < 3e6
    path.write_text(page.replace("<head>", "<head>" + CLICK))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    options += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [program, *options, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    title = re.search(r"<title>errors=(\d+) drawn=(\d+) clicked=(\d+)</title>", done.stdout)
    assert title is not None, done.stdout[-2000:]
    errors, drawn, clicked = map(int, title.groups())
    assert errors == 0, done.stderr
    assert drawn >= 3
    assert clicked >= 3
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not [line for line in said if re.search(r"Uncaught|Refused|rror", line)], said
