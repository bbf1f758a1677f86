"""A workflow is killed: each of its external outputs exists once in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("kills", ["--drivers=20 --workers=0", "--drivers=0 --workers=5"])
def test_each_output_exists_once(kills) -> None:
    command = [sys.executable, "-m", "tests.faults.workflow", *kills.split()]
    place = Path(__file__).parents[2]
    done = subprocess.run(command, check=False, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "each output once" in done.stdout
