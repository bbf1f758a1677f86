"""A computation that begins on threads and goes on elsewhere: refs, values, failures."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future

import numpy as np
import pandas as pd
import pytest

from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import FetchTimeoutError, Futures
from dask_exo.cluster.handover import HandoverFutures
from dask_exo.cluster.local import LocalFutures
from dask_exo.errors import ClusterError
from dask_exo.testing import InlineFutures


class Pair:
    """Both sides of a handover, and the promise of the second."""

    def __init__(self) -> None:
        self.there: Future[Futures] = Future()
        self.cluster = InlineFutures()
        self.futures = HandoverFutures(LocalFutures(2, 10**8), lambda: self.there)

    def move(self) -> None:
        self.futures.move()
        self.there.set_result(self.cluster)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def boom() -> None:
    raise KeyError("boom")


def test_tasks_stay_on_threads_until_the_cluster_is_there(pair) -> None:
    futures = pair.futures
    futures.submit(pow, 2, 5)
    futures.move()
    futures.submit(pow, 2, 5)
    assert (pair.cluster.calls, futures.shares_memory) == (0, True)
    pair.there.set_result(pair.cluster)
    assert futures.get([futures.submit(pow, 2, 5)]) == [32]
    assert (pair.cluster.calls, futures.calls, futures.shares_memory) == (1, 3, False)
    assert futures.nodes() == pair.cluster.nodes()


def test_a_value_is_copied_once_when_a_task_needs_it(pair) -> None:
    futures = pair.futures
    low, high = futures.split(2, divmod, 17, 5)
    unused = futures.put("never read")
    pair.move()
    refs = [futures.submit(pow, low, high, node="local") for _ in range(3)]
    assert futures.get([*refs, low, unused]) == [9, 9, 9, 3, "never read"]
    assert pair.cluster.objects == len(refs) + 2
    assert futures.put(low) is low


def test_a_call_waits_for_what_threads_still_compute(pair) -> None:
    gate, futures = threading.Event(), pair.futures
    slow = futures.submit(gate.wait, 60)
    pair.move()
    threading.Timer(0.05, gate.set).start()
    assert futures.get([futures.submit(str, slow)]) == ["True"]


def test_a_failure_on_a_thread_fails_what_reads_it(pair) -> None:
    futures = pair.futures
    failed = futures.submit(boom)
    pair.move()
    other = futures.submit(pow, 2, 2)
    with pytest.raises(KeyError, match="boom"):
        futures.get([futures.submit(print, failed, other)])


def test_refs_of_both_are_awaited_together(pair) -> None:
    gate, futures = threading.Event(), pair.futures
    slow = futures.submit(gate.wait, 60)
    pair.move()
    quick = futures.submit(pow, 2, 2)
    assert futures.wait([slow, quick], timeout=0) == ([quick], [slow])
    assert futures.wait([slow, quick]) == ([quick], [slow])
    with pytest.raises(FetchTimeoutError):
        futures.get([quick, slow], timeout=0.01)
    states = [status.state for status in futures.activity([quick, slow]).tasks]
    assert states == ["finished", "running"]
    gate.set()
    assert futures.get([quick, slow]) == [4, True]


def test_values_of_threads_are_copies_once_the_tasks_have_moved(pair) -> None:
    frame = pd.DataFrame({"a": [1, 2]})
    ref = pair.futures.put(frame)
    pair.move()
    pair.futures.submit(len, ref)
    (got,) = pair.futures.get([ref])
    got.loc[0, "a"] = 9
    assert frame.a.tolist() == [1, 2]


def test_unstarted_tasks_of_both_are_cancelled(pair) -> None:
    gate, futures = threading.Event(), pair.futures
    busy = [futures.submit(gate.wait, 60) for _ in range(2)]
    waiting = futures.submit(pow, 2, 2)
    pair.move()
    done = futures.submit(pow, 2, 2)
    futures.cancel([waiting, done])
    gate.set()
    assert futures.get([*busy, done]) == [True, True, 4]
    with pytest.raises(Exception, match="cancelled before it ran"):
        futures.get([waiting])


def test_without_a_cluster_the_work_goes_on_on_threads(pair) -> None:
    futures = pair.futures
    futures.move()
    pair.there.set_exception(ClusterError("no Ray could be started"))
    assert futures.get([futures.submit(pow, 2, 5)]) == [32]
    assert futures.shares_memory


def test_stores_and_generators_of_both_are_seen(pair) -> None:
    futures = pair.futures
    kept = futures.put(np.zeros(10**6))
    before = futures.store().used
    assert before >= 8 * 10**6
    pair.move()
    stream = futures.generate(lambda n: iter([n, "meta"]), futures.put(3))
    assert stream.read() == "meta"
    assert futures.get([stream.take()]) == [3]
    assert futures.store().used >= before
    assert futures.resources() == pair.cluster.resources()
    assert futures.recomputed() == []
    del kept


def test_busy_threads_hand_over_the_lock_sooner_while_ray_starts() -> None:
    usual = sys.getswitchinterval()
    started = on_ray.in_background(sys.getswitchinterval)
    assert started.result() < usual
    for thread in threading.enumerate():
        if thread.name == "dask_exo-connect":
            thread.join()
    assert sys.getswitchinterval() == usual
