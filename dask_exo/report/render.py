"""Text, HTML and SVG: everything that is drawn without bokeh; all names are escaped."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes

from dask_exo.errors import MissingPackageError
from dask_exo.report.advice import advise
from dask_exo.report.summary import MARKS, Figures, as_json, cost

if TYPE_CHECKING:
    from dask_exo.report.collector import Collector

LINES = 12  # of one table


def text(figures: Figures) -> str:
    """Return the report as lines of text.

    Examples
    --------
    >>> print(text(Figures()))
    nothing has run on dask_exo in this process yet
    """
    if not figures.runs:
        return "\n".join(advise(figures)) or "nothing has run on dask_exo in this process yet"
    failed = f", {figures.failed} failed" if figures.failed else ""
    totals = [f"  {name:<20} {fact}" for name, fact in facts(figures)]
    details = [*_shuffles(figures), *_work(figures), *_end(figures)]
    return "\n".join([f"{figures.runs} computation(s){failed}", *totals, *details])


def facts(figures: Figures) -> Iterator[tuple[str, str]]:
    """Yield the totals as pairs of name and text."""
    yield "time", duration(figures.seconds)
    yield "tasks", f"{figures.tasks:,} in {figures.calls:,} calls, {figures.objects:,} refs"
    cluster = f"{figures.nodes} node(s), {figures.slots} slots"
    yield "cluster", f"{cluster}, {format_bytes(figures.store)} object store"
    for engine, reason in figures.engines.items():
        yield "engine", f"{engine}: {reason}"
    yield "busy", f"{100 * figures.busy:.0f} % of the slots' time in tasks"
    if figures.gpu_busy is not None:
        source = "by their tasks" if figures.gpus_used is None else "by NVML"
        yield "GPUs busy", f"{100 * figures.gpu_busy:.0f} % of {figures.gpus:g}, {source}"
    if figures.compiled:
        yield "Polars", f"{figures.compiled} of {figures.blockwise} blockwise operations"
    if figures.shuffled:
        yield "shuffled", format_bytes(figures.shuffled)
    yield "spilled", f"{format_bytes(figures.spilled)}, {format_bytes(figures.restored)} restored"
    if figures.peak_store:
        yield "most in the store", format_bytes(figures.peak_store)
    if figures.peak_rss:
        yield "most of all workers", format_bytes(figures.peak_rss)
    yield from _costs(figures)
    for what, count in figures.recovered.items():
        yield "repeated", f"{what}: {count}"
    for group, reason in figures.refused.items():
        yield "no checkpoint", f"{group}: {reason}"


def _costs(figures: Figures) -> Iterator[tuple[str, str]]:
    if figures.requests:
        yield "object storage", requests_text(figures.requests)
    if figures.cost is not None:
        per_terabyte = figures.cost_per_terabyte
        suffix = "" if per_terabyte is None else f", $ {per_terabyte:.2f} per TB shuffled"
        yield "cost", f"{figures.node_hours:.4f} node-hours, $ {figures.cost:.4f}{suffix}"


def requests_text(requests: Mapping[str, int]) -> str:
    """Return requests to object storage, and their cost.

    Examples
    --------
    >>> requests_text({"GetObject": 2000, "PutObject": 10, "retried": 1})
    '2,010 requests (GetObject 2,000, PutObject 10), 1 retried, 0 throttled, about $ 0.0009'
    """
    others = dict(requests)
    retried, throttled = (others.pop(mark, 0) for mark in MARKS)
    most = sorted(others.items(), key=lambda item: -item[1])
    names = ", ".join(f"{name} {count:,}" for name, count in most)
    repeated = f"{retried:,} retried, {throttled:,} throttled"
    return f"{sum(others.values()):,} requests ({names}), {repeated}, about $ {cost(others):.4f}"


def duration(seconds: float) -> str:
    """Return a readable duration.

    Examples
    --------
    >>> duration(0.0123), duration(12.34), duration(3723.0)
    ('12 ms', '12.3 s', '1 h 02 min')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 600:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _shuffles(figures: Figures) -> Iterator[str]:
    for shuffle in figures.shuffles:
        size, time = format_bytes(shuffle.nbytes), duration(shuffle.seconds)
        yield (
            f"  shuffle {shuffle.name}: {shuffle.algorithm}, {shuffle.maps:,} → "
            f"{shuffle.reducers:,}, {size}, {shuffle.rows:,} rows in {time}: {shuffle.reason}"
        )
        if shuffle.left_out:
            yield f"    {shuffle.left_out:,} rows without a partner in the join were left out"
        if shuffle.divided:
            yield f"    {shuffle.divided:,} large outputs were divided among others"
        if shuffle.largest is not None:
            largest = format_bytes(shuffle.largest)
            yield f"    largest output {largest}, {shuffle.skew:.1f} x the mean"


def _work(figures: Figures) -> Iterator[str]:
    for group in sorted(figures.groups, key=lambda group: -group.seconds)[:LINES]:
        yield (
            f"  {group.count:>8,} x {group.name}: {duration(group.seconds)} of work, "
            f"{format_bytes(group.nbytes)}"
        )
    for stage in figures.stages:
        waits = _shares(stage.waits)
        yield (
            f"  {stage.outputs:>8,} x stage {stage.name}: {duration(stage.seconds)} of work, "
            f"{format_bytes(stage.nbytes)}" + (f", waited for {waits}" if waits else "")
        )


def _shares(waits: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * share:.0f} % {why}" for why, share in waits.items())


def _end(figures: Figures) -> Iterator[str]:
    if figures.failures:
        last = figures.failures[-1]
        yield f"  failed: {last.name}: {last.reason}"
    if figures.slowest:
        yield f"  slowest: {figures.slowest[0].name}, {duration(figures.slowest[0].seconds)}"
    if figures.largest:
        yield f"  largest: {figures.largest[0].name}, {format_bytes(figures.largest[0].nbytes)}"
    for line in advise(figures):
        yield f"  ▸ {line}"


STYLE = """
.exo { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; overflow-wrap: anywhere; }
.exo h1 { font-size: 1.4em; } .exo h2 { font-size: 1.1em; margin: 1.6em 0 .3em; }
.exo dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(15em, 1fr)); gap: .5em; }
.exo dl div { background: #f2f5f8; border-radius: 6px; padding: .5em .8em; }
.exo dt { color: #566; font-size: .85em; } .exo dd { margin: 0; font-weight: 600; }
.exo ul { background: #fff6dd; border-radius: 6px; padding: .6em .8em .6em 2em; }
.exo table { border-collapse: collapse; font-size: .9em; }
.exo .wide { overflow-x: auto; }
.exo td, .exo th { text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #ddd;
  vertical-align: top; }
.exo td, .exo th { overflow-wrap: normal; }
.exo td:first-child { overflow-wrap: anywhere; min-width: 9em; }
.exo p { color: #444; margin: .2em 0 .6em; }
.exo pre { background: #f6f6f6; overflow-x: auto; padding: .6em .8em; font-size: .85em; }
.exo progress { width: 9em; }
"""
BODY = "body { margin: 0 auto; max-width: 1100px; padding: 0 14px 3em; background: #fff; }"
# a browser may run the inline scripts, and load nothing
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


def fragment(figures: Figures) -> str:
    """Return the figures as HTML, without plots."""
    inner = "".join([_summary_html(figures), *_tables_html(figures)])
    return f"<div class='exo'><style>{STYLE}</style>{inner}</div>"


def page(record: Collector, figures: Figures, title: str) -> str:
    """Return the figures and plots as one self-contained page."""
    require_bokeh()
    from bokeh.embed import components

    from dask_exo.report.plots import plots

    plotted = list(plots(record, figures.groups))
    script, divs = components([plot.figure() for plot in plotted]) if plotted else ("", [])
    pictures = [
        f"<h2>{escape(plot.heading)}</h2><p>{escape(plot.caption)}</p>{div}"
        for plot, div in zip(plotted, divs, strict=True)
    ]
    embedded = json.dumps(as_json(figures)).replace("<", "\\u003c")  # in a script element
    return "\n".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f"<title>{escape(title)}</title><style>{STYLE}{BODY}</style>",
            bokeh_script() if plotted else "",
            f"</head><body><div class='exo'><h1>{escape(title)}</h1>",
            _summary_html(figures),
            *pictures,
            *_tables_html(figures),
            "</div>",
            script,
            f"<script type='application/json' id='figures'>{embedded}</script>",
            "</body></html>",
        ]
    )


def bokeh_script() -> str:
    """Return the element with bokeh's program, or an empty string without bokeh."""
    with contextlib.suppress(ImportError):
        from bokeh.resources import Resources

        program: str = Resources(mode="inline", components=["bokeh"]).render_js()
        return program
    return ""


def require_bokeh() -> None:
    """Raise `MissingPackageError` if there is no bokeh."""
    try:
        import bokeh  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "bokeh draws the plots of a report and is not installed: add it by pip install "
            "'dask-exo[report]'. dask_exo.last_report() has the figures without it"
        ) from error


def _summary_html(figures: Figures) -> str:
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>"
        for name, fact in facts(figures)
    )
    lines = "".join(f"<li>{escape(line)}</li>" for line in advise(figures))
    return f"<dl>{cells}</dl>" + (f"<ul>{lines}</ul>" if lines else "")


def _tables_html(figures: Figures) -> Iterator[str]:
    if figures.failures:
        yield "<h2>Failed tasks</h2>"
        yield from _failures_html(figures)
    yield _table(
        "Shuffles",
        ["", "algorithm", "parts → outputs", "bytes", "largest", "time", "why"],
        (
            [
                row.name,
                row.algorithm,
                f"{row.maps:,} → {row.reducers:,}",
                format_bytes(row.nbytes),
                "" if row.largest is None else f"{format_bytes(row.largest)}, {row.skew:.1f} x",
                duration(row.seconds),
                row.reason,
            ]
            for row in figures.shuffles
        ),
    )
    yield _table(
        "Tasks",
        ["", "count", "work", "results"],
        (
            [row.name, f"{row.count:,}", duration(row.seconds), format_bytes(row.nbytes)]
            for row in sorted(figures.groups, key=lambda group: -group.seconds)
        ),
    )
    yield _table(
        "Stages of pipelines",
        ["", "outputs", "work", "bytes", "waited for"],
        (
            [
                row.name,
                f"{row.outputs:,}",
                duration(row.seconds),
                format_bytes(row.nbytes),
                _shares(row.waits),
            ]
            for row in figures.stages
        ),
    )
    for heading, tasks in (("Slowest", figures.slowest), ("Largest", figures.largest)):
        rows = ([task.name, duration(task.seconds), format_bytes(task.nbytes)] for task in tasks)
        yield _table(heading, ["", "time", "bytes"], rows)


def _failures_html(figures: Figures) -> Iterator[str]:
    """Yield the failed tasks, newest first, each with what can be unfolded."""
    for failure in reversed(figures.failures):
        printed = failure.printed and f"\n\nPrinted before:\n\n{failure.printed}"
        yield (
            f"<details><summary>{escape(failure.name)}: {escape(failure.reason)}</summary>"
            f"<pre>{escape(failure.traceback + printed)}</pre></details>"
        )


def _table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table, or an empty string without rows."""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    if not body:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return f"<h2>{escape(heading)}</h2><div class='wide'><table><tr>{head}</tr>{body}</table></div>"


LETTER, LINE, PAD = 7.3, 16, 8  # pixels of 12 px monospace, and around the text of a box
ACROSS, DOWN = 24, 36  # pixels between boxes, and between layers
BOX_STYLE = {
    "tasks": 'fill="#eef3fb" stroke="#3b6fb6"',
    "shuffle": 'fill="#fdf1dc" stroke="#b9770e"',
}


@dataclass(frozen=True)
class Box:
    """A box of a graph: its kind, ``"tasks"`` or ``"shuffle"``, and its text."""

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
    """Put each name below all names with an edge to it; ignore edges to earlier names.

    Examples
    --------
    >>> layers(["read", "sum", "join"], [("read", "sum"), ("read", "join"), ("sum", "join")])
    [['read'], ['sum'], ['join']]
    """
    rank = {name: i for i, name in enumerate(names)}
    above: dict[str, list[str]] = {name: [] for name in names}
    for start, end in edges:
        if rank[start] < rank[end]:
            above[end].append(start)
    depth: dict[str, int] = {}
    for name in names:
        depth[name] = max((depth[source] + 1 for source in above[name]), default=0)
    rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        rows[depth[name]].append(name)
    return rows


def svg(boxes: Mapping[str, Box], edges: Sequence[tuple[str, str]]) -> str:
    """Return an ``<svg>`` element with boxes, by name, and a line for each edge.

    It is at most as wide as its container. Boxes come in topological order, if there is one.
    """
    rows = layers(list(boxes), edges)
    widths = [sum(boxes[n].width for n in row) + ACROSS * (len(row) - 1) for row in rows]
    full, top = max(widths, default=0.0) + 2 * PAD, float(PAD)
    corners: dict[str, tuple[float, float]] = {}
    for row, width in zip(rows, widths, strict=True):
        left = (full - width) / 2
        for name in row:
            corners[name] = left, top
            left += boxes[name].width + ACROSS
        top += max(boxes[name].height for name in row) + DOWN
    height = top - DOWN + PAD if rows else 2 * PAD
    inner = [_curve(boxes[start], corners[start], boxes[end], corners[end]) for start, end in edges]
    inner += [_rectangle(box, *corners[name]) for name, box in boxes.items()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full:.0f} {height:.0f}" '
        f'width="{full:.0f}" style="max-width:100%;height:auto" font-family="monospace" '
        f'font-size="12" role="img">' + "".join(inner) + "</svg>"
    )


def _rectangle(box: Box, left: float, top: float) -> str:
    texts = "".join(
        f'<text x="{left + PAD:.1f}" y="{top + PAD + LINE * (i + 0.75):.1f}">{escape(line)}</text>'
        for i, line in enumerate(box.lines)
    )
    size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect x="{left:.1f}" y="{top:.1f}" {size} rx="4" {BOX_STYLE[box.kind]}/>{texts}'


def _curve(above: Box, corner: tuple[float, float], below: Box, end: tuple[float, float]) -> str:
    """Draw a curve from the bottom of one box to the top of the other."""
    x, y = corner[0] + above.width / 2, corner[1] + above.height
    u, v = end[0] + below.width / 2, end[1]
    middle = (y + v) / 2
    path = f"M{x:.1f} {y:.1f} C{x:.1f} {middle:.1f} {u:.1f} {middle:.1f} {u:.1f} {v:.1f}"
    return f'<path d="{path}" fill="none" stroke="#888"/>'
