"""Workers of a program that was started in the background of a shell can be interrupted."""

from __future__ import annotations

import signal
from typing import Any

import ray

from dask_exo.cluster.on_ray import RayFutures, futures


def test_a_worker_that_ignored_interrupts_is_reset() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the shell does
    try:
        futures._listen.__wrapped__()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        mine = lambda *_: None  # noqa: E731
        signal.signal(signal.SIGINT, mine)
        futures._listen.__wrapped__()
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


def test_values_of_ending_nodes_are_copied_once(monkeypatch) -> None:
    copied: list[list[Any]] = []
    monkeypatch.setattr(futures, "leaving", lambda: frozenset({"b"}))
    monkeypatch.setattr(
        futures, "copy_away", lambda refs, ending, others: copied.append(refs) or refs
    )
    monkeypatch.setattr(RayFutures, "elastic", True)
    monkeypatch.setattr(RayFutures, "nodes", lambda self: [])
    refs = [ray.ObjectRef(bytes([i]) * 28) for i in (1, 2)]
    mine = RayFutures()
    mine.rescue(refs[:1])
    mine.rescue(refs)
    assert copied == [refs[:1], refs[1:]]
