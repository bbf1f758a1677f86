"""The plots of a report and of the live page, by bokeh, as Dask's own.

Names are drawn as text, never as markup.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.models import (
    CDSView,
    ColumnDataSource,
    DataRange1d,
    GroupFilter,
    HoverTool,
    LinearColorMapper,
)
from bokeh.models.annotations import Legend
from bokeh.palettes import Category20, Viridis256
from bokeh.plotting import figure
from dask.tokenize import tokenize
from dask.utils import format_bytes

from dask_exo.cluster.sampling import INTERVAL, Stack
from dask_exo.report.collector import Collector
from dask_exo.report.render import duration
from dask_exo.report.summary import LoadSample, Sample, ShuffleMatrix, TaskGroup, TaskSpan

COLORS = Category20[20]
LONGEST = 48  # characters of a name
MOST_STAGES = 15  # that the task stream can hide
LEGEND = 34  # characters of one of them, which fit on a phone
OTHERS = "others"
THINNEST = 0.002  # share of all samples of a function that is drawn
WIDE = 0.06  # share of one that is labelled
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
    figure: Callable[[], Any]

    def update(self, drawn: Collection[str], hidden: Collection[str] = ()) -> dict[str, Any]:
        """Return what a page needs to draw it: only its data if ``drawn``, nothing if ``hidden``.

        Both have keys.
        """
        texts = {"key": self.key, "heading": self.heading, "caption": self.caption}
        if self.key in hidden:
            return texts
        figure = self.figure()
        if self.key not in drawn:
            return texts | {"item": json_item(figure)}
        sources = filter(lambda one: one.name, figure.select({"type": ColumnDataSource}))
        data = {source.name: {k: list(v) for k, v in source.data.items()} for source in sources}
        return texts | {"data": data}


def plots(record: Collector, groups: Sequence[TaskGroup], *, live: bool = False) -> Iterator[Plot]:
    """Yield each plot; if ``live``, of shuffles only those of the newest run."""
    colors = {group.name: COLORS[i % len(COLORS)] for i, group in enumerate(groups)}
    spans, samples = list(record.spans.all), list(record.samples)  # tasks may be running
    if spans:
        workers = sorted({(span.node, span.process) for span in spans})
        stages = [group.name for group in groups[:MOST_STAGES]]
        yield Plot(
            f"stream {tokenize(workers, stages, len(groups))}",
            "Task stream",
            "Tasks of each worker; a click on a name hides its tasks. Merges of shuffles are not "
            "recorded: a gap may be a merge.",
            partial(_stream, spans, record.started, workers, stages, colors),
        )
    if groups:
        yield Plot(
            f"timeline {len(groups)}",
            "Timeline",
            "From the start of the first task of each kind to the end of the last.",
            partial(_timeline, groups, colors),
        )
    if samples and np.isfinite(record.started):
        yield Plot(
            "memory",
            "Memory",
            "Bytes in the object stores, spilled so far, and of the processes of all workers.",
            partial(_memory, samples, record.started),
        )
    loads = dict(record.loads.all)
    if loads:
        yield Plot(
            f"loads {tokenize(list(loads))}",
            "Machines",
            "Processors in use, and bytes a second of disks and network, while calls end.",
            partial(_loads, loads, record.started),
        )
    if stacks := {group: dict(counts) for group, counts in list(record.stacks.items())}:
        yield Plot(
            "profile",
            "Profile",
            "Time of all workers by function, below the one that called it; the code of tasks is "
            f"sampled every {1000 * INTERVAL:.0f} ms.",
            partial(_flame, stacks),
        )
    newest = max((run for run, _ in record.matrices), default=0)
    for (run, name), matrix in list(record.matrices.items()):
        if (total := matrix.totals.sum()) and (run == newest or not live):
            yield Plot(
                f"matrix {run} {name} {total}",
                f"Shuffle {name}: bytes from each part to each output",
                _skew(matrix),
                partial(_heat, matrix),
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
    stages: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Draw a bar for each span, in its lane and its group's color; ``stages`` can be hidden."""
    shown = [span.group if span.group in stages else OTHERS for span in spans]
    columns = {
        "lane": list(lanes),
        "start": np.round([span.start for span in spans], 4),
        "stop": np.round([span.stop for span in spans], 4),
        "color": [colors.get(span.group, "#888888") for span in spans],
        "group": [plain(span.group) for span in spans],
        "tasks": [span.tasks for span in spans],
        "work": [duration(seconds) for seconds in work],
        "size": [format_bytes(span.nbytes) for span in spans],
        "stage": shown,
    }
    ends = {"y": "lane", "left": "start", "right": "stop"}
    plot = _figure(x_axis_label="seconds", tools=TOOLS, **options)
    source = ColumnDataSource(columns, name="bars")
    items = []
    for stage in sorted(set(shown), key=[*stages, OTHERS].index):
        view = CDSView(filter=GroupFilter(column_name="stage", group=stage))
        style = {"height": 0.8, "color": "color", "line_width": 0}
        bars = plot.hbar(**ends, source=source, view=view, **style)
        items.append((plain(stage)[:LEGEND], [bars]))
    if stages:
        legend = Legend(items=items, location="bottom_left", click_policy="hide")
        legend.label_text_font_size = "11px"
        plot.add_layout(legend, "below")
    tooltips = [("", "@group"), ("tasks", "@tasks"), ("work", "@work"), ("results", "@size")]
    plot.add_tools(HoverTool(tooltips=tooltips))
    plot.ygrid.visible = False
    return plot


def _stream(
    spans: Sequence[TaskSpan],
    start: float,
    workers: Sequence[tuple[str, int]],
    stages: Sequence[str],
    colors: dict[str, str],
) -> Any:
    lanes = {worker: i for i, worker in enumerate(workers)}
    nodes = {node: i for i, node in enumerate(sorted({node for node, _ in workers}))}
    plot = _bars(
        [span._replace(start=span.start - start, stop=span.stop - start) for span in spans],
        [lanes[span.node, span.process] for span in spans],
        [span.stop - span.start for span in spans],
        colors,
        stages,
        height=min(120 + 22 * len(lanes), 700) + 22 * (1 + len(stages)),
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


def _loads(loads: Mapping[str, Sequence[LoadSample]], started: float) -> Any:
    drawn = list[Any]()
    fields = {"processors": 1.0, "disk": 1e6, "network": 1e6, "gpus": 1.0}
    if all(sample.gpus is None for samples in loads.values() for sample in samples):
        del fields["gpus"]
    for field, scale in fields.items():
        label = field.replace("gpus", "GPUs") if scale == 1 else f"{field}, MB/s"
        plot = _figure(height=160, y_axis_label=label, tools=TOOLS)
        for i, samples in enumerate(loads[node] for node in sorted(loads)):
            seconds = [round(sample.time - started, 2) for sample in samples]
            rates = [round((getattr(sample, field) or 0.0) / scale, 3) for sample in samples]
            source = ColumnDataSource({"x": seconds, "y": rates}, name=f"{field} {i}")
            plot.line("x", "y", source=source, color=COLORS[2 * i % 20], legend_label=f"node {i}")
        plot.y_range.start = 0
        plot.legend.visible = 1 < len(loads) <= MOST_STAGES and not drawn
        plot.legend.orientation = "horizontal"
        drawn.append(plot)
    drawn[-1].xaxis.axis_label = "seconds"
    return column(drawn, sizing_mode="stretch_width")


def flame(stacks: Mapping[str, Mapping[Stack, int]]) -> Iterator[tuple[int, int, int, str]]:
    """Yield depth, first and last sample, and name of each function; groups are at depth 0.

    Examples
    --------
    >>> list(flame({"map": {("f", "g"): 2, ("f",): 1}}))
    [(0, 0, 3, 'map'), (1, 0, 3, 'f'), (2, 1, 3, 'g')]
    """
    paths = ((group, *stack) for group, counts in stacks.items() for stack in counts)
    at, opened = 0, list[tuple[str, int]]()  # functions that are open, and their first samples
    for path in [*sorted(paths), ()]:
        same = 0
        while same < min(len(path), len(opened)) and path[same] == opened[same][0]:
            same += 1
        for depth in range(same, len(opened)):
            yield depth, opened[depth][1], at, opened[depth][0]
        opened[same:] = [(name, at) for name in path[same:]]
        at += stacks[path[0]][path[1:]] if path else 0


def _flame(stacks: Mapping[str, Mapping[Stack, int]]) -> Any:
    total = sum(sum(counts.values()) for counts in stacks.values())
    bars = [bar for bar in flame(stacks) if bar[2] - bar[1] >= THINNEST * total]
    names = [name.partition(" ") if depth else (name, "", "") for depth, _, _, name in bars]
    shares = [(stop - start) / total for _, start, stop, _ in bars]
    columns = {
        "top": [depth for depth, *_ in bars],
        "bottom": [depth + 0.94 for depth, *_ in bars],
        "left": [round(start * INTERVAL, 3) for _, start, _, _ in bars],
        "right": [round(stop * INTERVAL, 3) for _, _, stop, _ in bars],
        "name": [plain(name) for name, _, _ in names],
        "place": [plain(place) for _, _, place in names],
        "share": [f"{100 * share:.1f} %" for share in shares],
        "color": [COLORS[zlib.crc32("".join(name).encode()) % 20] for name in names],
        "label": [
            plain(name[0])[: int(130 * share)] if share >= WIDE else ""
            for name, share in zip(names, shares, strict=True)
        ],
    }
    plot = _figure(
        height=420,
        x_axis_label="seconds of all workers",
        tools=TOOLS,
        y_range=DataRange1d(flipped=True),
    )
    source = ColumnDataSource(columns, name="functions")
    edges = {edge: edge for edge in ("left", "right", "top", "bottom")}
    plot.quad(**edges, source=source, color="color", fill_alpha=0.6)
    style = {"text_baseline": "top", "text_font_size": "11px", "x_offset": 3, "y_offset": 2}
    plot.text("left", "top", "label", source=source, **style)
    plot.add_tools(HoverTool(tooltips=[("", "@name"), ("", "@place"), ("share", "@share")]))
    plot.yaxis.visible = plot.ygrid.visible = False
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
