"""A report as one self-contained page: no network, all names escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from dask.utils import format_bytes

from dask_exo.errors import MissingPackageError
from dask_exo.report.advice import advise
from dask_exo.report.summary import Figures, TaskSummary, as_json
from dask_exo.report.text import duration, facts

if TYPE_CHECKING:
    from dask_exo.report.collector import Collector

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
"""
BODY = "body { margin: 0 auto; max-width: 1100px; padding: 0 14px 3em; background: #fff; }"
# a browser may run the inline scripts, and load nothing
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


def fragment(figures: Figures) -> str:
    """Return the figures as HTML, without plots."""
    parts = ["<div class='exo'>", f"<style>{STYLE}</style>", _totals(figures), _advice(figures)]
    return "".join([*parts, *_tables(figures), "</div>"])


def page(record: Collector, figures: Figures, title: str) -> str:
    """Return the whole page.

    Raises
    ------
    MissingPackageError
        There is no bokeh.
    """
    require_bokeh()
    from bokeh.embed import components
    from bokeh.resources import Resources

    from dask_exo.report.plots import plots

    drawn = list(plots(record, figures.groups))
    script, divs = components([plot for _, _, plot in drawn]) if drawn else ("", [])
    resources = Resources(mode="inline", components=["bokeh"]) if drawn else None
    pictures = [
        f"<h2>{escape(heading)}</h2><p>{escape(said)}</p>{div}"
        for (heading, said, _), div in zip(drawn, divs, strict=True)
    ]
    return "\n".join(
        [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f"<title>{escape(title)}</title><style>{STYLE}{BODY}</style>",
            "" if resources is None else resources.render_js(),
            f"</head><body><div class='exo'><h1>{escape(title)}</h1>",
            _totals(figures),
            _advice(figures),
            *pictures,
            *_tables(figures),
            "</div>",
            script,
            f"<script type='application/json' id='figures'>{_json(figures)}</script>",
            "</body></html>",
        ]
    )


def require_bokeh() -> None:
    """Raise `MissingPackageError` if there is no bokeh."""
    try:
        import bokeh  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "a report is drawn by bokeh, which is not installed: add it by "
            "pip install 'dask-exo[report]'. "
            "dask_exo.last_report() has the figures without it"
        ) from error


def _json(figures: Figures) -> str:
    """Return JSON that can be embedded in a script element."""
    return json.dumps(as_json(figures)).replace("<", "\\u003c")


def _totals(figures: Figures) -> str:
    cells = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>"
        for name, fact in facts(figures)
    )
    return f"<dl>{''.join(cells)}</dl>"


def _advice(figures: Figures) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in advise(figures))
    return f"<ul>{lines}</ul>" if lines else ""


def _tables(figures: Figures) -> Iterator[str]:
    yield _table(
        "Shuffles",
        ["", "algorithm", "parts → outputs", "bytes", "largest", "time", "why"],
        (
            [
                one.name,
                one.algorithm,
                f"{one.maps:,} → {one.reducers:,}",
                format_bytes(one.nbytes),
                "" if one.largest is None else f"{format_bytes(one.largest)}, {one.skew:.1f} x",
                duration(one.seconds),
                one.reason,
            ]
            for one in figures.shuffles
        ),
    )
    yield _table(
        "Tasks",
        ["", "count", "work", "results"],
        (
            [one.name, f"{one.count:,}", duration(one.seconds), format_bytes(one.nbytes)]
            for one in sorted(figures.groups, key=lambda group: -group.seconds)
        ),
    )
    yield _table(
        "Stages of pipelines",
        ["", "outputs", "work", "bytes", "waited for"],
        (
            [
                one.name,
                f"{one.outputs:,}",
                duration(one.seconds),
                format_bytes(one.nbytes),
                ", ".join(f"{100 * share:.0f} % {why}" for why, share in one.waits.items()),
            ]
            for one in figures.stages
        ),
    )
    yield _top("Slowest", figures.slowest)
    yield _top("Largest", figures.largest)


def _top(heading: str, tasks: Sequence[TaskSummary]) -> str:
    rows = ([one.name, duration(one.seconds), format_bytes(one.nbytes)] for one in tasks)
    return _table(heading, ["", "time", "bytes"], rows)


def _table(heading: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table, or an empty string without rows."""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    if not body:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    return f"<h2>{escape(heading)}</h2><div class='wide'><table><tr>{head}</tr>{body}</table></div>"
