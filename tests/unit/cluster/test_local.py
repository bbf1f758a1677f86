"""The waist on threads: the contract of `Futures`, memory, actors, generators."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dask_exo.cluster.futures import FetchTimeoutError, shares_process
from dask_exo.cluster.local import LocalFutures
from dask_exo.cluster.spilling import SpillingStore, StoredRef
from dask_exo.errors import SpillError, WorkerLostError

MB = 10**6


@pytest.fixture
def futures() -> LocalFutures:
    return LocalFutures(2, 100 * MB)


def boom(*_: object) -> None:
    raise KeyError("boom")


def test_a_task_waits_for_its_arguments(futures) -> None:
    gate = threading.Event()
    first = futures.submit(gate.wait, 60)
    second = futures.submit(lambda x, y: (x, y), first, first)
    assert futures.wait([second], timeout=0) == ([], [second])
    gate.set()
    assert futures.get([second]) == [(True, True)]
    assert futures.wait([first, second])[1] == []
    assert (futures.calls, futures.objects) == (2, 2)


def test_as_many_tasks_run_as_there_are_slots(futures) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    futures.get([futures.submit(work) for _ in range(8)])
    assert most == 2
    wide = [futures.submit(work, options={"num_cpus": 2}) for _ in range(3)]
    most = 0
    futures.get(wide)
    assert most == 1
    assert futures.resources(free=True) == {"CPU": 2}


def test_tasks_that_wait_for_their_own_tasks_hold_no_slot(futures) -> None:
    def outer(depth: int) -> int:
        return futures.get([futures.submit(outer, depth - 1)])[0] + 1 if depth else 0

    assert futures.get([futures.submit(outer, 5) for _ in range(4)], timeout=60) == [5] * 4


def test_failures_reach_all_that_depend_on_them(futures) -> None:
    refs = futures.split(2, boom)
    last = futures.submit(max, *refs)
    for ref in (*refs, last):
        with pytest.raises(KeyError, match="boom"):
            futures.get([ref])
    few = futures.stream(3, lambda: iter([1]))
    assert futures.get(few[:1]) == [1]
    with pytest.raises(ValueError, match="yielded 1 values, submitted with count=3"):
        futures.get(few[1:])

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(WorkerLostError, match="SystemExit"):
        futures.get([futures.submit(leave)])


def test_values_that_are_late_time_out(futures) -> None:
    gate = threading.Event()
    late = futures.submit(gate.wait, 60)
    with pytest.raises(FetchTimeoutError):
        futures.get([late], timeout=0.01)
    assert futures.activity([late]).tasks[0].state == "running"
    gate.set()
    futures.get([late])
    assert futures.activity([late]).tasks[0].state == "finished"


def test_cancelled_tasks_do_not_start(futures) -> None:
    gate, ran = threading.Event(), []
    busy = [futures.submit(gate.wait, 60) for _ in range(2)]
    queued = futures.submit(ran.append, 1)
    depends = futures.submit(ran.append, queued)
    futures.cancel([queued, *busy])
    gate.set()
    with pytest.raises(WorkerLostError, match="cancelled"):
        futures.get([depends])
    assert futures.get(busy) == [True, True]
    assert ran == []


def test_values_are_shared_and_arrays_read_only(futures) -> None:
    array = np.zeros(10)
    ref = futures.put(array)

    def write(values: np.ndarray) -> None:
        values[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        futures.get([futures.submit(write, ref)])
    same = futures.submit(lambda values: np.shares_memory(values, array), ref)
    assert futures.get([same]) == [True]
    assert futures.get([futures.submit(shares_process)]) == [True]
    assert not shares_process()


def test_beyond_the_limit_values_are_spilled_and_read_back(tmp_path: Path) -> None:
    futures = LocalFutures(2, 3 * MB, str(tmp_path))

    def numbers(i: int) -> np.ndarray:
        return np.full(MB // 8, i)

    refs = [futures.submit(numbers, i) for i in range(10)]
    assert [array[0] for array in futures.get(refs)] == list(range(10))
    usage = futures.store()
    assert usage.used <= 3 * MB
    assert usage.spilled == usage.restored == 10 * MB
    futures.get(refs)
    assert futures.store().spilled == 10 * MB  # nothing is written twice
    (disk,) = futures.disks()
    assert disk.used == sum(file.stat().st_size for file in tmp_path.rglob("*.value")) // MB * MB
    assert Path(disk.path).stat().st_mode & 0o77 == 0  # nobody else reads it
    assert futures.get([futures.submit(lambda a: a.sum(), refs[1])]) == [MB // 8]
    del refs
    assert futures.store().used == 0
    assert not list(tmp_path.rglob("*.value"))
    del futures
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_stays_in_memory(tmp_path: Path) -> None:
    futures = LocalFutures(1, 10, str(tmp_path))

    class Locked:
        def __init__(self) -> None:
            self.lock, self.data = threading.Lock(), bytes(MB)

        def __sizeof__(self) -> int:
            return MB

    ref = futures.put(Locked())
    assert futures.get([ref])[0].data == bytes(MB)
    assert futures.store().spilled == 0


def test_a_disk_that_cannot_be_written_is_named() -> None:
    futures = LocalFutures(1, 10, "/proc/nowhere")
    with pytest.raises(SpillError, match=r"exo.spill-directory="):
        futures.get([futures.submit(bytes, MB)])


class Counter:
    def __init__(self, start: int) -> None:
        self.count = start


def add(counter: Counter, n: int) -> int:
    before = counter.count
    time.sleep(0.001)  # two at a time would lose one
    counter.count = before + n
    return counter.count


def test_an_actor_holds_its_resources_and_runs_one_call_at_a_time(futures) -> None:
    actor = futures.actor({"num_cpus": 1}, Counter, futures.put(5))
    assert max(futures.get([actor.submit(add, 1) for _ in range(20)])) == 25
    assert futures.resources(free=True)["CPU"] == 1
    assert futures.get(actor.split(2, lambda c: (c.count, 7))) == [25, 7]
    actor.retire()
    late = futures.submit(bool, options={"num_cpus": 2})
    assert futures.get([late], timeout=60) == [False]
    actor.stop()  # again


def test_the_calls_of_a_stopped_actor_fail(futures) -> None:
    gate = threading.Event()
    actor = futures.actor({})
    first, second = actor.submit(gate.wait, 60), actor.submit(int)
    while futures.activity([first]).tasks[0].state != "running":
        time.sleep(0.001)
    actor.stop()
    with pytest.raises(WorkerLostError):
        futures.get([second], timeout=60)
    gate.set()
    assert futures.get([first]) == [True]
    assert futures.resources(free=True) == {"CPU": 2}


def test_an_actor_that_fails_to_start_fails_its_calls(futures) -> None:
    actor = futures.actor({}, Counter)  # without its argument
    with pytest.raises(TypeError, match="start"):
        futures.get([actor.submit(add, 1)], timeout=60)


@pytest.mark.parametrize("on_actor", [False, True])
def test_a_generator_is_one_value_ahead(futures, on_actor) -> None:
    made = []

    def count(*args: int) -> object:
        for i in range(args[-1]):
            made.append(i)
            yield i
            yield f"meta {i}"

    generate = futures.actor({}, Counter, 0).generate if on_actor else futures.generate
    stream = generate(count, futures.put(3))
    assert futures.wait([stream.next], timeout=60)[0]
    assert made == [0]
    values = []
    while (metadata := stream.read()) is not None:
        values.append((futures.get([stream.take()])[0], metadata))
    assert values == [(i, f"meta {i}") for i in range(3)]
    other = generate(count, 2)
    other.read()
    other.cancel()
    other.take()
    assert other.read() is None


def test_memory_of_running_tasks_counts_up_to_three_quarters_of_the_limit() -> None:
    store = SpillingStore(100 * MB)
    grown = SimpleNamespace(rss=0)
    store._process = SimpleNamespace(memory_info=lambda: grown)
    store._before = 0
    refs = [StoredRef() for _ in range(9)]
    grown.rss = 130 * MB  # of which tasks have 40 to 110
    for ref in refs:
        store.put(ref, np.zeros(10 * MB // 8))
    assert store.usage().used == 20 * MB
    grown.rss = 50 * MB
    assert [store.get(ref).nbytes for ref in refs] == [10 * MB] * 9
    assert store.usage().used == 20 * MB + 7 * 10 * MB
