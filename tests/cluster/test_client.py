"""The client on a real cluster, where plain Python says what comes out."""

from __future__ import annotations

import concurrent.futures
import gc
import html
import operator
import pickle
import queue
import threading
import time
import traceback
import uuid
from typing import NamedTuple

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
    Future,
    as_completed,
    default_client,
    fire_and_forget,
    futures_of,
    get_client,
    rejoin,
    secede,
    wait,
    worker_client,
)
from dask_exo.cluster.on_ray import RayFutures, running
from dask_exo.dask_adapter import Task, TaskRef
from dask_exo.errors import (
    CancelledError,
    ClusterError,
    ConfigError,
    NoClientError,
    SerializationError,
    UnsupportedError,
)
from dask_exo.report import recording
from tests._data import run_python

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def inc(x):
    return x + 1


def held(value, gate):
    """Return ``value`` once the file ``gate`` exists."""
    while not gate.exists():
        time.sleep(0.01)
    return value


def eventually(true, seconds=20):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    return true()


class Pair(NamedTuple):
    left: object
    right: object


class TestSubmit:
    def test_value_type_and_status(self, client, tmp_path) -> None:
        gate = tmp_path / "gate"
        future = client.submit(held, 41, gate)
        assert (future.status, future.done(), future.type) == ("pending", False, None)
        assert repr(future) == f"<Future: pending, key: {future.key}>"
        with pytest.raises(TimeoutError):
            future.result(timeout="50ms")
        with pytest.raises(TimeoutError):
            future.exception(timeout=0.05)
        gate.touch()
        assert future.result() == 41
        assert (future.status, future.done(), future.type) == ("finished", True, "int")
        assert (future.exception(), future.traceback(), future.cancelled()) == (None, None, False)
        assert repr(future) == f"<Future: finished, type: int, key: {future.key}>"

    def test_html_is_escaped(self, client) -> None:
        future = client.submit(inc, 1, key="<script>")
        future.result()
        assert html.escape("<script>") in future._repr_html_()
        assert "<script>" not in future._repr_html_()
        assert "Ray at" in client._repr_html_()
        assert "running" in repr(client)

    def test_futures_anywhere_in_the_arguments(self, client) -> None:
        one, two = client.submit(inc, 0), client.submit(inc, 1)
        nested = [one, (two, {"x": [one], 3: {4}}), Pair(one, 2)]
        future = client.submit(lambda *args, **kwargs: (args, kwargs), one, nested, k={"y": two})
        assert future.result() == ((1, [1, (2, {"x": [1], 3: {4}}), Pair(1, 2)]), {"k": {"y": 2}})
        assert isinstance(future.result()[0][1][2], Pair)

    def test_a_future_in_a_closure_stays_one(self, client) -> None:
        one = client.submit(inc, 0)
        assert client.submit(lambda: (one.done(), one.result(), one.key)).result() == (
            True,
            1,
            one.key,
        )

    def test_a_future_that_a_task_returns(self, client) -> None:
        inner = client.submit(lambda: get_client().submit(inc, 1)).result()
        assert isinstance(inner, Future)
        assert inner.result() == 2
        assert client.submit(inc, inner).result() == 3
        failed = client.submit(lambda: get_client().submit(operator.truediv, 1, 0)).result()
        with pytest.raises(ZeroDivisionError):
            failed.result()

    def test_a_pickled_future_has_its_value_with_it(self, client) -> None:
        key = client.submit(inc, 1, key="mine")
        data = pickle.dumps(key)
        del key
        gc.collect()
        back = pickle.loads(data)  # noqa: S301
        assert (back.key, back.status, back.result()) == ("mine", "finished", 2)

    def test_one_key_is_one_future_while_it_lives(self, client) -> None:
        first = client.submit(uuid.uuid4)
        assert client.submit(uuid.uuid4) is first
        assert client.submit(uuid.uuid4, pure=False) is not first
        named = client.submit(inc, 1, key="a")
        assert client.submit(inc, 2, key="a") is named
        value = first.result()
        del first
        gc.collect()
        assert client.submit(uuid.uuid4).result() != value

    def test_retries(self, client, tmp_path) -> None:
        path = tmp_path / "tries"

        def third_time(path):
            with path.open("a") as file:
                file.write("x")
            if len(path.read_text()) < 3:
                raise OSError("busy")
            return "done"

        assert client.submit(third_time, path, retries=5).result() == "done"
        assert path.read_text() == "xxx"
        path.unlink()
        with pytest.raises(OSError, match="busy"):
            client.submit(third_time, path, retries=1, pure=False).result()
        assert path.read_text() == "xx"

    def test_a_coroutine_function(self, client) -> None:
        async def double(x):
            return 2 * x

        assert client.submit(double, 4).result() == 8

    def test_a_task_may_write_into_its_arguments(self, client) -> None:
        def fill(array):
            array[:] = 7
            return int(array.sum())

        zeros = client.scatter(np.zeros(1_000_000))
        assert client.submit(fill, zeros).result() == 7_000_000
        value = zeros.result()
        value[0] = 1  # ours, too
        assert zeros.result().sum() == 0

    def test_resources(self, client) -> None:
        assert client.submit(inc, 1, resources={"CPU": 2}).result() == 2
        with dask.annotate(resources={"CPU": 2}):
            assert client.submit(inc, 2).result() == 3
        with pytest.warns(UserWarning, match="no node of the cluster has .*unobtainium"):
            never = client.submit(inc, 3, resources={"unobtainium": 1})
        never.cancel()

    def test_what_cannot_be_sent(self, client) -> None:
        with pytest.raises(SerializationError, match=r"with_lock.* cannot be sent"):
            client.submit(inc, threading.Lock(), key="with_lock")
        assert client.submit(inc, 1, key="with_lock").result() == 2  # the key is free again
        with pytest.raises(TypeError, match="pickle"):
            client.submit(threading.Lock).result()

    def test_what_does_not_exist_here(self, client) -> None:
        with pytest.raises(TypeError, match="function first"):
            client.submit(1)
        with pytest.raises(UnsupportedError, match="actor"):
            client.submit(dict, actor=True)
        with pytest.warns(UserWarning, match="workers= has no effect"):
            assert client.submit(inc, 1, workers="alice").result() == 2

    def test_every_other_name_of_distributed_says_so(self, client) -> None:
        ours = {name for name in dir(distributed.Client) if hasattr(client, name)}
        missing = {name for name in dir(distributed.Client) if not name.startswith("_")} - ours
        assert {"who_has", "run", "upload_file", "restart", "dashboard_link"} <= missing
        assert {"submit", "map", "gather", "scatter", "compute", "persist", "get"} <= ours
        for name in missing:
            with pytest.raises(NotImplementedError, match=rf"Client\.{name} .*docs/client\.md"):
                getattr(client, name)
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            client.nonsense  # noqa: B018


class TestErrors:
    def test_type_traceback_and_key(self, client) -> None:
        future = client.submit(operator.truediv, 1, 0, key="quotient")
        with pytest.raises(ZeroDivisionError) as caught:
            future.result()
        assert caught.value.__notes__ == ["dask_exo: raised by task 'quotient'"]
        assert (future.status, future.done()) == ("error", True)
        assert isinstance(future.exception(), ZeroDivisionError)

        def outer():
            raise KeyError("k")

        tb = client.submit(outer).traceback()
        assert "outer" in [frame.name for frame in traceback.extract_tb(tb)]

    def test_those_that_depend_on_it_fail_with_the_same(self, client) -> None:
        first = client.submit(operator.truediv, 1, 0)
        third = client.submit(inc, [client.submit(inc, first)])
        with pytest.raises(ZeroDivisionError):
            third.result()
        assert third.status == "error"

    def test_no_task_after_a_failure_that_is_known(self, client) -> None:
        failed = client.compute(dask.delayed(operator.truediv)(1, 0))
        wait(failed)
        with recording(), pytest.raises(ZeroDivisionError):
            client.submit(inc, failed).result()

    def test_a_worker_that_dies(self, client) -> None:
        import os

        future = client.submit(os._exit, 1)
        with pytest.raises(RuntimeError, match="died"):
            future.result()
        assert future.status == "error"


class TestMany:
    def test_map(self, client) -> None:
        assert client.gather(client.map(operator.add, range(5), [10, 20, 30])) == [10, 21, 32]
        futures = client.map(inc, range(200))
        assert client.gather(futures) == list(range(1, 201))
        assert client.map(inc, range(3)) == futures[:3]
        assert [f.key for f in client.map(inc, [1, 2], key=["a", "b"])] == ["a", "b"]
        assert all(f.key.startswith("mine-") for f in client.map(inc, [1, 2], key="mine"))
        assert client.gather(client.map(pow, [2, 3], exp=2, batch_size=1)) == [4, 9]
        assert len(set(client.gather(client.map(lambda _: uuid.uuid4(), [1, 1], pure=False)))) == 2
        with pytest.raises(TypeError, match="iterators"):
            client.map(inc, iter([1]))

    def test_large_keyword_arguments_are_stored_once(self, client) -> None:
        table = np.arange(1_000_000)
        before = RayFutures().store().used
        futures = client.map(lambda i, table: int(table[i]), range(20), table=table)
        assert client.gather(futures) == list(range(20))
        assert RayFutures().store().used - before < 2 * table.nbytes

    def test_gather(self, client) -> None:
        one, two = client.map(inc, [0, 1])
        bad = client.submit(operator.truediv, 1, 0)
        assert client.gather(one) == 1
        assert client.gather({"a": [one, (two, 5)], "b": {one}}) == {"a": [1, (2, 5)], "b": {1}}
        assert list(client.gather(iter([one, two]))) == [1, 2]
        assert client.gather([one, bad, two], errors="skip") == [1, 2]
        assert client.gather({"bad": bad, "one": one}, errors="skip") == {"bad": None, "one": 1}
        with pytest.raises(ZeroDivisionError):
            client.gather([one, [bad]])
        with pytest.raises(ValueError, match="errors="):
            client.gather([one], errors="ignore")
        with pytest.raises(TypeError, match="queues"):
            client.gather(queue.Queue())
        assert client.gather([]) == []

    def test_gather_does_not_wait_after_a_failure(self, client, tmp_path) -> None:
        never = client.submit(held, 1, tmp_path / "never")
        with pytest.raises(ZeroDivisionError):
            client.gather([never, client.submit(operator.truediv, 1, 0)])
        never.cancel()

    def test_scatter(self, client) -> None:
        assert client.gather(client.scatter([1, 2, 3], broadcast=True)) == [1, 2, 3]
        assert client.gather(client.scatter({"x": 1, "y": [2]})) == {"x": 1, "y": [2]}
        assert client.scatter({"x": 1})["x"].key == "x"
        assert client.gather(client.scatter(range(3))) == [0, 1, 2]
        assert client.gather(client.scatter(Pair(1, "b"))) == Pair(1, "b")
        frame = pd.DataFrame({"x": range(100_000)})
        future = client.scatter(frame)
        assert client.scatter(frame.copy()) is future
        assert client.scatter(frame, hash=False) is not future
        assert client.submit(len, future).result() == 100_000

    def test_wait(self, client, tmp_path) -> None:
        quick, slow = client.submit(inc, 1), client.submit(held, 1, tmp_path / "gate")
        done, not_done = wait([quick, {"x": slow}], return_when="FIRST_COMPLETED")
        assert (done, not_done) == ({quick}, {slow})
        with pytest.raises(TimeoutError, match="1 of 2"):
            wait([quick, slow], timeout=0.05)
        with pytest.raises(ValueError, match="return_when"):
            wait([quick], return_when="SOON")
        (tmp_path / "gate").touch()
        assert wait([quick, slow]).done == {quick, slow}
        slow.cancel()
        with pytest.raises(CancelledError):
            wait([quick, slow])

    def test_wait_for_a_persisted_collection(self, client) -> None:
        kept = client.persist(db.range(10, npartitions=3).map(inc))
        assert {f.status for f in wait(kept).done} == {"finished"}
        parts = client.gather(futures_of(kept))
        assert [x for part in parts for x in part] == list(range(1, 11))


class TestAsCompleted:
    def test_in_order_of_completion(self, client, tmp_path) -> None:
        slow, quick = client.submit(held, "slow", tmp_path / "gate"), client.submit(inc, 1)
        completed = as_completed([slow, quick])
        assert completed.count() == 2
        assert next(completed) is quick
        assert not completed.has_ready()
        with pytest.raises(TimeoutError):
            next(as_completed([slow], timeout=0.05))
        (tmp_path / "gate").touch()
        assert completed.next() is slow
        assert completed.is_empty()
        assert list(completed) == []

    def test_work_that_is_added(self, client) -> None:
        completed = as_completed(client.map(inc, range(5)))
        total = 0
        for future in completed:
            total += 1
            if future.result() < 10:
                completed.add(client.submit(lambda x: 2 * x, future, pure=False))
        expected, todo = 0, [inc(i) for i in range(5)]
        while todo:
            expected += 1
            value = todo.pop()
            todo += [2 * value] if value < 10 else []
        assert total == expected
        with pytest.raises(TypeError, match="takes futures"):
            completed.update([1])

    def test_work_that_another_thread_adds(self, client, tmp_path) -> None:
        slow = client.submit(held, "slow", tmp_path / "gate")
        completed = as_completed([slow])
        found = []
        thread = threading.Thread(target=lambda: found.append(next(completed)))
        thread.start()
        completed.add(quick := client.submit(inc, 1))
        thread.join(timeout=30)
        assert found == [quick]
        (tmp_path / "gate").touch()
        assert list(completed) == [slow]

    def test_results_and_batches(self, client) -> None:
        futures = client.map(inc, range(20))
        pairs = list(as_completed(futures, with_results=True))
        assert sorted(value for _, value in pairs) == list(range(1, 21))
        batches = list(as_completed(futures).batches())
        assert {f for batch in batches for f in batch} == set(futures)
        completed = as_completed(futures, with_results=True)
        wait(futures)
        assert sorted(v for _, v in completed.next_batch(block=False)) == list(range(1, 21))
        bad = client.submit(operator.truediv, 1, 0)
        with pytest.raises(ZeroDivisionError):
            next(as_completed([bad], with_results=True))
        ((future, error),) = as_completed([bad], with_results=True, raise_errors=False)
        assert future is bad
        assert isinstance(error, ZeroDivisionError)
        completed = as_completed(futures)
        completed.clear()
        assert completed.is_empty()


class TestLife:
    def test_dropping_a_future_frees_its_value(self, client) -> None:
        before = RayFutures().store().used
        future = client.submit(np.ones, 3_000_000)
        wait(future)
        assert RayFutures().store().used > before + 20_000_000
        del future
        assert eventually(lambda: RayFutures().store().used == before)

    def test_cancel(self, client, tmp_path) -> None:
        running, queued = client.submit(held, 1, tmp_path / "gate"), client.submit(np.ones, 10)
        after = client.submit(inc, running)
        client.cancel([running, [queued]])
        for future in (running, queued):
            assert (future.status, future.cancelled(), future.done()) == ("cancelled", True, True)
            with pytest.raises(concurrent.futures.CancelledError):
                future.result()
        with pytest.raises(CancelledError):
            after.result(timeout=60)
        assert after.cancelled()
        assert client.submit(np.ones, 10).result().sum() == 10  # not the cancelled one

    def test_callbacks(self, client) -> None:
        called, threads = queue.Queue(), queue.Queue()

        def callback(future):
            threads.put(threading.current_thread())
            called.put(future.status)

        client.submit(inc, 1).add_done_callback(callback)  # keeps it alive
        assert called.get(timeout=60) == "finished"
        client.submit(operator.truediv, 1, 0).add_done_callback(callback)
        assert called.get(timeout=60) == "error"
        assert threads.get() is not threading.current_thread()

    def test_a_callback_that_raises_is_logged(self, client, caplog) -> None:
        called = threading.Event()
        future = client.submit(inc, 1)
        future.add_done_callback(lambda f: 1 / 0)
        future.add_done_callback(lambda f: called.set())
        assert called.wait(60)
        assert "ZeroDivisionError" in caplog.text

    def test_fire_and_forget(self, client, tmp_path) -> None:
        late = client.compute(dask.delayed(held)(tmp_path / "done", tmp_path / "gate"))
        fire_and_forget(client.submit(lambda path: path.touch(), late))
        del late
        gc.collect()
        (tmp_path / "gate").touch()
        assert eventually((tmp_path / "done").exists)


class TestCollections:
    def test_compute(self, client, tmp_path) -> None:
        gate = tmp_path / "gate"
        lazy = dask.delayed(held)(1, gate)
        future = client.compute(lazy)
        after = client.submit(inc, [future])  # at once, though nobody knows the value yet
        assert isinstance(after, Future)
        assert not after.done()
        after.cancel()
        gate.touch()
        assert future.result() == 1
        assert client.submit(inc, future).result() == 2
        assert client.compute(lazy) is future
        frame = dd.from_pandas(pd.DataFrame({"x": range(10)}), npartitions=2)
        futures = client.compute([frame.x.sum(), "as it is", frame.x + 1])
        assert futures[1] == "as it is"
        total, _, series = client.gather(futures)
        assert (total, series.tolist()) == (45, list(range(1, 11)))
        array, nested = client.gather(client.compute([da.ones(10, chunks=3) + 1, [lazy]]))
        assert (array.tolist(), nested) == ([2.0] * 10, [1])
        assert client.compute(frame.x.sum(), sync=True) == 45
        with pytest.raises(ZeroDivisionError):
            client.compute(dask.delayed(operator.truediv)(1, 0)).result()

    def test_persist_and_get(self, client) -> None:
        frame = dd.from_pandas(pd.DataFrame({"x": range(10)}), npartitions=2)
        kept, other = client.persist([frame, frame.x + 1])
        assert (kept.x.sum().compute(), other.sum().compute()) == (45, 55)
        assert len(client.persist(frame)) == 10
        graph = {"a": (inc, 1), "b": (operator.add, "a", 10)}
        assert client.get(graph, ["b", ["a"]]) == (12, (2,))
        assert client.gather(client.get(graph, ["b", ["a"]], sync=False)) == [12, [2]]

    def test_futures_in_graphs(self, client) -> None:
        one, two = client.map(inc, [0, 1])
        assert dask.delayed(inc)(one).compute() == 2
        assert dask.delayed(sum)([one, two]).compute() == 3
        assert dask.delayed(lambda d: d["k"][0])({"k": [two]}).compute() == 2
        assert dask.delayed(one).compute() == 1
        assert dask.delayed(operator.getitem)(client.submit(list, "abc"), 1).compute() == "b"
        parts = [client.submit(pd.DataFrame, {"x": [i, i + 1]}) for i in range(3)]
        frame = dd.from_delayed(parts)
        assert sorted(frame.compute().x) == [0, 1, 1, 2, 2, 3]
        assert frame.groupby("x").size().compute().to_dict() == {0: 1, 1: 2, 2: 2, 3: 1}
        bad = client.submit(operator.truediv, 1, 0)
        with pytest.raises(ZeroDivisionError):
            dask.delayed(inc)(bad).compute()
        with pytest.raises(KeyError, match="key of a live future"):
            client.get({"x": Task("x", inc, TaskRef("nobody's"))}, "x")

    def test_it_is_the_scheduler(self, client) -> None:
        assert dask.base.get_scheduler() == client.get
        frame = pd.DataFrame({"k": np.arange(1000) % 7, "v": np.arange(1000)})
        ddf = dd.from_pandas(frame, npartitions=4)
        with recording() as stats:
            result = ddf.groupby("k").v.sum().compute()
            assert dask.delayed(inc)(1).compute() == 2
        pd.testing.assert_series_equal(result, frame.groupby("k").v.sum())
        assert stats.calls > 0
        shuffled = ddf.shuffle("k").compute(scheduler=client)
        pd.testing.assert_frame_equal(shuffled.sort_values("v"), frame)
        with dask.config.set(scheduler=client):
            assert len(ddf.persist()) == 1000


class TestInTasks:
    def test_a_task_that_submits(self, client) -> None:
        def fib(n):
            if n < 2:
                return n
            with worker_client() as inner:
                secede()
                a, b = inner.submit(fib, n - 1), inner.submit(fib, n - 2)
                results = inner.gather([a, b])
                rejoin()
            return sum(results)

        assert client.submit(fib, 4).result() == 3

    def test_collections_in_a_task_are_computed_on_the_cluster(self, client) -> None:
        def total(n):
            client = get_client()
            with recording() as stats:
                value = (
                    dd.from_pandas(pd.DataFrame({"x": range(n)}), npartitions=2).x.sum().compute()
                )
            return int(value), stats.calls > 0, client is get_client(), client.status

        assert client.submit(total, 10).result() == (45, True, True, "running")

    def test_the_client_itself_as_an_argument(self, client) -> None:
        assert client.submit(lambda c: c.submit(inc, 1).result(), client).result() == 2

    def test_a_task_that_returns_what_it_has_scattered(self, client) -> None:
        future = client.submit(lambda: get_client().scatter(np.arange(500_000))).result()
        assert future.result().sum() == np.arange(500_000).sum()


class TestConnection:
    def test_the_default_is_restored(self) -> None:
        before = dask.base.get_scheduler()
        first = Client()
        second = Client()
        assert dask.base.get_scheduler() == second.get
        assert get_client() is default_client() is Client.current() is second
        first.close()
        assert dask.base.get_scheduler() == second.get
        third = Client(set_as_default=False)
        assert get_client() is second
        second.close()
        second.close()
        assert dask.base.get_scheduler() is before
        assert third.submit(inc, 1).result() == 2
        third.close()
        assert running()  # the cluster was there before
        with pytest.raises(ClusterError, match="closed"):
            third.submit(inc, 1)
        assert get_client().submit(inc, 1).result() == 2  # without having made one

    def test_facts(self, client) -> None:
        assert list(client.ncores().values()) == [2]
        assert client.nthreads() == client.ncores()
        info = client.scheduler_info()
        assert [w["nthreads"] for w in info["workers"].values()] == [2]
        client.wait_for_workers(2)
        with pytest.raises(TimeoutError, match="slots"):
            client.wait_for_workers(1000, timeout=0.1)

    def test_what_distributed_takes(self) -> None:
        with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
            assert client.status == "running"
        with pytest.raises(ConfigError, match="num-cpus"):
            Client(n_workers=64)
        with pytest.raises(ConfigError, match="scheduler of distributed"):
            Client("tcp://127.0.0.1:8786")
        with pytest.raises(ConfigError, match="object"):
            Client(object())
        with pytest.raises(UnsupportedError, match="asynchronous"):
            Client(asynchronous=True)
        with pytest.raises(TypeError, match="n_wokers"):
            Client(n_wokers=2)
        with pytest.warns(UserWarning, match="memory_limit"):
            Client(memory_limit="1GB").close()
        with pytest.warns(UserWarning, match="processes=False"):
            Client(processes=False).close()
        assert dask_exo.Client is Client


def test_without_ray_there_is_no_client(monkeypatch) -> None:
    monkeypatch.setattr("dask_exo.cluster.on_ray.running", lambda: False)
    with pytest.raises(NoClientError, match=r"dask_exo\.Client"):
        get_client()
    with pytest.raises(ValueError, match="no client"):  # as distributed raises
        default_client()


PROGRAM = """
import time
import dask
from dask_exo.client import Client, Queue, as_completed, get_client
from dask_exo.errors import CancelledError
from dask_exo.cluster.on_ray import running

if __name__ == "__main__":
    client = Client(n_workers=3, threads_per_worker=1, object_store_memory="200MB")
    assert client.nthreads() and list(client.nthreads().values()) == [3]
    late = client.submit(time.sleep, 60)
    late.add_done_callback(lambda future: print("called"))
    waiting = client.submit(abs, client.compute(dask.delayed(time.sleep)(60)))
    second = Client(n_workers=3, threads_per_worker=1)  # the same one
    Queue("q").put(1)
    client.close()
    assert second.submit(abs, -1).result() == 1
    second.close()
    assert not running()
    assert dask.config.get("scheduler", None) is None
    for future in (late, waiting):
        assert future.cancelled()
        try:
            future.result()
        except CancelledError as error:
            print(error)
    assert not running()  # asking for it has not started another one
    with Client(num_cpus=1) as client:
        assert list(client.ncores().values()) == [1]
        assert client.submit(lambda: Queue("q").qsize()).result() == 0  # another program's
        assert client.submit(abs, -2).result() == 2
    client = Client(num_cpus=1)
    client.submit(time.sleep, 60)
    print("end")
"""


@pytest.mark.slow
def test_a_program_that_starts_and_stops_its_own_ray(tmp_path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = run_python(path, timeout=250)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "end"
    assert sum("closed" in line for line in lines) == 2
