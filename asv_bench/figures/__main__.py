"""Measure a figure of the papers again and draw it: ``python -m asv_bench.figures NAME``.

It writes ``NAME.json`` and ``NAME.svg`` to ``--out``; ``--draw`` only draws. Ray nodes are
processes of this machine. Each name is one figure:

* ``variants``: Exoshuffle, figures 4a and 4c, with the loss of a node (section 5.1.5)
* ``large``: more data than four nodes can store, sorted and validated
* ``stragglers``: Exoshuffle, section 4.3.2: a node that is ten times slower
* ``videos``, ``nodes``, ``memory``, ``rows``: the streaming batch model, figures 6b, 6c, 9, 10
* ``workflow``: ExoFlow, figure 6.6
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from asv_bench.figures import pipelines, shuffles, workflows

Found = list[dict[str, Any]]


class Named(NamedTuple):
    """A figure: how it is measured and drawn."""

    measure: Callable[[argparse.Namespace], Found]
    draw: Callable[[Found], Figure] | None


FIGURES = {
    "variants": Named(
        lambda o: shuffles.measure_variants(
            o.gigabytes or 2.0, o.rounds, o.counts or [32, 96, 256]
        ),
        shuffles.draw_variants,
    ),
    "large": Named(
        lambda o: shuffles.measure_large(o.gigabytes or 40.0, o.store, (o.counts or [400])[0]), None
    ),
    "stragglers": Named(
        lambda o: shuffles.measure_stragglers(o.rounds, (o.counts or [64])[0]),
        shuffles.draw_stragglers,
    ),
    "videos": Named(lambda o: pipelines.measure_videos(o.rounds), pipelines.draw_videos),
    "nodes": Named(
        lambda o: pipelines.measure_node_loss((o.counts or [480])[0]), pipelines.draw_node_loss
    ),
    "memory": Named(
        lambda o: pipelines.measure_memory(o.rounds, 48, o.counts or [6, 20, 160]),
        pipelines.draw_memory,
    ),
    "rows": Named(lambda o: pipelines.measure_rows(o.rounds), pipelines.draw_rows),
    "workflow": Named(
        lambda o: workflows.measure(o.rounds, o.counts or [50, 200, 800]), workflows.draw
    ),
}


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(
        prog="python -m asv_bench.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=FIGURES)
    parser.add_argument("--out", type=Path, default=Path(), help="directory")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, help="of a sort")
    parser.add_argument("--store", type=float, default=8.0, help="gigabytes of all nodes (large)")
    parser.add_argument("--counts", type=int, nargs="+", help="partitions, limits, or megabytes")
    options = parser.parse_args()
    figure, kept = FIGURES[options.name], options.out / f"{options.name}.json"
    if not options.draw:
        kept.write_text(json.dumps(figure.measure(options), indent=1), encoding="utf-8")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": options.name})
    if figure.draw is not None:
        drawn = figure.draw(json.loads(kept.read_text(encoding="utf-8")))
        drawn.savefig(options.out / f"{options.name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
