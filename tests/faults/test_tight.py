"""A machine whose memory is too small for all tasks side by side, on real Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.faults.tight import FREE, OF_RAY, SLOTS, TASKS

pytestmark = [pytest.mark.cluster, pytest.mark.faults]


def program(gigabytes: float, *how: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.tight", str(gigabytes), *how],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", ["tasks", "shuffled"])
@pytest.mark.parametrize("how", ["local", "joined"])
def test_tasks_that_are_stopped_run_again_with_fewer_neighbours(how: str, what: str) -> None:
    answer = program(FREE / 2e9 * 1.2, how, what)  # two beside each other are all that can be
    assert answer["result"] == list(range(TASKS))
    assert answer["gave way"]
    assert all(1 < slots <= SLOTS for slots in answer["gave way"])


@pytest.mark.parametrize("what", ["tasks", "shuffled"])
@pytest.mark.parametrize("how", ["local", "joined"])
def test_a_task_that_is_too_large_alone_says_what_to_change(how: str, what: str) -> None:
    answer = program((OF_RAY + FREE) / 1e9 * 1.2, how, what)
    assert "with no other task beside it" in answer["text"]
    assert "npartitions=" in answer["text"]
    assert answer["gave way"][-1] == SLOTS
