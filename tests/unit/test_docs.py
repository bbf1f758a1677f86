"""The pages' snippets run, and what they point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import dask
import pandas as pd
import pytest

import dask_exo
from dask_exo import Scheduler
from dask_exo.cluster import on_ray
from dask_exo.testing import InlineFutures

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
ROOMS = sorted(p.name for p in (ROOT / "dask_exo").iterdir() if (p / "__init__.py").exists())
# Pages whose blocks in Python all run, one after the other, except for those that say why not.
RUN = (
    *("why", "from-localcluster", "from-dask-on-ray", "from-ray-data", "from-spark"),
    *("memory", "doctor"),
)
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[bool, str]]:
    """Whether a block is to be run, and what is in it; doctests run by themselves."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(not reason, code) for reason, code in found if not code.startswith(">>>")]


@pytest.mark.parametrize("name", RUN)
def test_the_snippets_of_a_page_run(name, tmp_path, monkeypatch) -> None:
    if on_ray.running():
        pytest.skip("another test of this process runs Ray")
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / "docs" / f"{name}.md")
    assert found
    space: dict[str, object] = {"__name__": "snippet"}
    futures = InlineFutures()
    with dask.config.set({"scheduler": Scheduler(futures)}):
        for runs, code in found:
            compiled = compile(code, f"{name}.md", "exec")
            if runs:
                exec(compiled, space)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "index.md"], ids=str)
def test_the_first_snippet_runs_as_printed(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dask_exo, "get", Scheduler(InlineFutures()))
    Path("events").mkdir()
    for part in range(2):
        rows = pd.DataFrame({"user": ["b", "a", "b"], "amount": [1, 2, 3 + part]})
        rows.to_parquet(f"events/{part}.parquet")
    (_, code), *_ = blocks(page)
    with dask.config.set(scheduler=None):  # and what it was, afterwards
        exec(code, {"__name__": "snippet"})
    assert pd.read_parquet("out").amount.to_dict() == {"a": 4, "b": 9}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_of_python_are_python(page) -> None:
    for _, code in blocks(page):
        compile(code, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_a_page_names_are_there(page) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:tests|examples|asv_bench|docs)/[\w/.-]+)`", text):
        assert (ROOT / name.rstrip("/")).exists(), name
    for name in re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w/]+)(?:\.py)?`", text):
        path = ROOT / "dask_exo" / name
        assert path.is_dir() or path.with_suffix(".py").exists(), name
    for name in re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", text):
        assert (page.parent / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_is_long(page) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 200


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


def test_the_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len(links) > 10
    for name in links:
        assert (ROOT / name).exists(), name


def test_the_comparison_has_every_feature_and_says_where() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ") for line in re.findall(r"^\| \d+ .*$", text, re.MULTILINE)
    ]
    assert [row[0] for row in rows] == [str(i) for i in range(1, 41)]
    for number, _, mark, *rest in rows:
        *where, last = rest[: len(rest) - 8], rest[-1]
        assert mark in "●◐○"
        assert last in "●◐○\N{EN DASH}"
        if mark == "●":
            assert "`tests/" in str(where) or ".md" in str(where), number
