"""Draw the shuffle algorithms and the path of data: ``python docs/drawings.py FOLDER``.

Time goes from left to right. Each node is a band, so that an arrow from one band into another is
bytes on the network.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

COLORS = {"map": "#9ec5e8", "merge": "#f5c27a", "reducer": "#a9d8a2", "kept": "#e3e3e3"}
WIDTH, HEIGHT = 0.72, 0.56  # of a box; columns and rows are 1 apart


class Box(NamedTuple):
    """A task, or something in the object store: in a column, on a node, the n-th from above."""

    label: str
    kind: str
    column: float
    node: int
    place: int = 0


Arrows = list[tuple[Box, Box]]


def simple() -> Arrows:
    """Draw that every reducer reads a block of every map."""
    maps = [Box(f"map {i}", "map", 0, i // 2, i % 2) for i in range(4)]
    return list(product(maps, reducers(2.2)))


def push() -> Arrows:
    """Merge blocks of a round where they are reduced, while the next round is mapped."""
    return rounds(1.25)


def magnet() -> Arrows:
    """Do the same, and keep map outputs until the reducers have ended."""
    arrows = rounds(2.2)
    made = dict.fromkeys(a for a, _ in arrows if a.kind == "map")
    kept = {a: Box("kept", "kept", a.column + 0.95, a.node, a.place) for a in made}
    through = [(kept.get(a, a), b) for a, b in arrows]
    return [*kept.items(), *through]


def rounds(lag: float) -> Arrows:
    """Two rounds of one map on each node, whose merges start ``lag`` columns after the maps."""
    arrows: Arrows = []
    outputs = reducers(lag + 3.35)
    for turn in range(2):
        maps = [Box(f"map {2 * node + turn}", "map", turn * 1.25, node, turn) for node in range(2)]
        merges = [
            Box(f"merge {turn}", "merge", turn * 1.25 + lag + 0.35, node, turn) for node in range(2)
        ]
        arrows += product(maps, merges)
        arrows += [(m, r) for m, r in product(merges, outputs) if m.node == r.node]
    return arrows


def riffle() -> Arrows:
    """Merge blocks of two maps on their node, for all reducers."""
    maps = [Box(f"map {i}", "map", 0, i // 2, i % 2) for i in range(4)]
    merges = [Box("merge", "merge", 1.5, node) for node in range(2)]
    near = [(a, b) for a, b in product(maps, merges) if a.node == b.node]
    return [*near, *product(merges, reducers(3.4))]


def two_level() -> Arrows:
    """Pack one object for each group of nodes, which a node of the group divides again."""
    maps = [Box(f"map {i}", "map", 0, i) for i in range(4)]
    merges = [Box(f"group {i // 2}", "merge", 1.9, i) for i in (0, 2)]
    outputs = [Box(f"reducer {i}", "reducer", 3.6, i) for i in range(4)]
    down = [(m, r) for m, r in product(merges, outputs) if m.node // 2 == r.node // 2]
    return [*product(maps, merges), *down]


def streaming() -> Arrows:
    """Turn the states of the reducers into new ones in each round; they can be read."""
    arrows: Arrows = []
    states: list[Box] = []
    for turn in range(2):
        maps = [Box(f"map {2 * node + turn}", "map", turn * 1.9, node) for node in range(2)]
        new = [Box(f"state {turn}", "reducer", turn * 1.9 + 1.4, node, 1) for node in range(2)]
        arrows += [*product(maps, new), *zip(states, new, strict=False)]
        states = new
    last = [Box("result", "reducer", 4.9, node, 1) for node in range(2)]
    return [*arrows, *zip(states, last, strict=True)]


def reducers(column: float) -> list[Box]:
    """Four of them on two nodes."""
    return [Box(f"reducer {i}", "reducer", column, i // 2, i % 2) for i in range(4)]


def path() -> Arrows:
    """Follow a call of ``compute`` to the cluster."""
    names = ["compute", "rewrite", "normalize", "plan"]
    steps = [Box(name, "kept", 1.2 * i, 0) for i, name in enumerate(names)]
    loop, waist = Box("loop", "merge", 4.8, 0), Box("Futures", "merge", 7.6, 0)
    stages = [Box(name, "map", 6.2, i) for i, name in enumerate(["tasks", "shuffles", "pipelines"])]
    clusters = [Box(n, "reducer", 9.0, i) for i, n in enumerate(["Ray", "threads", "simulated"])]
    through = [arrow for stage in stages for arrow in ((loop, stage), (stage, waist))]
    after = [*steps[1:], loop]
    return [*zip(steps, after, strict=True), *through, *((waist, c) for c in clusters)]


DRAWINGS = {
    "simple": simple,
    "push": push,
    "two-level": two_level,
    "magnet": magnet,
    "riffle": riffle,
    "streaming": streaming,
}


def draw(arrows: Arrows, *, bands: bool = True) -> Figure:
    """Draw boxes, arrows, and a band for each node."""
    boxes = list(dict.fromkeys(box for arrow in arrows for box in arrow))
    rows = max(box.place for box in boxes) + 1
    nodes = max(box.node for box in boxes) + 1
    right = max(box.column for box in boxes) + WIDTH

    def corner(box: Box) -> tuple[float, float]:
        return box.column, -(box.node * (rows + 0.3) + box.place)

    bottom = -(nodes - 1) * (rows + 0.3) - (rows - 1)
    figure = Figure(figsize=(1.1 * (right + 1.2), 0.55 * (HEIGHT + 0.5 - bottom)))
    axis = figure.add_axes((0, 0, 1, 1))
    for node in range(nodes) if bands else ():
        top = HEIGHT + 0.22 - node * (rows + 0.3)
        size = right + 1.1, rows + 0.18
        where = (-0.95, top - size[1])
        axis.add_patch(
            FancyBboxPatch(
                where, *size, boxstyle="round,pad=0,rounding_size=0.1", fc="#eeeef2", ec="none"
            )
        )
        axis.text(-0.85, top - size[1] / 2, f"node {node}", va="center", size=9, color="#555")
    for a, b in arrows:
        (ax, ay), (bx, by) = corner(a), corner(b)
        sent = bands and a.node != b.node
        axis.annotate(
            "",
            xy=(bx - 0.02, by + HEIGHT / 2),
            xytext=(ax + WIDTH, ay + HEIGHT / 2),
            arrowprops={"arrowstyle": "->", "color": "#c0392b" if sent else "#666", "lw": 0.9},
        )
    for box in boxes:
        style = {"boxstyle": "round,pad=0,rounding_size=0.08", "fc": COLORS[box.kind], "ec": "#555"}
        x, y = corner(box)
        axis.add_patch(FancyBboxPatch((x, y), WIDTH, HEIGHT, lw=0.8, **style))
        axis.text(x + WIDTH / 2, y + HEIGHT / 2, box.label, ha="center", va="center", size=8)
    axis.set(xlim=(-1.0, right + 0.2), ylim=(bottom - 0.2, HEIGHT + 0.26))
    axis.axis("off")
    return figure


def main() -> None:
    """Write a picture of each."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "drawings"})
    folder = Path(sys.argv[1])
    for name, arrows in DRAWINGS.items():
        draw(arrows()).savefig(folder / f"{name}.svg", metadata={"Date": None})
    draw(path(), bands=False).savefig(folder / "path.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
