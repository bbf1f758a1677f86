"""Pictures of graphs: boxes apart from each other, readers below what they read."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from dask_exo.report.render import Box, layers, svg

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
