"""The notebooks run from top to bottom, each in a kernel of its own, all on one Ray."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from dask_exo.cluster.on_ray import connection as clusters
from dask_exo.config import Config

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.cluster


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def shown(notebook: nbformat.NotebookNode) -> str:
    """All that its cells have shown, as text and as HTML."""
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    texts = [text for out in outputs for text in out.get("data", {}).values()]
    return "\n".join([*texts, *(out["text"] for out in outputs if "text" in out)])


SHOWN = {
    "faults": ("999 is no price", "8 of 8 partitions are stored"),
    "pipelines": ("ValueError: a bad picture",),
    "quickstart": ("push, since 2.73 TiB exceed", "computation(s)", "report.html"),
}


def test_each_notebook_is_known() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SHOWN)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_has_shown(path: Path) -> None:
    for cell in read(path).cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, cluster: None, tmp_path: Path, monkeypatch) -> None:
    address = clusters.connect(Config.current())[0].address
    monkeypatch.setenv("DASK_EXO__ADDRESS", address)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = read(path)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for words in SHOWN[path.stem]:
        assert words in shown(notebook)
