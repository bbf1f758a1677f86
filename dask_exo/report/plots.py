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
from dask_exo.report.plot_data import Sample, ShuffleMatrix, TaskSpan, merge_spans
from dask_exo.report.render import duration
from dask_exo.report.summary import TaskGroup

COLORS = Category20[20]
SHOWN = 5_000  # spans
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
            "What ran when on each worker. Merges of shuffles are not seen, so a gap may be one.",
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
            yield f"Shuffle {name}: who sent how much to whom", _skew(matrix), _heat(matrix)


def _figure(**options: Any) -> Any:
    made = figure(
        sizing_mode="stretch_width",
        toolbar_location="above",
        active_drag=None,  # a finger on a plot scrolls the page
        active_scroll=None,
        **options,
    )
    made.toolbar.logo = None
    return made


def _stream(record: Collector, colors: dict[str, str]) -> Any:
    spans, gap = record.spans.all, 0.001
    while len(spans) > SHOWN:
        spans, gap = merge_spans(spans, gap), 2 * gap
    lanes = {lane: i for i, lane in enumerate(sorted({_lane(span) for span in spans}))}
    nodes = {node: i for i, node in enumerate(sorted({span.node for span in spans}))}
    source = ColumnDataSource(
        {
            "y": [lanes[_lane(span)] for span in spans],
            "left": np.round([span.start - record.started for span in spans], 4),
            "right": np.round([span.stop - record.started for span in spans], 4),
            "color": [colors.get(span.group, "#888888") for span in spans],
            "group": [plain(span.group) for span in spans],
            "took": [duration(span.stop - span.start) for span in spans],
            "count": [span.tasks for span in spans],
            "size": [format_bytes(span.nbytes) for span in spans],
        }
    )
    made = _figure(height=min(120 + 22 * len(lanes), 700), x_axis_label="seconds", tools=TOOLS)
    made.hbar(
        y="y", left="left", right="right", height=0.8, color="color", line_width=0, source=source
    )
    tooltips = [("task", "@group"), ("took", "@took"), ("tasks", "@count"), ("results", "@size")]
    made.add_tools(HoverTool(tooltips=tooltips))
    made.yaxis.ticker = list(lanes.values())
    made.yaxis.major_label_overrides = {
        i: f"{nodes[node]} · {process}" for (node, process), i in lanes.items()
    }
    made.yaxis.axis_label = "node · process"
    made.ygrid.visible = False
    return made


def _lane(span: TaskSpan) -> tuple[str, int]:
    return span.node, span.process


def _timeline(groups: Sequence[TaskGroup], colors: dict[str, str]) -> Any:
    shown = sorted(groups, key=lambda group: group.first)
    source = ColumnDataSource(
        {
            "y": list(range(len(shown))),
            "left": [round(group.first, 4) for group in shown],
            "right": [round(group.last, 4) for group in shown],
            "color": [colors[group.name] for group in shown],
            "group": [plain(group.name) for group in shown],
            "count": [group.count for group in shown],
            "took": [duration(group.seconds) for group in shown],
            "size": [format_bytes(group.nbytes) for group in shown],
        }
    )
    made = _figure(
        height=min(100 + 24 * len(shown), 700),
        x_axis_label="seconds",
        x_range=(0, 1.2 * max(group.last for group in shown)),  # room for the last name
        y_range=(len(shown) - 0.4, -0.6),
        tools=TOOLS,
    )
    made.hbar(
        y="y", left="left", right="right", height=0.7, color="color", line_width=0, source=source
    )
    made.text(
        x="left",
        y="y",
        text="group",
        source=source,
        text_baseline="middle",
        text_font_size="11px",
        x_offset=4,
    )
    tooltips = [("", "@group"), ("tasks", "@count"), ("work", "@took"), ("results", "@size")]
    made.add_tools(HoverTool(tooltips=tooltips))
    made.yaxis.visible = made.ygrid.visible = False
    return made


def _memory(samples: Sequence[Sample], started: float) -> Any:
    seconds = [round(sample.time - started, 2) for sample in samples]
    first = samples[0].spilled
    made = _figure(height=260, x_axis_label="seconds", y_axis_label="GB", tools=TOOLS)
    curves = {
        "in the stores": [sample.used / 1e9 for sample in samples],
        "spilled": [(sample.spilled - first) / 1e9 for sample in samples],
        "workers": [sample.rss / 1e9 for sample in samples],
    }
    for (name, values), color in zip(
        curves.items(), ("#1f77b4", "#d62728", "#7f7f7f"), strict=True
    ):
        rounded = np.round(values, 4)
        made.line(seconds, rounded, color=color, line_width=2, legend_label=name)
        made.scatter(seconds, rounded, color=color, size=4, legend_label=name)
    made.y_range.start = 0
    made.legend.orientation = "horizontal"
    made.add_layout(made.legend[0], "above")
    return made


def _skew(matrix: ShuffleMatrix) -> str:
    totals = matrix.totals
    largest = int(totals.argmax())
    mean = totals.mean()
    return (
        f"Outputs get {format_bytes(int(mean))} in the mean; the largest, number {largest}, "
        f"{format_bytes(int(totals[largest]))}, {totals[largest] / mean:.1f} times as much. "
        f"A bright column is an output with frequent keys."
    )


def _heat(matrix: ShuffleMatrix) -> Any:
    cells = matrix.cells.astype(np.float32)
    made = _figure(
        height=340,
        x_axis_label="outputs",
        y_axis_label="parts",
        x_range=(0, len(matrix.totals)),
        y_range=(0, matrix.parts),
        tools="reset",
    )
    mapper = LinearColorMapper(palette=Viridis256, low=0, high=max(float(cells.max()), 1.0))
    image = made.image(
        image=[cells],
        x=0,
        y=0,
        dw=len(matrix.totals),
        dh=matrix.parts,
        color_mapper=mapper,
    )
    tooltips = [("output", "$x{0}"), ("part", "$y{0}"), ("bytes of the cell", "@image{0,0}")]
    made.add_tools(HoverTool(tooltips=tooltips))
    made.add_layout(image.construct_color_bar(width=10), "right")
    return made
