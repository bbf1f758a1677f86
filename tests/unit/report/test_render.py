"""Pictures of graphs: boxes apart, readers below; and the page of a report in a browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from itertools import combinations
from xml.etree import ElementTree as ET

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_exo
from dask_exo.report.render import Box, layers, svg
from tests._data import inline

SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 8))
    names = [str(i) for i in range(count)]
    pairs = [(a, b) for a, b in combinations(names, 2)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    texts = st.lists(
        st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1),
        min_size=1,
        max_size=3,
    )
    boxes = {n: Box(draw(st.sampled_from(["tasks", "shuffle"])), tuple(draw(texts))) for n in names}
    return boxes, edges


@given(graphs())
def test_boxes_are_apart_and_inside_and_readers_below(graph) -> None:
    boxes, edges = graph
    root = ET.fromstring(svg(boxes, edges))
    _, _, wide, high = map(float, root.get("viewBox").split())
    corners = [
        [float(r.get(k)) for k in ("x", "y", "width", "height")] for r in root.iter(f"{SVG}rect")
    ]
    assert len(corners) == len(boxes)
    for x, y, w, h in corners:
        assert min(x, y) >= 0
        assert x + w <= wide + 1
        assert y + h <= high + 1
    for (x, y, w, h), (u, v, p, q) in combinations(corners, 2):
        assert x + w <= u or u + p <= x or y + h <= v or v + q <= y
    place = dict(zip(boxes, corners, strict=True))
    for a, b in edges:
        assert place[a][1] + place[a][3] < place[b][1]
    shown = [text.text for text in root.iter(f"{SVG}text")]
    assert shown == [line for box in boxes.values() for line in box.lines]


def test_groups_that_read_each_other_are_drawn_all_the_same() -> None:
    assert layers(["a", "b"], [("a", "b"), ("b", "a")]) == [["a"], ["b"]]
    assert svg({}, []).endswith("</svg>")


HOSTILE = "</script><script>document.title='broken'</script>$$\\href{x}{y}$$"
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
    exo = dask.config.set(scheduler=inline(2))
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
