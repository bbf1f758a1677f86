"""The bugs that `tests/mutations/run` plants can be planted, and what should find them is there."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUGS = runpy.run_path(str(ROOT / "tests" / "mutations" / "bugs.py"))["BUGS"]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Any) -> None:
    text = (ROOT / "dask_exo" / bug.file).read_text(encoding="utf-8")
    assert text.count(bug.old) == 1
    ast.parse(text.replace(bug.old, bug.new))
    for one in bug.tests:
        path, _, test = one.partition("::")
        assert test.split("[")[0] in (ROOT / path).read_text(encoding="utf-8")


def test_there_are_enough_of_them_and_each_has_a_name() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
