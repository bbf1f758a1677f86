"""A pytest plugin: run Dask's own tests through ``dask_exo.get``.

Dask's ``assert_eq`` asks for ``scheduler="sync"`` by name, so the named schedulers are routed here
too. ``EXO_METHOD`` sets ``dataframe.shuffle.method``. The last line of a run says how many
scheduler calls came through; none is a failure.
"""

from __future__ import annotations

import os
from typing import Any

import dask
import pytest

import dask_exo
from dask_exo.dask_adapter import named_schedulers

CALLS: list[int] = []


def counted(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Count, and compute."""
    CALLS.append(1)
    return dask_exo.get(dsk, keys, **kwargs)


def pytest_configure() -> None:
    """Make it the scheduler, by every name, and without short cuts past Ray."""
    dask.config.set({"scheduler": counted, "exo.scheduler.inline": False})
    if method := os.environ.get("EXO_METHOD"):
        dask.config.set({"dataframe.shuffle.method": method})
    for name in list(named_schedulers):
        named_schedulers[name] = counted


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many."""
    terminalreporter.write_line(f"scheduler calls through dask_exo: {len(CALLS)}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """Fail a run that proved nothing."""
    if exitstatus == 0 and not CALLS:
        session.exitstatus = 1
