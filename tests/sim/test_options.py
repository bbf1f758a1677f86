"""Workers that are kept, on a cluster that gives nobody more than it has: nothing hangs."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_exo
from dask_exo import Scheduler
from dask_exo.cluster.futures import Node, StoreUsage
from dask_exo.cluster.ownership import as_stored
from dask_exo.cluster.resources import resources_of
from dask_exo.cluster.task_status import Activity, TaskStatus


class Ref:
    """A value that may not exist yet."""

    def __init__(self):
        self.done, self.value = False, None


class Call:
    """A task that waits for its inputs, and for its place."""

    def __init__(self, fn, args, refs, needs=None, worker=None, unpack=True):
        self.fn, self.args, self.refs = fn, args, refs
        self.needs, self.worker, self.unpack = needs, worker, unpack

    def run(self):
        given = [as_stored(a.value) if isinstance(a, Ref) else a for a in self.args]
        made = self.fn(*given)
        for ref, value in zip(self.refs, made if self.unpack else [made], strict=True):
            ref.done, ref.value = True, value


class Worker:
    """Has what it needs from when that is free until it is stopped; one call at a time."""

    def __init__(self, cluster, needs):
        self.cluster, self.needs = cluster, resources_of(needs)
        self.has = self.stopped = False
        cluster.workers.append(self)
        cluster.started += 1

    def submit(self, fn, *args):
        return self.cluster.call(1, fn, args, worker=self, unpack=False)[0]

    def split(self, count, fn, *args):
        return self.cluster.call(count, fn, args, worker=self)

    def stop(self):
        self.cluster.workers.remove(self)

    retire = stop


class Cluster:
    """One node; which of the tasks that could end does so next is chance."""

    shares_memory = elastic = False

    def __init__(self, total, seed):
        self.total, self.random = total, random.Random(seed)
        self.workers, self.pending = [], []
        self.calls = self.objects = self.started = self.idle = self.now = 0
        self.peak = Counter()

    def nodes(self):
        return [Node("a", int(self.total["CPU"]), 10**9, resources=self.total)]

    def store(self):
        return StoreUsage(0, 0, 0)

    def disks(self):
        return []

    def memory(self):
        return None

    def recomputed(self):
        return []

    def stop_retired(self):
        pass

    def activity(self, refs):
        """TaskOptions where nobody can go on: none of them does."""
        return Activity([TaskStatus("pending") for _ in refs])

    def call(self, count, fn, args, **place):
        self.calls += 1
        refs = [Ref() for _ in range(count)]
        self.pending.append(Call(fn, args, refs, **place))
        return refs

    def submit(self, fn, *args, node=None, options=None):
        return self.call(1, fn, args, needs=resources_of(options or {}), unpack=False)[0]

    def split(self, count, fn, *args, node=None, options=None):
        return self.call(count, fn, args, needs=resources_of(options or {}))

    def stream(self, count, fn, *args, node=None, options=None):
        return self.split(count, fn, *args)

    def actor(self, options, cls=None, *args):
        return Worker(self, options)

    def put(self, value):
        ref = Ref()
        ref.done, ref.value = True, value
        return ref

    def wait(self, refs, timeout=None):
        while timeout != 0 and not any(ref.done for ref in refs) and self.step():
            pass
        done = [ref for ref in refs if ref.done]
        if not done and timeout != 0:
            assert timeout is not None, "everything waits for ever"
            self.now += timeout
            self.idle += 1
        return done, [ref for ref in refs if not ref.done]

    def get(self, refs, timeout=None):
        while not all(ref.done for ref in refs):
            assert self.step(), "a value that never comes"
        return [ref.value for ref in refs]

    def cancel(self, refs):
        pass

    def free(self):
        held = Counter()
        for worker in self.workers:
            held.update(worker.needs if worker.has else {})
        assert all(amount <= self.total.get(name, 0) for name, amount in held.items())
        self.peak |= held
        return {name: amount - held[name] for name, amount in self.total.items()}

    def step(self):
        """Let one task end."""
        for worker in self.workers:
            free = self.free()
            if not worker.has and all(free.get(n, 0) >= a for n, a in worker.needs.items()):
                worker.has = True
        free, able, first = self.free(), [], set()
        for call in self.pending:
            ready = all(arg.done for arg in call.args if isinstance(arg, Ref))
            if call.worker is None:
                runs = ready and all(free.get(n, 0) >= a for n, a in call.needs.items())
            else:
                runs = ready and call.worker.has and call.worker not in first
                first.add(call.worker)
            able += [call] if runs else []
        if not able:
            return False
        call = self.random.choice(able)
        self.pending.remove(call)
        call.run()
        return True


def add(frame, k):
    return frame + k


ASKING = st.sampled_from(
    [
        {},
        {"num_gpus": 1},
        {"num_cpus": 2},
        {"concurrency": 1},
        {"num_cpus": 2, "concurrency": (1, 2)},
        {"num_cpus": 0, "num_gpus": 0.5},
    ]
)


@given(
    st.lists(st.tuples(ASKING, st.booleans()), min_size=1, max_size=4),
    st.integers(2, 4),
    st.integers(1, 6),
    st.integers(0, 99),
)
@settings(max_examples=40)
def test_any_chain_ends_without_waiting_for_what_it_holds_itself(steps, cpus, parts, seed):
    cluster = Cluster({"CPU": cpus, "GPU": 1}, seed)
    ddf = dd.from_pandas(pd.DataFrame({"a": np.arange(24)}), npartitions=parts)
    for i, (asks, shuffled) in enumerate(steps):
        step = dask_exo.options(**asks)(add) if asks else add
        ddf = ddf.map_partitions(step, i, meta={"a": "i8"})
        ddf = ddf.shuffle("a") if shuffled and i == 0 else ddf
    got = ddf.compute(scheduler=Scheduler(cluster))
    assert sorted(got.a) == [n + sum(range(len(steps))) for n in range(24)]
    assert cluster.idle == 0  # no worker had to be idle for long before others could go on
    assert not cluster.workers
    assert not cluster.pending
    assert all(cluster.peak[name] <= amount for name, amount in cluster.total.items())
    if not any(asks.keys() - {"num_cpus"} for asks, _ in steps):
        assert not cluster.started


@given(
    st.integers(1, 3),
    st.sampled_from([0.5, 1.0]),
    st.integers(2, 5),
    st.sampled_from(["simple", "push"]),
    st.integers(0, 99),
)
@settings(max_examples=12)
def test_shuffles_of_partitions_on_devices_end_on_workers(cpus, share, parts, algorithm, seed):
    cluster = Cluster({"CPU": cpus, "GPU": 1}, seed)
    frame = pd.DataFrame({"a": np.arange(24), "k": np.arange(24) % 5})
    keys = {"exo.gpu.simulate": True, "exo.gpu.per-task": share, "exo.shuffle.algorithm": algorithm}
    with dask.config.set({**keys, "dataframe.shuffle.method": "tasks"}):
        there = dd.from_pandas(frame, npartitions=parts).map_partitions(add, 1).exo.to_gpu()
        sums = there.shuffle("k").groupby("k").a.sum(split_out=2).exo.to_pandas()
        got = sums.map_partitions(add, 1).compute(scheduler=Scheduler(cluster))
    pd.testing.assert_series_equal(got.sort_index(), (frame + 1).groupby("k").a.sum() + 1)
    assert cluster.idle == 0
    assert not cluster.workers
    assert not cluster.pending
    assert 0 < cluster.peak["GPU"] <= 1


def test_where_one_cpu_is_all_there_is_it_changes_hands_rarely():
    cluster = Cluster({"CPU": 1}, seed=1)
    ddf = dd.from_pandas(pd.DataFrame({"a": np.arange(24)}), npartitions=8)
    asking = dask_exo.options(concurrency=1)(add)
    made = ddf.map_partitions(add, 1).map_partitions(asking, 1, meta={"a": "i8"})
    got = made.map_partitions(add, 1).compute(scheduler=Scheduler(cluster))
    assert got.a.tolist() == list(range(3, 27))
    assert cluster.started <= 2


def most_at_a_time(memory: float) -> int:
    """Partitions between the tasks that make them and a worker, of 1.6 MB, on a store of 1 GB."""
    seen = SimpleNamespace(count=0, most=0)

    def read(_):
        seen.count += 1
        seen.most = max(seen.most, seen.count)
        return pd.DataFrame({"a": np.zeros(200_000)})

    def take(frame):
        seen.count -= 1
        return frame.iloc[:1]

    asking = dask_exo.options(num_gpus=1)(Local(take))
    ddf = dd.from_map(Local(read), range(40), meta={"a": "f8"})
    made = ddf.map_partitions(asking, meta={"a": "f8"})
    cluster = Cluster({"CPU": 4, "GPU": 1}, seed=2)
    one_by_one = {"exo.scheduler.bundle-target": 0}  # whatever time each has taken
    with dask.config.set({"exo.scheduler.memory-fraction": memory, **one_by_one}):
        assert len(made.compute(scheduler=Scheduler(cluster))) == 40
    return seen.most


def test_above_the_limit_busy_actors_get_no_more_inputs():
    assert most_at_a_time(0.001) <= 12 < most_at_a_time(0.7)


KEPT: dict[str, object] = {}


class Local:
    """A function of this process: it is sent by name."""

    def __init__(self, func):
        self.__name__ = func.__name__
        KEPT[self.__name__] = func

    def __call__(self, *args):
        return KEPT[self.__name__](*args)

    def __reduce__(self):
        return known, (self.__name__,)


def known(name):
    return Local(KEPT[name])
