"""Locks, events, queues, variables and semaphores between processes of a real cluster."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import uuid

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest

from dask_exo.client import Event, Lock, Queue, Semaphore, Variable, get_client, wait
from dask_exo.client.sync_actor import SyncService
from dask_exo.cluster.on_ray import RayFutures, Service
from dask_exo.errors import ClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def inc(x):
    return x + 1


def add_one(path, lock):
    """Read, wait, write: two at a time would lose an increment."""
    with lock:
        number = int(path.read_text())
        time.sleep(0.02)
        path.write_text(str(number + 1))


class TestLock:
    def test_tasks_exclude_each_other(self, client, tmp_path) -> None:
        (tmp_path / "number").write_text("0")
        lock = Lock()
        client.gather(client.map(lambda _: add_one(tmp_path / "number", lock), range(10)))
        assert (tmp_path / "number").read_text() == "10"
        assert not lock.locked()

    def test_one_name_is_one_lock_in_every_process(self, client, tmp_path) -> None:
        name = uuid.uuid4().hex
        with Lock(name) as lock:
            assert lock.locked()
            assert not Lock(name).acquire(timeout="50ms")
            assert not Lock(name).acquire(blocking=False)
            assert (
                client.submit(lambda: Lock(name).acquire(timeout=0.05), pure=False).result()
                is False
            )
        assert client.submit(lambda: Lock(name).acquire(timeout=0.05), pure=False).result() is True

    def test_a_task_that_waits_gives_its_slot_away(self, client) -> None:
        name = uuid.uuid4().hex

        def locked():
            with Lock(name):
                return True

        with Lock(name):
            waiting = [client.submit(locked, pure=False) for _ in range(2)]  # as many as slots
            assert client.submit(inc, 1).result(timeout=60) == 2
        assert client.gather(waiting) == [True, True]

    def test_wrong_uses(self) -> None:
        lock = Lock()
        with pytest.raises(RuntimeError, match="more often"):
            lock.release()
        with pytest.raises(ValueError, match="timeout"):
            lock.acquire(blocking=False, timeout=1)
        with lock, pytest.raises(RuntimeError, match="more often"):
            Lock(lock.name).release()  # as in distributed: only who holds it

    def test_pickled_and_tokenized_by_name(self) -> None:
        for one in (Lock("a"), Event("a"), Queue("a", maxsize=3), Variable("a"), Semaphore(2, "a")):
            back = pickle.loads(pickle.dumps(one))  # noqa: S301
            assert (type(back), back.name) == (type(one), "a")
            assert dask.base.tokenize(back) == dask.base.tokenize(one)
            assert repr(back) == f"<{type(one).__name__}: a>"
        assert pickle.loads(pickle.dumps(Queue(maxsize=3))).maxsize == 3  # noqa: S301
        assert pickle.loads(pickle.dumps(Semaphore(3))).max_leases == 3  # noqa: S301

    def test_dask_stores_an_array_under_it(self, client, tmp_path) -> None:
        path = tmp_path / "array.npy"
        np.save(path, np.zeros((20, 20)))
        target = Slow(path)
        da.ones((20, 20), chunks=5).store(target, lock=Lock())
        assert np.load(path).sum() == 400

    def test_pandas_writes_hdf_under_it(self, client, tmp_path) -> None:
        pytest.importorskip("tables")
        import dask.dataframe as dd

        frame = pd.DataFrame({"x": range(100)})
        dd.from_pandas(frame, npartitions=4).to_hdf(tmp_path / "x.h5", "/x", lock=Lock())
        pd.testing.assert_frame_equal(pd.read_hdf(tmp_path / "x.h5", "/x"), frame)


class Slow:
    """A file that loses what two write at the same time."""

    def __init__(self, path):
        self.path = path

    def __setitem__(self, index, value):
        array = np.load(self.path)
        time.sleep(0.02)
        array[index] = value
        np.save(self.path, array)


class TestSemaphore:
    def test_as_many_as_it_has_leases(self, client, tmp_path) -> None:
        semaphore = Semaphore(max_leases=2, name=uuid.uuid4().hex)
        assert semaphore.acquire()
        with semaphore:
            assert semaphore.get_value() == 2
            assert not semaphore.acquire(timeout=0)
        assert semaphore.acquire(timeout="1s")
        assert semaphore.release()
        assert semaphore.release()
        assert semaphore.get_value() == 0

    def test_one_name_has_one_number_of_leases(self) -> None:
        semaphore = Semaphore(2)
        with semaphore, pytest.raises(ValueError, match="max_leases=2"):
            Semaphore(3, semaphore.name).acquire()

    def test_closing_ends_all_leases(self) -> None:
        semaphore = Semaphore(1)
        semaphore.acquire()
        Semaphore(1, semaphore.name).close()
        assert Semaphore(1, semaphore.name).acquire(timeout=0)
        semaphore.close()

    def test_the_lease_of_a_process_that_died_ends(self, client, monkeypatch) -> None:
        # a desk of its own, whose clock we can turn
        desk = Service(f"desk-{uuid.uuid4()}", Hurried)
        assert desk.call("acquire", "x", 1, "of the dead", None)
        assert not desk.call("acquire", "x", 1, "ours", 0)
        assert desk.call("acquire", "x", 1, "ours", 60)
        desk.call("refresh", [("x", "ours")])
        assert desk.call("leases", "x") == 1

    def test_a_lease_that_is_refreshed_does_not_end(self, client) -> None:
        desk = Service(f"desk-{uuid.uuid4()}", Hurried)
        assert desk.call("acquire", "x", 1, "ours", None)
        for _ in range(10):
            time.sleep(Hurried.lease / 4)
            desk.call("refresh", [("x", "ours")])
        assert not desk.call("acquire", "x", 1, "another", 0)


class Hurried(SyncService):
    """A desk whose leases end soon."""

    lease = 2.0


class TestEvent:
    def test_set_clear_and_wait(self, client) -> None:
        name = uuid.uuid4().hex
        event = Event(name)
        assert not event.is_set()
        assert not event.wait(timeout=0.05)
        waiting = client.submit(lambda: Event(name).wait(timeout=60), pure=False)
        event.set()
        assert waiting.result() is True
        assert event.is_set()
        assert event.wait(timeout=0)
        event.clear()
        assert not event.is_set()


class TestQueue:
    def test_values_in_order(self, client) -> None:
        queue = Queue()
        for value in (1, "two", {"three": [3.0, None]}):
            queue.put(value)
        assert queue.qsize() == 3
        assert queue.get() == 1
        assert queue.get(batch=True) == ["two", {"three": [3.0, None]}]
        assert queue.get(batch=True) == []
        with pytest.raises(TimeoutError, match="empty"):
            queue.get(timeout="50ms")
        with pytest.raises(TimeoutError, match="empty"):
            queue.get(timeout=0)
        client.gather([client.submit(queue.put, i, pure=False) for i in range(5)])
        assert sorted(queue.get(batch=5)) == [0, 1, 2, 3, 4]
        with pytest.raises(NotImplementedError, match="timeout"):
            queue.get(batch=2, timeout=1)

    def test_a_full_queue(self, client) -> None:
        queue = Queue(maxsize=1)
        queue.put("a", timeout=0)
        with pytest.raises(TimeoutError, match="full"):
            queue.put("b", timeout=0.05)
        thread = threading.Thread(target=queue.put, args=("c",))
        thread.start()
        assert queue.get() == "a"
        thread.join(timeout=30)
        assert queue.get(timeout=30) == "c"
        queue.put("d")
        queue.close()
        assert queue.qsize() == 0

    def test_futures_of_tasks(self, client) -> None:
        queue = Queue()

        def load_and_submit(i):
            queue.put(get_client().submit(np.full, 200_000, i))

        wait(client.map(load_and_submit, range(3), pure=False))
        futures = [queue.get(timeout=60) for _ in range(3)]
        assert sorted(f.result()[0] for f in futures) == [0, 1, 2]
        assert sorted(client.gather(client.map(lambda a: int(a[0]), futures))) == [0, 1, 2]

    def test_a_future_that_has_failed_and_one_of_a_collection(self, client) -> None:
        queue = Queue()
        bad = client.submit(lambda: 1 / 0)
        queue.put(bad)
        key = bad.key
        del bad
        gc.collect()
        back = queue.get()
        assert (back.key, back.status) == (key, "error")
        with pytest.raises(ZeroDivisionError):
            back.result()
        queue.put(client.compute(dask.delayed(inc)(1)))
        assert queue.get().result() == 2

    def test_what_it_holds_is_freed_when_taken(self, client) -> None:
        before = RayFutures().store().used
        queue = Queue()
        queue.put(client.submit(np.ones, 2_000_000))
        gc.collect()
        future = queue.get()
        assert future.result().sum() == 2_000_000
        assert RayFutures().store().used > before
        # that it is empty afterwards, the fixture asserts


class TestVariable:
    def test_set_get_delete(self, client) -> None:
        name = uuid.uuid4().hex
        variable = Variable(name)
        with pytest.raises(TimeoutError, match="no value"):
            variable.get(timeout=0.05)
        waiting = client.submit(lambda: Variable(name).get(timeout=60), pure=False)
        variable.set({"stop": True})
        assert waiting.result() == {"stop": True}
        variable.set(client.submit(inc, 1))
        gc.collect()
        assert client.submit(lambda: Variable(name).get().result() + 1, pure=False).result() == 3
        assert variable.get(timeout=0).result() == 2
        variable.delete()
        with pytest.raises(TimeoutError):
            variable.get(timeout=0)


def test_without_ray_it_says_what_to_do(monkeypatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(ClusterError, match=r"dask_exo\.Client"):
        Lock("x").acquire()


def test_a_service_that_is_slow(client) -> None:
    with pytest.raises(TimeoutError, match="event_wait"):
        Service("dask_exo.locks", SyncService).call(
            "event_wait", uuid.uuid4().hex, None, timeout=0.1
        )
