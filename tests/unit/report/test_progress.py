"""Progress: what is said, when, and where."""

from __future__ import annotations

import io
import re
import sys
import types
from collections import Counter
from operator import add, neg
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo import Scheduler, events
from dask_exo.report.collector import Collector, ProgressRow
from dask_exo.report.progress import Lines, Notebook, Progress, Terminal, kind_of_display, showing
from dask_exo.testing import InlineFutures


def story(until: float) -> list[events.Event]:
    """A run of 100 maps of a second each, one after the other, that begins at 1000."""
    told: list[events.Event] = [
        events.RunStarted({"map": 100, "<b>reduce": 10}, run=1, time=1000.0)
    ]
    for second in range(1, int(until) + 1):
        now = 1000.0 + second
        told.append(events.TasksFinished("map", 1, 1.0, 9, moved=10**6, run=1, time=now))
        told.append(events.ClusterSeen(5 * 10**6, second * 10**6, 0, 4, "slots", run=1, time=now))
    return told


def test_a_short_run_shows_nothing() -> None:
    out = io.StringIO()
    shown = Progress(Lines(out))
    for event in story(9):
        shown(event)
    shown(events.RunFinished(9.0, 1, 1, 0, 0, failed=False, run=1, time=1009.5))
    assert not out.getvalue()


def test_a_long_run_prints_lines_every_ten_seconds() -> None:
    out = io.StringIO()
    shown = Progress(Lines(out))
    for event in story(35):
        shown(event)
    lines = out.getvalue().splitlines()
    assert [line for line in lines if "map: 30/100" in line]
    assert len([line for line in lines if "map" in line]) == 3
    (last,) = [line for line in lines if "map: 30/100" in line]
    assert "70.0 s left" in last
    assert "slots" in lines[-1]
    assert "spilled" in lines[-1]


def test_rows_end_with_their_run_and_know_the_rest() -> None:
    state = Collector()
    for event in story(25):
        state(event)
    (row,) = state.rows()
    assert (row.name, row.done, row.total) == ("map", 25, 100)
    assert row.left(1025.0) == pytest.approx(75.0)
    assert row.cells(1025.0)[1] == "0.95 MiB/s"
    state(events.ShuffleSeen("s", 5, 10, 2, 4, 0, run=1, time=1026.0))
    assert [(r.name, r.done, r.total) for r in state.rows()][-1] == ("s merges", 2, 4)
    state(events.StageSeen("read", 3, 2, 7, 9, 100, 1.0, "memory", run=1, time=1027.0))
    assert "waits for memory" in state.rows()[-1].note
    state(events.RunFinished(1.0, 1, 1, 0, 0, failed=False, run=1, time=1028.0))
    assert state.rows() == []


def test_nothing_is_left_of_what_is_not_known() -> None:
    assert ProgressRow("r", done=3).left(10.0) is None
    assert ProgressRow("r", done=3).cells(10.0)[0] == "3"


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_left_clean(monkeypatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Tty()
    shown = Progress(Terminal(out))
    for event in story(30):
        shown(event)
    assert "30/100" in out.getvalue()
    lines = re.sub(r"\x1b\[[0-9;?]*\w", "", out.getvalue()).splitlines()
    (footer,) = [line for line in lines if line.startswith("30.0 s")]  # not wrapped in a column
    assert footer.strip().endswith("4 in flight, waits for slots")
    before = len(out.getvalue())
    shown(events.RunFinished(9.0, 1, 1, 0, 0, failed=False, run=1, time=1031.0))
    assert "\x1b[2K" in out.getvalue()[before:]  # the lines are erased
    shown.end()


def test_a_notebook_shows_escaped_rows_that_are_replaced(monkeypatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, html: Any) -> None:
            shown.append(html)

    def display(html: Any, display_id: bool) -> Handle:
        shown.append(html)
        return Handle()

    fake = types.ModuleType("IPython.display")
    fake.HTML, fake.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    progress = Progress(Notebook())
    for event in story(5):
        progress(event)
    progress(events.TasksFinished("<b>reduce", 1, 1.0, 1, run=1, time=1008.0))
    assert "5/100" in shown[-1]
    assert "&lt;b&gt;reduce" in shown[-1]
    progress(events.RunFinished(9.0, 1, 1, 0, 0, failed=False, run=1, time=1009.0))
    assert shown[-1] == ""


@pytest.mark.parametrize(
    ("setting", "terminal", "notebook", "quiet", "kind"),
    [
        ("off", True, True, False, ""),
        ("off", False, False, False, ""),
        ("auto", True, False, True, ""),
        ("on", True, False, True, "terminal"),
        ("on", False, False, True, "lines"),
        ("auto", False, True, False, "notebook"),
    ],
)
def test_where_it_is_shown(setting, terminal, notebook, quiet, kind) -> None:
    assert kind_of_display(setting, terminal=terminal, notebook=notebook, quiet=quiet) == kind


def test_one_display_is_enough(monkeypatch) -> None:
    made = []
    module = sys.modules["dask_exo.report.progress"]

    def display(setting: str) -> Lines:
        made.append(setting)
        return Lines(io.StringIO())

    monkeypatch.setattr(module, "_display", display)
    with dask_exo.progress(), showing("auto"):
        pass
    assert made == ["on"]


def test_a_computation_of_the_user_is_heard(monkeypatch) -> None:
    heard: list[tuple[str, int, int]] = []

    class Heard(Lines):
        soon = every = 0.0

        def show(self, state: Collector, now: float) -> None:
            heard.extend((row.name, row.done, row.total) for row in state.rows())

    module = sys.modules["dask_exo.report.progress"]
    monkeypatch.setattr(module, "_display", lambda setting: Heard(io.StringIO()))
    parts = [dask.delayed(abs)(-i, dask_key_name=f"part-{i}") for i in range(40)]
    with dask.config.set({"exo.scheduler.bundle-target": 0}):  # each task is a call of its own
        assert dask.compute(parts, scheduler=Scheduler(InlineFutures()))[0] == list(range(40))
    assert [done for name, done, total in heard if name == "part" and total == 40][:3] == [1, 2, 3]


def rates_of(*collections: Any) -> dict[str, int]:
    """Compute; return the last bytes that the row of each group has shown."""
    state, last = Collector(), {}

    def show(event: events.Event) -> None:
        state(event)
        last.update((row.name, row.nbytes) for row in state.rows())

    with events.observing(show, closely=False):
        dask.compute(*collections, scheduler=Scheduler(InlineFutures()))
    return last


def test_a_write_shows_what_it_reads_and_never_the_size_of_its_receipts(tmp_path) -> None:
    frame = pd.DataFrame({"key": np.arange(80_000) % 1000, "value": 1.0})
    source = dd.from_pandas(frame, npartitions=4)
    by_itself = rates_of(source.to_parquet(tmp_path / "a", compute=False))
    assert [bytes_ for name, bytes_ in by_itself.items() if "toparquet" in name] == [0]
    shuffled = source.shuffle("key").to_parquet(tmp_path / "b", compute=False)
    (nbytes,) = (n for name, n in rates_of(shuffled).items() if "toparquet" in name)
    assert nbytes > 400_000  # three of four parts: the row disappears with the last one


def test_a_call_counts_for_each_group_and_names_all_functions() -> None:
    def load(i: int) -> int:
        return i

    def resize(i: int) -> int:
        return i + 1

    def model(i: int) -> int:
        return 2 * i

    def total(parts: list[int]) -> int:
        return sum(parts)

    parts = [dask.delayed(load)(i) for i in range(8)]
    parts = [dask.delayed(model)(dask.delayed(resize)(part)) for part in parts]
    seen: list[events.Event] = []
    with events.observing(seen.append, closely=False):
        assert dask.delayed(total)(parts).compute(scheduler=Scheduler(InlineFutures())) == 72
    assert counts(seen) == {"load+resize+model": 8, "total": 1}


def counts(seen: list[events.Event]) -> Counter[str]:
    """Return the tasks of each group that have finished, which are those that were to run."""
    (started,) = (event for event in seen if isinstance(event, events.RunStarted))
    done = Counter[str]()
    for event in seen:
        if isinstance(event, events.TasksFinished):
            done[event.group] += event.count
    assert done == started.groups
    return done


def test_tasks_of_another_group_in_the_same_call_count_for_theirs() -> None:
    seen: list[events.Event] = []
    graph: dict[Any, Any] = {("a", i): (abs, i) for i in range(20)}
    graph |= {("b", i): (neg, ("a", i)) for i in range(20)}
    graph |= {("c", i): (add, ("a", i), ("b", i)) for i in range(20)}
    with events.observing(seen.append, closely=False):
        Scheduler(InlineFutures())(graph, [*graph])
    assert counts(seen) == {"a": 20, "b": 20, "c": 20}
