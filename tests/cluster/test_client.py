"""The client on a real cluster, where plain Python says what comes out."""

from __future__ import annotations

import gc
import operator
import os
import threading
import time
import uuid
from functools import partial

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo.client import (
    Client,
    Event,
    Lock,
    Queue,
    as_completed,
    default_client,
    futures_of,
    get_client,
    rejoin,
    secede,
    wait,
    worker_client,
)
from dask_exo.client import client as client_module
from dask_exo.cluster.on_ray import RayFutures, running
from dask_exo.dask_adapter import Task, TaskRef
from dask_exo.errors import ConfigError, UnsupportedError
from dask_exo.report import recording
from tests._data import run_python

pytestmark = pytest.mark.cluster

LARGE = 50_000  # numbers that are stored, and not kept by a worker


@pytest.fixture(scope="module")
def module_client(ray_cluster):
    with Client() as client:
        yield client


@pytest.fixture
def client(module_client):
    yield module_client
    gc.collect()
    assert eventually(lambda: not RayFutures().store().used), "values are left in the store"


def inc(x):
    return x + 1


def held(value, gate):
    while not gate.exists():
        time.sleep(0.02)
    return value


def eventually(true, seconds=20):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


class TestStoredValues:
    def test_a_large_value_is_in_the_store_once(self, client) -> None:
        data = client.submit(np.arange, LARGE, pure=False)
        wait(data)
        before = RayFutures().store().used
        sums = client.map(lambda i, x: x.sum() + i, range(4), x=data, pure=False)
        assert client.gather(sums) == [LARGE * (LARGE - 1) // 2 + i for i in range(4)]
        assert RayFutures().store().used <= before + 100_000
        assert data.type is np.ndarray
        assert client.nbytes([data.key], summary=False)[data.key] >= 8 * LARGE

    def test_results_may_be_written_to_and_inputs_are_copied(self, client) -> None:
        data = client.submit(np.zeros, LARGE, pure=False)

        def write(x):
            x[0] = 1
            return x.sum()

        assert client.submit(write, data).result() == 1
        values = data.result()
        values[0] = 5
        assert data.result()[0] == 0

    def test_scattered_values(self, client) -> None:
        data = client.scatter(np.arange(LARGE))
        assert client.submit(np.sum, data).result() == np.arange(LARGE).sum()
        small = client.scatter({"a": 1, "b": [2]})
        assert client.gather(small) == {"a": 1, "b": [2]}

    def test_another_client_of_distributed_gets_values(self, client) -> None:
        data = client.submit(np.arange, LARGE, key=uuid.uuid4().hex)
        wait(data)
        with distributed.Client(client.scheduler.address, set_as_default=False) as other:
            assert distributed.Future(data.key, other) is not None
            total = other.submit(np.sum, other.submit(np.arange, LARGE, pure=False)).result()
            assert total == np.arange(LARGE).sum()
            assert other.submit(np.arange, LARGE, pure=False).result().size == LARGE

    def test_dropped_values_leave_the_store(self, client) -> None:
        before = RayFutures().store().used
        data = client.submit(np.zeros, 10 * LARGE, pure=False)
        wait(data)
        assert RayFutures().store().used >= before + 3_000_000
        del data
        assert eventually(lambda: RayFutures().store().used < before + 3_000_000)

    def test_a_value_that_cannot_be_sent_stays_where_it_is(self, client) -> None:
        def generator():
            return (x for x in range(3))

        lazy = client.submit(generator, pure=False)
        assert client.submit(sum, lazy).result() == 3


class TestWorkers:
    def test_one_worker_for_each_slot(self, client) -> None:
        workers = client.scheduler_info()["workers"]
        assert [w["nthreads"] for w in workers.values()] == [1, 1]
        assert client.ncores() == client.nthreads() == dict.fromkeys(workers, 1)
        pids = client.run(os.getpid)
        assert len(set(pids.values())) == 2
        for address, pid in pids.items():
            chosen = client.submit(os.getpid, workers=[address], pure=False)
            assert chosen.result() == pid
            assert client.who_has(chosen) == {chosen.key: (address,)}

    def test_a_dead_worker_is_replaced_and_its_values_recomputed(self, client) -> None:
        parts = client.map(lambda i: np.full(LARGE, i), range(6), pure=False)
        copies = client.map(inc, parts, pure=False)
        wait(copies)
        address, pid = next(iter(client.run(os.getpid).items()))
        client.submit(os._exit, 1, workers=[address], retries=0, allow_other_workers=False)
        alive = partial(client.run, os.getpid, on_error="ignore")
        assert eventually(lambda: pid not in alive().values(), 60)
        assert [x.sum() for x in client.gather(copies)] == [LARGE * (i + 1) for i in range(6)]
        assert eventually(lambda: len(client.scheduler_info()["workers"]) == 2, 60)

    def test_restart_starts_new_processes(self, client) -> None:
        before = set(client.run(os.getpid).values())
        client.restart(timeout=60)
        assert not before & set(client.run(os.getpid).values())

    def test_actors(self, client) -> None:
        class Counter:
            n = 0

            def add(self, k):
                self.n += k
                return self.n

        counter = client.submit(Counter, actor=True).result()
        assert [counter.add(2).result(), counter.add(3).result(), counter.n] == [2, 5, 5]


def slowly(part: pd.DataFrame) -> pd.DataFrame:
    time.sleep(0.5)
    return part


class TestCollections:
    def test_compute(self, client, tmp_path) -> None:
        gate = tmp_path / "gate"
        lazy = dask.delayed(held)(1, gate)
        future = client.compute(lazy)
        after = client.submit(inc, future)
        assert (future.status, after.status) == ("pending", "pending")
        gate.touch()
        assert after.result() == 2
        frame = dd.from_pandas(pd.DataFrame({"x": range(10)}), npartitions=2)
        futures = client.compute([frame.x.sum(), "as it is", frame.x + 1])
        assert futures[1] == "as it is"
        total, _, series = client.gather(futures)
        assert (total, series.tolist()) == (45, list(range(1, 11)))
        array, nested = client.gather(client.compute([da.ones(10, chunks=3) + 1, [lazy]]))
        assert (array.tolist(), nested) == ([2.0] * 10, [1])
        assert client.compute(frame.x.sum(), sync=True) == 45

    def test_a_failed_collection(self, client) -> None:
        failed = client.compute(dask.delayed(operator.truediv)(1, 0))
        assert isinstance(client.submit(inc, failed).exception(), ZeroDivisionError)
        assert failed.status == "error"

    def test_a_released_result_that_a_task_needs(self, client, tmp_path) -> None:
        gate = tmp_path / "gate"
        after = client.submit(inc, client.compute(dask.delayed(held)(1, gate)), pure=False)
        gate.touch()
        assert after.result(timeout=30) == 2

    def test_a_result_that_nobody_needs_is_dropped(self, client, tmp_path) -> None:
        gate = tmp_path / "gate"
        future = client.compute(dask.delayed(held)(1, gate))
        assert future.status == "pending"
        key = future.key
        del future
        assert eventually(lambda: key not in client._results)
        gate.touch()

    def test_persist(self, client) -> None:
        frame = dd.from_pandas(pd.DataFrame({"x": range(100_000)}), npartitions=4)
        shuffled = frame.shuffle("x").map_partitions(slowly)  # short tasks would share a call
        kept, other = client.persist([shuffled, frame.x + 1])
        assert len(futures_of(kept)) == 4
        wait(kept)
        workers = {address for (address,) in client.who_has(futures_of(kept)).values()}
        assert len(workers) == 2
        assert (kept.x.sum().compute(), other.sum().compute()) == (4999950000, 5000050000)
        assert sum(client.gather(client.map(len, futures_of(kept)))) == 100_000
        assert dask.base.get_scheduler() == client.get
        assert len(futures_of(frame.persist())) == 4

    def test_graphs(self, client) -> None:
        graph = {"a": (inc, 1), "b": (operator.add, "a", 10)}
        assert client.get(graph, ["b", ["a"]]) == (12, (2,))
        assert client.gather(client.get(graph, ["b", ["a"]], sync=False)) == [12, [2]]
        (worker, *_) = client.scheduler_info()["workers"]
        assert client.get(graph, "b", workers=[worker]) == 12

    def test_futures_in_graphs(self, client) -> None:
        one, two = client.map(inc, [0, 1])
        assert dask.delayed(sum)([one, two]).compute() == 3
        assert dask.delayed(lambda d: d["k"][0])({"k": [two]}).compute() == 2
        assert dask.delayed(one).compute() == 1
        parts = [client.submit(pd.DataFrame, {"x": [i, i + 1]}) for i in range(3)]
        frame = dd.from_delayed(parts)
        assert sorted(frame.compute().x) == [0, 1, 1, 2, 2, 3]
        assert frame.groupby("x").size().compute().to_dict() == {0: 1, 1: 2, 2: 2, 3: 1}
        large = client.submit(np.ones, LARGE, pure=False)
        assert dask.delayed(np.sum)(large).compute() == LARGE

    def test_failed_and_unknown_futures_in_graphs(self, client) -> None:
        with pytest.raises(ZeroDivisionError):
            dask.delayed(inc)(client.submit(operator.truediv, 1, 0)).compute()
        with pytest.raises(KeyError, match="key of a live future"):
            client.get({"x": Task("x", inc, TaskRef("nobody's"))}, "x")

    def test_it_is_the_scheduler(self, client) -> None:
        frame = pd.DataFrame({"k": np.arange(1000) % 7, "v": np.arange(1000)})
        ddf = dd.from_pandas(frame, npartitions=4)
        with recording() as stats:
            result = ddf.groupby("k").v.sum().compute()
        pd.testing.assert_series_equal(result, frame.groupby("k").v.sum())
        assert stats.calls > 0
        shuffled = ddf.shuffle("k").compute()
        pd.testing.assert_frame_equal(shuffled.sort_values("v"), frame)


class TestInTasks:
    def test_a_task_that_submits(self, client) -> None:
        def fib(n):
            if n < 2:
                return n
            with worker_client() as inner:
                a, b = inner.submit(fib, n - 1), inner.submit(fib, n - 2)
                return sum(inner.gather([a, b]))

        def waiting():
            future = get_client().submit(inc, 1)
            secede()
            value = future.result()
            rejoin()
            return value

        assert client.submit(fib, 5).result() == 5
        assert client.gather(client.map(lambda _: waiting(), range(4))) == [2] * 4

    def test_collections_are_computed_on_the_cluster(self, client) -> None:
        def total(n):
            with recording() as stats:
                frame = dd.from_pandas(pd.DataFrame({"x": range(n)}), npartitions=2)
                value = frame.shuffle("x").x.sum().compute()
            later = get_client().compute(frame.x.sum()).result()
            return int(value), int(later), stats.calls > 0

        assert client.submit(total, 10).result() == (45, 45, True)

    def test_large_values_of_tasks_of_tasks(self, client) -> None:
        def scatter():
            data = distributed.get_client().scatter(np.arange(LARGE))
            return distributed.get_client().submit(np.sum, data).result()

        assert client.submit(scatter).result() == np.arange(LARGE).sum()

    def test_tasks_of_collections_find_the_client(self, client) -> None:
        def submitted(x):
            return (
                distributed.get_client().submit(inc, x).result()
                + get_client().submit(inc, x).result()
            )

        with dask.config.set({"exo.engine": "ray"}):
            assert db.range(4, npartitions=2).map(submitted).compute() == [2, 4, 6, 8]

    def test_locks_exclude_tasks_of_both_kinds(self, client, tmp_path) -> None:
        path, lock = tmp_path / "number", Lock()
        path.write_text("0")

        def add_one(_):
            with lock:
                number = int(path.read_text())
                time.sleep(0.02)
                path.write_text(str(number + 1))

        futures = client.map(add_one, range(5), pure=False)
        with dask.config.set({"exo.engine": "ray"}):
            db.range(5, npartitions=5).map(add_one).compute()
        wait(futures)
        assert path.read_text() == "10"

    def test_arrays_are_stored_under_a_lock(self, client) -> None:
        queue, event = Queue(), Event()
        queue.put(1)
        event.set()
        target = np.zeros(10)
        with dask.config.set({"exo.engine": "local"}):
            da.ones(10, chunks=5).store(target, lock=True)
        assert (target.sum(), queue.get(timeout=10), event.is_set()) == (10, 1, True)


class TestConnection:
    def test_it_is_found_by_distributed(self, client) -> None:
        assert distributed.default_client() is distributed.get_client() is client
        assert default_client() is get_client() is Client.current() is client
        assert isinstance(client, distributed.Client)
        assert dask_exo.Client is Client
        done = as_completed(client.map(inc, range(5)), with_results=True)
        assert sorted(value for _, value in done) == [1, 2, 3, 4, 5]
        assert client.dashboard_link.startswith("http://127.0.0.1:")

    def test_the_default_is_restored(self, client) -> None:
        before = dask.base.get_scheduler()
        with Client() as second:
            assert dask.base.get_scheduler() == second.get
            assert get_client() is second
            assert second.submit(inc, 1).result() == 2
        second.close()
        assert dask.base.get_scheduler() == before
        assert running()  # the cluster was there before

    def test_a_collected_client_waits_for_nobody(self, client) -> None:
        lost = dask_exo.Client()  # never closed
        thread = threading.Thread(target=lost.__del__)  # as the loop of a client may call it
        with client_module._lock:  # as while another client starts
            thread.start()
            thread.join(30)
            assert not thread.is_alive()
        assert lost.status == "closed"
        assert client.submit(abs, -1).result() == 1

    def test_asynchronous(self, client) -> None:
        async def program():
            async with Client(client.scheduler.address, asynchronous=True) as inner:
                total = dd.from_pandas(pd.DataFrame({"x": range(10)}), npartitions=2).x.sum()
                return await inner.submit(inc, 1), await inner.compute(total), await total_of(inner)

        async def total_of(inner):
            return await inner.get({"x": (inc, 1)}, "x")

        loop = distributed.utils.LoopRunner()
        assert loop.run_sync(program) == (2, 45, 2)

    def test_arguments(self) -> None:
        with pytest.raises(ConfigError, match="address"):
            Client("10.1.2.3:6379")
        with pytest.raises(UnsupportedError, match="security"):
            Client(security=True)
        with pytest.raises(TypeError, match="n_wokers"):
            Client(n_wokers=2)
        with pytest.warns(UserWarning, match="memory_limit"):
            Client(memory_limit="1GB").close()


def test_without_ray_there_is_no_client() -> None:
    done = run_python("-c", "import dask_exo.client; dask_exo.client.get_client()")
    assert "NoClientError: there is no client: create one with dask_exo.Client()" in done.stderr


PROGRAM = """
import dask
import numpy as np
from dask_exo.client import Client
from dask_exo.cluster.on_ray import running

if __name__ == "__main__":
    client = Client(n_workers=3, threads_per_worker=2, object_store_memory="200MB")
    assert not client.cluster.workers  # they start with the first task
    assert dask.delayed(abs)(-1).compute() == 1
    assert not client.cluster.workers
    assert list(client.nthreads().values()) == [2, 2, 2]
    late = client.submit(np.zeros, 100_000)
    second = Client()  # the same cluster
    client.close()
    assert second.submit(abs, -1).result() == 1
    second.close()
    assert not running()
    assert late.cancelled()
    assert dask.config.get("scheduler", None) is None
    client = Client(num_cpus=1)
    assert client.submit(abs, -2).result() == 2
    print("end")
"""


@pytest.mark.slow
def test_a_program_that_starts_and_stops_its_own_ray(tmp_path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = run_python(path, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "end\n"
