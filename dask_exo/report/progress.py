"""Progress of computations: in a terminal, in a notebook, as printed lines; Dask's callbacks."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, TextIO

from dask.callbacks import unpack_callbacks
from dask.diagnostics.profile import Profiler, ResourceProfiler
from dask.diagnostics.progress import ProgressBar

from dask_exo import events
from dask_exo.cluster.futures import current_node
from dask_exo.dask_adapter import DataNode
from dask_exo.report.collector import Collector

SOON = 2.0  # seconds before a run is worth showing
OFTEN = 0.2  # seconds between two updates that replace each other
SELDOM = 10.0  # seconds between two updates that do not


class Lines:
    """A display that prints lines: ``soon`` seconds after the start, then ``every`` so many."""

    soon: float = SELDOM
    every: float = SELDOM

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, state: Collector, now: float) -> None:
        """Show the current state."""
        for row in state.rows():
            cells = ", ".join(filter(None, row.cells(now)))
            self._stream.write(f"dask_exo: {row.name}: {cells}\n")
        self._stream.write(f"dask_exo: {state.footer(now)}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave printed lines."""


class Terminal:
    """Lines that rich rewrites in place."""

    soon: float = SOON
    every: float = OFTEN

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=stream)
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def show(self, state: Collector, now: float) -> None:
        """Show a table, and a line below it as wide as the terminal."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for row in state.rows():
            table.add_row(Text(row.name, style="bold"), *map(Text, row.cells(now)))
        self._live.start()
        self._live.update(Group(table, Text(state.footer(now), style="dim")), refresh=True)

    def end(self) -> None:
        """Remove the table."""
        self._live.stop()


class Notebook:
    """HTML below a cell, replaced in place."""

    soon: float = SOON
    every: float = 5 * OFTEN

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, state: Collector, now: float) -> None:
        """Show a table, and a line below it."""
        from IPython.display import HTML, display

        rows = "".join(
            f"<tr><th>{escape(row.name)}</th>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells(now))
            + "</tr>"
            for row in state.rows()
        )
        html = HTML(f"<table>{rows}</table><small>{escape(state.footer(now))}</small>")
        if self._handle is None:
            self._handle = display(html, display_id=True)
        else:
            self._handle.update(html)

    def end(self) -> None:
        """Remove the table."""
        if self._handle is not None:
            from IPython.display import HTML

            self._handle.update(HTML(""))


Display = Lines | Terminal | Notebook


class Progress:
    """An observer that shows the progress of runs, except short ones."""

    def __init__(self, display: Display) -> None:
        self._display, self._state = display, Collector()
        self._lock = threading.Lock()
        self._shown = 0.0

    def __call__(self, event: events.Event) -> None:
        """Count one event; show progress if it was last shown long enough ago."""
        with self._lock:
            self._state(event)
            runs = self._state.active_runs
            since = min(runs.values(), default=event.time)
            if not runs and self._shown:
                self._shown = 0.0
                self._display.end()
            elif event.time >= max(since + self._display.soon, self._shown + self._display.every):
                self._shown = event.time
                self._display.show(self._state, event.time)

    def end(self) -> None:
        """Stop showing progress."""
        with self._lock:
            self._display.end()


def kind_of_display(setting: str, *, terminal: bool, notebook: bool, quiet: bool) -> str:
    """Decide where to show progress: ``"terminal"``, ``"notebook"``, ``"lines"`` or ``""``.

    ``setting`` is ``exo.progress``; ``terminal`` is True if standard error is one; ``quiet`` is
    True in a background thread, or a task.
    """
    if setting == "off" or (setting == "auto" and quiet):
        return ""
    if notebook:
        return "notebook"
    return "terminal" if terminal else "lines"


def _display(setting: str) -> Display | None:
    quiet = threading.current_thread() is not threading.main_thread() or current_node() is not None
    rich = importlib.util.find_spec("rich") is not None
    terminal, notebook = sys.stderr.isatty() and rich, "ipykernel" in sys.modules
    kind = kind_of_display(setting, terminal=terminal, notebook=notebook, quiet=quiet)
    if kind == "notebook":
        return Notebook()
    if kind == "terminal":
        return Terminal(sys.stderr)
    return Lines(sys.stderr) if kind else None


_showing: list[Progress] = []


@contextlib.contextmanager
def showing(setting: str) -> Iterator[None]:
    """Show progress of the block, as ``exo.progress`` says, unless it is being shown already."""
    display = None if _showing else _display(setting)
    if display is None:
        yield
        return
    progress = Progress(display)
    _showing.append(progress)
    try:
        with events.observing(progress, closely=False):
            yield
    finally:
        _showing.remove(progress)
        progress.end()


@contextlib.contextmanager
def progress() -> Iterator[None]:
    """Show the progress of computations inside the block.

    In a terminal with rich installed, and in a notebook, lines are rewritten in place, after the
    first two seconds; elsewhere they are printed every ten seconds. Computations in the foreground
    show their progress by default: see ``exo.progress``.

    Examples
    --------
    >>> import dask_exo
    >>> with dask_exo.progress():  # doctest: +SKIP
    ...     df.set_index("user").to_parquet("out/")
    """
    with showing("on"):
        yield


Key = Any
Callback = tuple[Callable[..., Any] | None, ...]
"""``(start, start_state, pretask, posttask, finish)``."""
WORKER = "ray"  # stands for the process of a task, which only Ray knows


class Callbacks:
    """Dask's callbacks (`ProgressBar`, `Profiler`, `Cache`, …) of one computation.

    They are called as ``dask.local.get_async`` does it. If ``values``, a callback may read values
    of tasks: every task runs in a call of its own, and its value is fetched to this process.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        _, self._prepare, self._start, self._finish, _ = unpack_callbacks(callbacks)
        self._active: list[Callback] = []
        self._graph: dict[Key, Any] = {}
        self._state: dict[str, Any] = {}
        harmless = (ProgressBar, Profiler, ResourceProfiler)
        kinds = {type(getattr(function, "__self__", None)) for function in self._finish}
        self.values: bool = not kinds <= {*harmless}

    def __bool__(self) -> bool:
        """Return True if there is a callback."""
        return bool(self._callbacks)

    def begin(self, graph: dict[Key, Any]) -> None:
        """Call the start callbacks; they may put values into ``graph``."""
        self._graph = graph
        for callback in self._callbacks:
            if callback[0]:
                callback[0](graph)
            self._active.append(callback)

    def prepare(self, graph: Mapping[Key, Any]) -> None:
        """Call back with all tasks of ``graph``, as it will run."""
        data = {key for key, node in graph.items() if isinstance(node, DataNode)}
        self._graph = dict(graph)
        self._state = {
            "dependencies": {key: set(node.dependencies) for key, node in graph.items()},
            "waiting": {key: set(graph[key].dependencies) for key in graph.keys() - data},
            "cache": {key: graph[key].value for key in data},
            "ready": [],
            "running": set(),
            "finished": set(),
            "released": set(),
        }
        for hook in self._prepare:
            hook(self._graph, self._state)

    def started(self, keys: Iterable[Key]) -> None:
        """Call back before tasks run."""
        for key in keys:
            if self._state["waiting"].pop(key, None) is not None:
                self._state["running"].add(key)
                for hook in self._start:
                    hook(key, self._graph, self._state)

    def finished(self, key: Key, value: Any = None) -> None:
        """Call back after a task has run."""
        if key in self._state["running"]:
            self._state["running"].remove(key)
            self._state["finished"].add(key)
            for hook in self._finish:
                hook(key, value, self._graph, self._state, WORKER)

    def end(self, *, failed: bool) -> None:
        """Call the finish callbacks."""
        if not failed and self._state:
            self._state["finished"].update(self._state["waiting"])
            self._state["waiting"].clear()
        for callback in self._active:
            if callback[4]:
                callback[4](self._graph, self._state, failed)
