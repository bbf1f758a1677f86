"""Samples of running code: the functions of a task, and no others; what a worker has printed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from dask_exo.cluster import sampling
from dask_exo.cluster.sampling import TaskSamples, printed
from tests._data import run_python


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        deeper()


def deeper() -> int:
    return sum(range(2000))


def run(seconds: float) -> TaskSamples | None:
    with sampling.sampling(__name__ + ".machinery", on=True) as take:
        exec(MACHINERY, {"__name__": __name__ + ".machinery", "busy": busy, "seconds": seconds})
        return take()


MACHINERY = "def task():\n    busy(seconds)\ntask()"


def test_a_stack_begins_with_what_the_machinery_calls() -> None:
    before = set(threading.enumerate())
    samples = run(2.0)
    assert samples is not None
    stacks = Counter(dict(samples.stacks))
    assert stacks.total() >= 5
    assert {stack[0].split()[0] for stack in stacks} == {"busy"}
    inner = {stack[1].split()[0] for stack in stacks if len(stack) > 1}
    assert inner == {"deeper"}
    _, place = stacks.most_common(1)[0][0][0].split(" ")
    assert place.startswith("cluster/test_sampling.py:")
    assert set(threading.enumerate()) <= before


def test_tasks_shorter_than_the_pause_get_their_share() -> None:
    taken = [run(0.4 * sampling.INTERVAL) for _ in range(50)]
    assert sum(Counter(dict(samples.stacks)).total() for samples in taken if samples) >= 5


def test_what_does_not_run_for_a_task_is_left_out() -> None:
    with sampling.sampling("nobody.runs.this", on=True) as take:
        busy(0.2)
        samples = take()
    assert samples is not None
    assert samples.stacks == {}


def test_without_an_observer_nothing_is_sampled() -> None:
    before = threading.active_count()
    with sampling.sampling(__name__, on=False) as take:
        assert threading.active_count() == before
        assert take() is None


def test_the_load_of_a_machine_is_read_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_next_reading", 0.0)
    first = sampling._load()
    assert first is not None
    assert first.processors > 0
    assert sampling._load() is None


class Nvml:
    """Stand-in for pynvml: two GPUs, or a driver that does not tell how busy they are."""

    NVMLError = OSError

    def __init__(self, busy: list[int] | None) -> None:
        self.busy = busy

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> SimpleNamespace:  # noqa: N802
        if self.busy is None:
            raise OSError("not supported")
        return SimpleNamespace(gpu=self.busy[gpu], memory=0)


@pytest.mark.parametrize(("busy", "used"), [([30, 90], 1.2), (None, None)])
def test_gpus_in_use_are_those_that_run_kernels(
    monkeypatch: pytest.MonkeyPatch, busy: list[int] | None, used: float | None
) -> None:
    monkeypatch.setattr(sampling, "_gpus", lambda: (Nvml(busy), [0, 1]))
    monkeypatch.setattr(sampling, "_next_reading", 0.0)
    load = sampling._load()
    assert load is not None
    assert load.gpus == (None if used is None else pytest.approx(used))


PRINTING = """
import sys
from dask_exo.cluster import sampling
sampling.shares_process = lambda: False  # as in a worker
print(":task_name:f")  # of Ray
print("read 7 rows")
print("odd row", file=sys.stderr)
with open(sys.argv[1], "w") as file:
    file.write(sampling.printed())
"""


def test_the_last_lines_of_a_worker_are_read(tmp_path) -> None:
    assert printed() == ""  # of the program itself
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        command = [sys.executable, "-c", PRINTING, str(tmp_path / "found")]
        subprocess.run(command, stdout=out, stderr=err, check=True)
    assert (tmp_path / "found").read_text().splitlines() == ["read 7 rows", "odd row"]
    piped = run_python("-c", PRINTING, tmp_path / "found")
    assert piped.returncode == 0, piped.stderr
    assert (tmp_path / "found").read_text() == ""
