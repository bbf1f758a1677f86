"""Reports: of the last computation, and of all in a ``with`` block."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from dask_exo import events
from dask_exo.config import Config
from dask_exo.report.collector import Collector
from dask_exo.report.render import fragment, page, require_bokeh, text
from dask_exo.report.summary import Figures, as_json


class Report:
    """Costs of computations, as text, in a notebook, as JSON or as an HTML file.

    ``price`` is that of a node for an hour.
    """

    def __init__(self, record: Collector, price: float | None = None) -> None:
        self._record, self._price = record, price

    @property
    def figures(self) -> Figures:
        """All numbers so far, in seconds and bytes."""
        return self._record.figures(self._price)

    def __str__(self) -> str:
        """Return the report as text."""
        return text(self.figures)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return fragment(self.figures)

    def to_json(self) -> str:
        """Return all numbers as JSON, with their units."""
        return json.dumps(as_json(self.figures), indent=1)

    def plot_updates(self, drawn: Collection[str], hidden: Collection[str]) -> list[dict[str, Any]]:
        """Return what a page needs to draw all plots; see `Plot.update`."""
        from dask_exo.report.plots import plots

        found = plots(self._record, self.figures.groups, live=True)
        return [plot.update(drawn, hidden) for plot in found]

    def to_html(self, title: str = "dask_exo report") -> str:
        """Return a self-contained page; raise `MissingPackageError` without bokeh."""
        return page(self._record, self.figures, title)


class _Last:
    """An observer that collects the totals of each run, and of the last finished one."""

    def __init__(self) -> None:
        self._running: dict[int, Collector] = {}
        self._lock = threading.Lock()
        self.record = Collector()

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            with self._lock:
                self._running[event.run] = Collector()
        record = self._running.get(event.run)
        if record is None:
            return
        record(event)
        if isinstance(event, events.RunFinished):
            with self._lock:
                self.record = self._running.pop(event.run)


_last = _Last()
events.subscribe(_last)


def last_report() -> Report:
    """Return a report of the last computation of this process, for a notebook or to print.

    Totals of every computation are counted at negligible cost. Only `performance_report` records
    data of plots, the matrix of a shuffle, and exact spilling of short runs.

    Examples
    --------
    >>> import dask, dask_exo
    >>> from dask_exo.testing import InlineFutures
    >>> dask.delayed(sum)([1, 2]).compute(scheduler=dask_exo.Scheduler(InlineFutures()))
    3
    >>> dask_exo.last_report().figures.tasks
    1
    """
    return Report(_last.record, Config.current().node_price)


@contextlib.contextmanager
def performance_report(
    filename: str | Path = "dask-exo-report.html", *, price: float | None = None
) -> Iterator[Report]:
    """Record all computations of this process inside the block, and write a page about them.

    Parameters
    ----------
    filename : path
        Path of the page: one file that loads nothing from a network. It is also written if the
        block raises.
    price : float, optional
        Price of a node for an hour, in any currency; by default ``exo.report.node-price``.

    Raises
    ------
    MissingPackageError
        There is no bokeh.
    OSError
        The file cannot be written. Raised before anything runs.

    Examples
    --------
    >>> import dask_exo
    >>> with dask_exo.performance_report("report.html"):  # doctest: +SKIP
    ...     df.set_index("user").to_parquet("out/")
    """
    require_bokeh()
    path = Path(filename)
    with path.open("w", encoding="utf-8") as file:
        record = Collector(detailed=True)
        price = Config.current().node_price if price is None else price
        report = Report(record, price)
        with events.observing(record):
            try:
                yield report
            finally:
                file.write(report.to_html(path.stem))
