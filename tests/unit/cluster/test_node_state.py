"""What a driver takes for the state of a node just now."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import FrameType, SimpleNamespace

from dask_exo.cluster.on_ray import node_state
from dask_exo.cluster.on_ray.node_state import OLD, NodeState, NodeStates, Reporter


def test_an_old_report_does_not_count_for_who_has_not_looked_for_long(monkeypatch) -> None:
    now, there = [1000.0], 5e9  # the clock of the node is another
    report = {"time": there + now[0]}

    def multi_get(keys: list[bytes], place: bytes) -> dict[bytes, str]:
        return {key: json.dumps(asdict(NodeState(report["time"], 0.5))) for key in keys}

    client = SimpleNamespace(internal_kv_multi_get=multi_get)
    monkeypatch.setattr(node_state.internal_kv, "internal_kv_get_gcs_client", lambda: client)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    states = NodeStates()
    assert states.memory(["a"]) == {}  # it may be from yesterday
    assert states.read(["a"])["a"].memory == 0.5
    for _ in range(3):
        now[0] += 1
        report["time"] = there + now[0]
        assert states.memory(["a"]) == {"a": 0.5}
    report["time"] += 1  # the last report, a second after the last look
    now[0] += OLD + 2
    assert states.memory(["a"]) == {}


@contextlib.contextmanager
def interrupted(steps: int) -> Iterator[None]:
    """Raise KeyboardInterrupt before some instruction, as Ray does to cancel a task."""
    left = steps

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object]:
        nonlocal left
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left < 0 and event == "opcode":
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(old)


def run_call(reporter: Reporter) -> None:
    with reporter.running():
        pass


def test_what_a_node_is_after_its_last_call_is_reported(monkeypatch, tmp_path) -> None:
    reports: list[float] = []
    now, turn = [1000.0], tmp_path / "turn"

    def looks_after(seconds: float, *reporters: Reporter) -> None:
        now[0] += seconds
        for each in reporters:
            before = len(reports)
            each.take_turn(turn)
            if len(reports) > before:
                os.utime(turn, (now[0], now[0]))

    monkeypatch.setattr(Reporter, "_work", lambda self: None)
    monkeypatch.setattr(node_state, "wall_time", lambda: now[0])
    monkeypatch.setattr(node_state, "report", lambda: reports.append(now[0]))
    reporter, other = Reporter(), Reporter()  # of two workers of the node
    run_call(other)
    run_call(reporter)  # no look falls into it
    for _ in range(4):
        looks_after(0.75, reporter, other)
    assert reports == [1000.75, 1002.25]  # one is a second after the call, or later
    with reporter.running():
        for _ in range(4):
            looks_after(0.75, reporter)
    assert reports[2:] == [1003.75, 1005.25]
    for _ in range(9):
        looks_after(0.75, reporter)
    assert reports[4:] == [1006.75, 1008.25]


def test_a_call_runs_wherever_the_one_before_it_was_interrupted(monkeypatch) -> None:
    monkeypatch.setattr(Reporter, "_work", lambda self: None)
    reporter = Reporter()
    run_call(reporter)
    for steps in itertools.count():
        try:
            with interrupted(steps):
                run_call(reporter)
        except KeyboardInterrupt:
            next_call = threading.Thread(target=run_call, args=[reporter], daemon=True)
            next_call.start()
            next_call.join(timeout=5)
            assert not next_call.is_alive(), f"after {steps} instructions"
        else:
            break
    assert steps > 20
