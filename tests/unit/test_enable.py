"""`enable` believes nothing: it reads back what Dask will use."""

from __future__ import annotations

import importlib
from concurrent.futures import Future
from pathlib import Path

import dask
import pytest

from dask_exo.cluster.on_ray import Cluster
from dask_exo.errors import NotEnabledError, SpillError
from tests._data import run_python

get_module = importlib.import_module("dask_exo.enable")


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that a cluster can be started, even if a test before has moved to one."""
    monkeypatch.setattr(get_module.on_ray, "running", lambda: False)
    started: Future[Cluster] = Future()
    started.set_result(Cluster("somewhere", Path("/nowhere")))
    monkeypatch.setattr(get_module, "start", lambda _: started)


def test_a_foreign_shuffle_is_refused_and_settings_undone(monkeypatch) -> None:
    monkeypatch.setattr(get_module, "get_default_shuffle_method", lambda: "disk")
    before = dask.config.get("scheduler", None)
    with pytest.raises(NotEnabledError, match="shuffle by 'disk' and not by 'tasks'"):
        get_module.enable()
    assert dask.config.get("scheduler", None) is before


def test_another_effective_scheduler_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(dask.base, "get_scheduler", lambda: dask.get)
    with pytest.raises(NotEnabledError, match="and not on dask_exo"):
        get_module.enable()


def test_blocks_of_enable_nest() -> None:
    with get_module.enable(**{"shuffle.algorithm": "push"}):
        with get_module.enable(**{"shuffle.algorithm": "simple"}):
            assert dask.config.get("exo.shuffle.algorithm") == "simple"
        assert dask.config.get("exo.shuffle.algorithm") == "push"
        assert dask.base.get_scheduler() is get_module.get
    assert dask.config.get("exo.shuffle.algorithm") == "auto"


def test_a_spill_directory_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = dask.config.get("scheduler", None)
    with pytest.raises(SpillError, match=r"exo\.spill-directory"):
        get_module.enable(spill_directory=str(tmp_path / "file"))
    assert dask.config.get("scheduler", None) is before


def test_packages_are_attributes_though_they_are_imported_late() -> None:
    program = (
        "import dask_exo; dask_exo.pipeline.of, dask_exo.client.Lock, dask_exo.training.spread"
    )
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
