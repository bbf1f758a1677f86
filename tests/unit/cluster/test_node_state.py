"""What a driver takes for the state of a node just now."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from types import SimpleNamespace

from dask_exo.cluster.on_ray import node_state
from dask_exo.cluster.on_ray.node_state import OLD, NodeState, NodeStates


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
