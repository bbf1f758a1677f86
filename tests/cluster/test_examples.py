"""Each example runs as a user would run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests._data import run_python

pytestmark = pytest.mark.cluster

NEEDS = {"images": "PIL", "machine_learning": "dask_ml", "xarray_dask": "xarray"}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path) -> None:
    pytest.importorskip(NEEDS.get(example.stem, "dask"))
    done = run_python(example)
    assert done.returncode == 0, done.stderr
    assert done.stdout
