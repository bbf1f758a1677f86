"""An algorithm of the papers is a page: lines of code without comments and docstrings.

Neither is ``cost`` counted, an estimate that the papers' figures leave out.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dask_exo.shuffle.algorithms

FOLDER = Path(dask_exo.shuffle.algorithms.__file__).parent
PAPER = {"simple": 215, "riffle": 265, "push": 256, "magnet": 256}  # table 3.2 of the thesis


def lines_of_code(source: str) -> int:
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        estimate = isinstance(node, ast.FunctionDef) and node.name == "cost"
        if isinstance(node, ast.Expr | ast.FunctionDef) and (text or estimate):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in skipped
        for number, line in enumerate(source.splitlines(), 1)
    )


def test_lines_are_counted_without_words() -> None:
    assert lines_of_code('"""Says."""\n\nx = 1  # y\n# z\ndef f():\n    """A\n    b."""\n') == 2
    assert lines_of_code("x = 1\ndef cost():\n    return 2\n") == 1


@pytest.mark.parametrize("name", ["simple", "push", "magnet", "riffle", "two_level", "streaming"])
def test_an_algorithm_has_at_most_a_quarter_of_the_papers_lines(name: str) -> None:
    lines = lines_of_code((FOLDER / f"{name}.py").read_text())
    assert lines <= PAPER.get(name, 256) / 4
