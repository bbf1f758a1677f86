"""A pytest plugin: run Dask's own tests through ``dask_exo.get``.

Dask's ``assert_eq`` asks for ``scheduler="sync"`` by name, so the named schedulers are routed here
too. The last line of a run says how many scheduler calls came through; none is a failure. The
environment says how to run:

``EXO_CONFORMANCE``
    ``exo`` (default), or ``none``: Dask as it is, the baseline.
``EXO_METHOD``
    Value of ``dataframe.shuffle.method``: ``tasks``, ``disk`` or ``p2p``.
``EXO_PERSIST``
    ``1``: ``persist`` leaves values in the object store, as with ``scheduler="exo"``. By default
    the scheduler is a plain function, and Dask's own ``persist`` brings them back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dask
import pytest

import dask_exo
from dask_exo.dask_adapter import named_schedulers

CALLS: list[int] = []
THROUGH_EXO = os.environ.get("EXO_CONFORMANCE", "exo") != "none"


def counted(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Count, and compute."""
    CALLS.append(1)
    return dask_exo.get(dsk, keys, **kwargs)


class Persisting:
    """The same, with a ``persist`` of its own."""

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        return counted(dsk, keys, **kwargs)

    def persist(self, *args: Any, **kwargs: Any) -> Any:
        """Count, and leave the values where they are."""
        CALLS.append(1)
        return dask_exo.get.persist(*args, **kwargs)


def impossible() -> dict[str, str]:
    """Why a test cannot pass here, by its node id from the package on."""
    text = Path(__file__).with_name("impossible.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split(maxsplit=1) for line in lines)


def pytest_configure() -> None:
    """Make it the scheduler, by every name, and without short cuts past Ray."""
    if method := os.environ.get("EXO_METHOD"):
        dask.config.set({"dataframe.shuffle.method": method})
    if not THROUGH_EXO:
        return
    scheduler = Persisting() if os.environ.get("EXO_PERSIST") == "1" else counted
    engine = os.environ.get("EXO_ENGINE", "ray")
    dask.config.set({"scheduler": scheduler, "exo.engine": engine})
    for name in list(named_schedulers):
        named_schedulers[name] = scheduler


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect the failures that have a reason outside of dask_exo."""
    reasons = impossible() if THROUGH_EXO else {}
    root = Path(dask.__file__).parents[1]
    for item in items:
        if not item.path.is_relative_to(root):
            continue
        test = f"{item.path.relative_to(root).as_posix()}::{item.name}"
        reason = reasons.get(test) or reasons.get(test.split("[", maxsplit=1)[0])
        if reason and reason.startswith("hangs:"):
            item.add_marker(pytest.mark.skip(reason=reason))
        elif reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=False))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many."""
    terminalreporter.write_line(f"scheduler calls through dask_exo: {len(CALLS)}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """Fail a run that proved nothing."""
    if THROUGH_EXO and exitstatus == 0 and not CALLS:
        session.exitstatus = 1
