"""The plots of a report, by bokeh, as Dask's own.

Names are drawn as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, LinearColorMapper
from bokeh.palettes import Category20, Viridis256
from bokeh.plotting import figure
from dask.utils import format_bytes

from dask_exo.report.collector import Collector
from dask_exo.report.render import duration
from dask_exo.report.summary import Sample, ShuffleMatrix, TaskGroup, TaskSpan

COLORS = Category20[20]
LONGEST = 48  # characters of a name
TOOLS = "xpan,xwheel_zoom,box_zoom,reset"


def plain(name: object) -> str:
    """Shorten a name, and keep it from being read as TeX.

    Examples
    --------
    >>> plain("$$x$$" + "y" * 60)
    '$ $x$ $yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy…'
    """
    text = str(name).replace("$$", "$ $").replace("\\", "/")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def plots(record: Collector, groups: Sequence[TaskGroup]) -> Iterator[tuple[str, str, Any]]:
    """Yield a heading, a caption and a bokeh figure of each plot."""
    colors = {group.name: COLORS[i % len(COLORS)] for i, group in enumerate(groups)}
    if record.spans.all:
        yield (
            "Task stream",
            "Tasks of each worker. Merges of shuffles are not recorded: a gap may be a merge.",
            _stream(record, colors),
        )
    if groups:
        yield (
            "Timeline",
            "From the start of the first task of each kind to the end of the last.",
            _timeline(groups, colors),
        )
    if record.samples:
        yield (
            "Memory",
            "Bytes in the object stores, spilled so far, and of the processes of all workers.",
            _memory(record.samples, record.started),
        )
    for (_, name), matrix in record.matrices.items():
        if matrix.totals.sum():
            yield (
                f"Shuffle {name}: bytes from each part to each output",
                _skew(matrix),
                _heat(matrix),
            )


def _figure(**options: Any) -> Any:
    plot = figure(
        sizing_mode="stretch_width",
        toolbar_location="above",
        active_drag=None,  # a finger on a plot scrolls the page
        active_scroll=None,
        **options,
    )
    plot.toolbar.logo = None
    return plot


def _bars(
    spans: Sequence[TaskSpan],
    lanes: Sequence[int],
    work: Sequence[float],
    colors: dict[str, str],
    **options: Any,
) -> Any:
    """Draw a bar for each span, in its lane and the color of its group."""
    columns = {
        "lane": list(lanes),
        "start": np.round([span.start for span in spans], 4),
        "stop": np.round([span.stop for span in spans], 4),
        "color": [colors.get(span.group, "#888888") for span in spans],
        "group": [plain(span.group) for span in spans],
        "tasks": [span.tasks for span in spans],
        "work": [duration(seconds) for seconds in work],
        "size": [format_bytes(span.nbytes) for span in spans],
    }
    ends = {"y": "lane", "left": "start", "right": "stop", "source": ColumnDataSource(columns)}
    plot = _figure(x_axis_label="seconds", tools=TOOLS, **options)
    plot.hbar(**ends, height=0.8, color="color", line_width=0)
    tooltips = [("", "@group"), ("tasks", "@tasks"), ("work", "@work"), ("results", "@size")]
    plot.add_tools(HoverTool(tooltips=tooltips))
    plot.ygrid.visible = False
    return plot


def _stream(record: Collector, colors: dict[str, str]) -> Any:
    spans, start = record.spans.all, record.started
    workers = sorted({(span.node, span.process) for span in spans})
    lanes = {worker: i for i, worker in enumerate(workers)}
    nodes = {node: i for i, node in enumerate(sorted({node for node, _ in workers}))}
    plot = _bars(
        [span._replace(start=span.start - start, stop=span.stop - start) for span in spans],
        [lanes[span.node, span.process] for span in spans],
        [span.stop - span.start for span in spans],
        colors,
        height=min(120 + 22 * len(lanes), 700),
    )
    plot.yaxis.ticker = list(lanes.values())
    plot.yaxis.major_label_overrides = {
        i: f"{nodes[node]} · {process}" for (node, process), i in lanes.items()
    }
    plot.yaxis.axis_label = "node · process"
    return plot


def _timeline(groups: Sequence[TaskGroup], colors: dict[str, str]) -> Any:
    ordered = sorted(groups, key=lambda group: group.first)
    spans = [TaskSpan("", 0, g.name, g.first, g.last, g.count, g.nbytes) for g in ordered]
    plot = _bars(
        spans,
        range(len(spans)),
        [group.seconds for group in ordered],
        colors,
        height=min(100 + 24 * len(spans), 700),
        x_range=(0, 1.2 * max(span.stop for span in spans)),  # room for the last name
        y_range=(len(spans) - 0.4, -0.6),
    )
    style = {"text_baseline": "middle", "text_font_size": "11px", "x_offset": 4}
    names = {"x": "start", "y": "lane", "text": "group"}
    plot.text(**names, **style, source=plot.renderers[0].data_source)
    plot.yaxis.visible = False
    return plot


def _memory(samples: Sequence[Sample], started: float) -> Any:
    seconds = [round(sample.time - started, 2) for sample in samples]
    first = samples[0].spilled
    plot = _figure(height=260, x_axis_label="seconds", y_axis_label="GB", tools=TOOLS)
    curves = (
        ("in the stores", "#1f77b4", [sample.used for sample in samples]),
        ("spilled", "#d62728", [sample.spilled - first for sample in samples]),
        ("workers", "#7f7f7f", [sample.rss for sample in samples]),
    )
    for name, color, nbytes in curves:
        rounded = np.round(np.divide(nbytes, 1e9), 4)
        plot.line(seconds, rounded, color=color, line_width=2, legend_label=name)
        plot.scatter(seconds, rounded, color=color, size=4, legend_label=name)
    plot.y_range.start = 0
    plot.legend.orientation = "horizontal"
    plot.add_layout(plot.legend[0], "above")
    return plot


def _skew(matrix: ShuffleMatrix) -> str:
    totals = matrix.totals
    largest, mean = int(totals.argmax()), totals.mean()
    return (
        f"Outputs get {format_bytes(int(mean))} in the mean; the largest, number {largest}, "
        f"{format_bytes(int(totals[largest]))}, {totals[largest] / mean:.1f} times as much. "
        f"A bright column is an output with heavy hitters."
    )


def _heat(matrix: ShuffleMatrix) -> Any:
    cells = matrix.cells.astype(np.float32)
    plot = _figure(
        height=340,
        x_axis_label="outputs",
        y_axis_label="parts",
        x_range=(0, len(matrix.totals)),
        y_range=(0, matrix.parts),
        tools="reset",
    )
    mapper = LinearColorMapper(palette=Viridis256, low=0, high=max(float(cells.max()), 1.0))
    size = {"dw": len(matrix.totals), "dh": matrix.parts}
    image = plot.image(image=[cells], x=0, y=0, **size, color_mapper=mapper)
    tooltips = [("output", "$x{0}"), ("part", "$y{0}"), ("bytes of the cell", "@image{0,0}")]
    plot.add_tools(HoverTool(tooltips=tooltips))
    plot.add_layout(image.construct_color_bar(width=10), "right")
    return plot
