"""Draw a graph of boxes as SVG: layers from top to bottom, in text that any browser shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

LETTER, LINE, PAD = 7.3, 16, 8  # pixels of 12 px monospace, and around the text of a box
ACROSS, DOWN = 24, 36  # pixels between boxes, and between layers
STYLE = {
    "tasks": 'fill="#eef3fb" stroke="#3b6fb6"',
    "shuffle": 'fill="#fdf1dc" stroke="#b9770e"',
}


@dataclass(frozen=True)
class Box:
    """One box.

    Attributes
    ----------
    kind : {"tasks", "shuffle"}
    lines : tuple of str
        Its text.
    """

    kind: str
    lines: tuple[str, ...]

    @property
    def width(self) -> float:
        """Pixels."""
        return LETTER * max(map(len, self.lines)) + 2 * PAD

    @property
    def height(self) -> float:
        """Pixels."""
        return LINE * len(self.lines) + 2 * PAD


def layers(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Put each name below all from which an edge leads to it.

    Parameters
    ----------
    names : sequence of str
        Edges from a later to an earlier one are left out, so that there is no circle.
    edges : iterable of (str, str)

    Examples
    --------
    >>> layers(["read", "sum", "join"], [("read", "sum"), ("read", "join"), ("sum", "join")])
    [['read'], ['sum'], ['join']]
    """
    place = {name: i for i, name in enumerate(names)}
    above: dict[str, list[str]] = {name: [] for name in names}
    for start, end in edges:
        if place[start] < place[end]:
            above[end].append(start)
    depth: dict[str, int] = {}
    for name in names:
        depth[name] = max((depth[one] + 1 for one in above[name]), default=0)
    found: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        found[depth[name]].append(name)
    return found


def svg(boxes: Mapping[str, Box], edges: Sequence[tuple[str, str]]) -> str:
    """Draw boxes, and a line for each edge.

    Parameters
    ----------
    boxes : mapping
        Name → box; none stands before one that leads to it, as far as there is such an order.
    edges : sequence of (str, str)

    Returns
    -------
    str
        An ``<svg>`` element, at most as wide as its container; all text in it is escaped.

    Examples
    --------
    >>> text = svg({"a": Box("tasks", ("read <x>",)), "b": Box("shuffle", ("sort",))}, [("a", "b")])
    >>> text.count("<rect"), text.count("<path"), "read &lt;x&gt;" in text
    (2, 1, True)
    """
    rows = layers(list(boxes), edges)
    widths = [sum(boxes[n].width for n in row) + ACROSS * (len(row) - 1) for row in rows]
    whole, top = max(widths, default=0.0) + 2 * PAD, float(PAD)
    corners: dict[str, tuple[float, float]] = {}
    for row, width in zip(rows, widths, strict=True):
        left = (whole - width) / 2
        for name in row:
            corners[name] = left, top
            left += boxes[name].width + ACROSS
        top += max(boxes[name].height for name in row) + DOWN
    high = top - DOWN + PAD if rows else 2 * PAD
    inner = [_line(boxes, corners, edge) for edge in edges]
    inner += [_drawn(box, *corners[name]) for name, box in boxes.items()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole:.0f} {high:.0f}" '
        f'width="{whole:.0f}" style="max-width:100%;height:auto" font-family="monospace" '
        f'font-size="12" role="img">' + "".join(inner) + "</svg>"
    )


def _drawn(box: Box, left: float, top: float) -> str:
    texts = "".join(
        f'<text x="{left + PAD:.1f}" y="{top + PAD + LINE * (i + 0.75):.1f}">{escape(line)}</text>'
        for i, line in enumerate(box.lines)
    )
    size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect x="{left:.1f}" y="{top:.1f}" {size} rx="4" {STYLE[box.kind]}/>{texts}'


def _line(
    boxes: Mapping[str, Box], corners: Mapping[str, tuple[float, float]], edge: tuple[str, str]
) -> str:
    """Draw a curve from the bottom of one box to the top of the other."""
    (x, y), (u, v) = corners[edge[0]], corners[edge[1]]
    x, y, u = x + boxes[edge[0]].width / 2, y + boxes[edge[0]].height, u + boxes[edge[1]].width / 2
    middle = (y + v) / 2
    path = f"M{x:.1f} {y:.1f} C{x:.1f} {middle:.1f} {u:.1f} {middle:.1f} {u:.1f} {v:.1f}"
    return f'<path d="{path}" fill="none" stroke="#888"/>'
