"""Each example runs as a user would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

NEEDS = {"images": "PIL", "machine_learning": "dask_ml", "xarray_dask": "xarray"}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path) -> None:
    pytest.importorskip(NEEDS.get(example.stem, "dask"))
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
