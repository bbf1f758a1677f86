"""The plots of a report and of the live page, by bokeh, as Dask's own.

Names are drawn as text, never as markup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, LinearColorMapper
from bokeh.palettes import Category20, Viridis256
from bokeh.plotting import figure
from dask.tokenize import tokenize
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


class Plot(NamedTuple):
    """A bokeh figure; one with the same ``key`` differs from it only in the data of its sources."""

    key: str
    heading: str
    caption: str
    figure: Any

    def update(self, drawn: Collection[str]) -> dict[str, Any]:
        """Return what a page needs to draw it, or only its data if it is in ``drawn``."""
        sources = filter(lambda one: one.name, self.figure.select({"type": ColumnDataSource}))
        data = {source.name: {k: list(v) for k, v in source.data.items()} for source in sources}
        texts = {"key": self.key, "heading": self.heading, "caption": self.caption}
        return texts | ({"data": data} if self.key in drawn else {"item": json_item(self.figure)})


def plots(record: Collector, groups: Sequence[TaskGroup], *, live: bool = False) -> Iterator[Plot]:
    """Yield each plot; if ``live``, of shuffles only those of the newest run."""
    colors = {group.name: COLORS[i % len(COLORS)] for i, group in enumerate(groups)}
    spans, samples = list(record.spans.all), list(record.samples)  # tasks may be running
    if spans:
        workers = sorted({(span.node, span.process) for span in spans})
        yield Plot(
            f"stream {tokenize(workers)}",
            "Task stream",
            "Tasks of each worker. Merges of shuffles are not recorded: a gap may be a merge.",
            _stream(spans, record.started, workers, colors),
        )
    if groups:
        yield Plot(
            f"timeline {len(groups)}",
            "Timeline",
            "From the start of the first task of each kind to the end of the last.",
            _timeline(groups, colors),
        )
    if samples and np.isfinite(record.started):
        yield Plot(
            "memory",
            "Memory",
            "Bytes in the object stores, spilled so far, and of the processes of all workers.",
            _memory(samples, record.started),
        )
    newest = max((run for run, _ in record.matrices), default=0)
    for (run, name), matrix in list(record.matrices.items()):
        if (total := matrix.totals.sum()) and (run == newest or not live):
            yield Plot(
                f"matrix {run} {name} {total}",
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
    ends = {"y": "lane", "left": "start", "right": "stop"}
    plot = _figure(x_axis_label="seconds", tools=TOOLS, **options)
    source = ColumnDataSource(columns, name="bars")
    plot.hbar(**ends, source=source, height=0.8, color="color", line_width=0)
    tooltips = [("", "@group"), ("tasks", "@tasks"), ("work", "@work"), ("results", "@size")]
    plot.add_tools(HoverTool(tooltips=tooltips))
    plot.ygrid.visible = False
    return plot


def _stream(
    spans: Sequence[TaskSpan],
    start: float,
    workers: Sequence[tuple[str, int]],
    colors: dict[str, str],
) -> Any:
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
        x_range=DataRange1d(start=0, range_padding=0.4),  # half of it for the last name
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
        source = ColumnDataSource({"x": seconds, "y": rounded}, name=name)
        style = {"source": source, "color": color, "legend_label": name}
        plot.line("x", "y", line_width=2, **style)
        plot.scatter("x", "y", size=4, **style)
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
