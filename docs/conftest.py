"""Snippets of the pages run as doctests, each page by itself."""

import copy
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

import dask_exo  # noqa: F401  has the defaults of our settings

collect_ignore = ["drawings.py"]  # needs matplotlib


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each page a directory of its own; restore our settings afterwards."""
    monkeypatch.chdir(tmp_path)
    before = copy.deepcopy(dask.config.get("exo"))
    yield
    dask.config.set(exo=before)
