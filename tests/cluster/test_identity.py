"""Instances of classes that only the main program has are those of its own classes everywhere."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).with_name("identity.py")
LEAST = {"ray": 36, "pipeline": 2, "threads": 32}  # things that are looked at


@functools.cache
def found(engine: str) -> dict[str, bool]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), engine],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    same: dict[str, bool] = json.loads(done.stdout.splitlines()[-1])
    return same


@pytest.mark.parametrize("engine", LEAST)
def test_what_comes_back_is_of_the_class_it_went_as(engine: str) -> None:
    same = found(engine)
    assert len(same) >= LEAST[engine]
    assert [name for name, is_same in same.items() if not is_same] == []
