"""Functions that say what they ask for: found wherever they are, and the same values as in Dask."""

from __future__ import annotations

import pickle
import threading

import cloudpickle
import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import tokenize
from dask.dataframe.utils import assert_eq
from hypothesis import given
from hypothesis import strategies as st

import dask_exo
from dask_exo import Scheduler
from dask_exo.cluster.futures import Node
from dask_exo.errors import OptionsError
from dask_exo.partitions.batching import concat_results, split_rows
from dask_exo.testing import InlineFutures
from tests._data import RecordsRequests

GPU = {"num_cpus": 1, "num_gpus": 1}


class Noting(RecordsRequests):
    """Notes where each call runs: what was asked for, and what the workers have."""

    def __init__(self, *nodes):
        super().__init__(*nodes)
        self.kept, self.started, self.stopped = [], [], []

    def actor(self, options, cls=None, *args):
        return Kept(self, options)


class Kept:
    """A worker that is counted."""

    def __init__(self, futures, needs):
        self.futures, self.needs = futures, needs
        futures.started.append(needs)

    def submit(self, fn, *args):
        self.futures.kept.append(self.needs)
        return InlineFutures.submit(self.futures, fn, *args)

    def split(self, count, fn, *args):
        self.futures.kept.append(self.needs)
        return InlineFutures.split(self.futures, count, fn, *args)

    def stop(self):
        self.futures.stopped.append(self.needs)

    retire = stop


@pytest.fixture
def noting():
    return Noting()


@pytest.fixture
def frame():
    return pd.DataFrame({"a": np.arange(60), "b": np.arange(60) % 7, "s": ["x", "yy", "z"] * 20})


@pytest.fixture
def ddf(frame):
    return dd.from_pandas(frame, npartitions=4)


@dask_exo.options(num_gpus=1)
def doubled(frame):
    return frame.assign(c=frame.a * 2)


@dask_exo.options(num_gpus=1)
def counted(frame):
    return frame.assign(d=frame.c + 1)


@dask_exo.options(num_cpus=1)
def plain(frame):
    return frame.assign(e=1)


class Model:
    """Counts its instances and calls; a module's own objects are the same in each task here."""

    made, threads = 0, set()

    def __init__(self, factor=1):
        type(self).made += 1
        self.factor, self.calls = factor, 0

    def __call__(self, frame):
        self.calls += 1
        return frame.assign(y=frame.a * self.factor, calls=self.calls)


def with_model(ddf, model):
    meta = ddf._meta.assign(y=ddf._meta.a, calls=ddf._meta.a)
    return ddf.map_partitions(model, meta=meta)


@pytest.mark.parametrize("fused", [False, True])
def test_a_chain_is_cut_where_needs_differ_and_only_there(noting, ddf, fused):
    made = ddf.map_partitions(plain).map_partitions(doubled).map_partitions(counted)
    made = made.map_partitions(lambda frame: frame.assign(f=frame.d))
    wanted = made.optimize(fuse=fused) if fused else made
    got = wanted.compute(scheduler=Scheduler(noting))
    assert_eq(got, made.compute(scheduler="sync"))
    assert noting.started == noting.stopped == [GPU]
    assert all(needs == GPU for needs in noting.kept)
    assert len(noting.kept) <= 4  # doubled and counted in one task
    assert all(needs == {} for needs in noting.requested)


def test_behind_a_projection_that_was_pushed_down(noting, ddf):
    meta = ddf._meta.assign(c=ddf._meta.a)
    made = ddf.map_partitions(doubled, meta=meta, required_columns=["a", "b"])[["c"]]
    names = {str(key[0]) for key in made.optimize(fuse=False).__dask_graph__()}
    assert any(name.startswith("projected_operation") for name in names)
    got = made.compute(scheduler=Scheduler(noting))
    assert_eq(got, made.compute(scheduler="sync"))
    assert noting.kept


@pytest.mark.parametrize("kind", ["delayed", "array", "bag", "mapped"])
def test_in_other_collections(noting, ddf, kind):
    wrapped = dask_exo.options(resources={"disk": 2})(np.negative)
    made = {
        "delayed": lambda: dask.delayed(wrapped)(np.arange(5)),
        "array": lambda: da.arange(10, chunks=5).map_blocks(wrapped, dtype="i8").sum(),
        "bag": lambda: db.from_sequence(range(6), npartitions=2).map(wrapped).sum(),
        "mapped": lambda: ddf.a.map(wrapped, meta=("a", "i8")).sum(),
    }[kind]()
    got = made.compute(scheduler=Scheduler(noting))
    np.testing.assert_array_equal(got, made.compute(scheduler="sync"))
    assert {"num_cpus": 1, "num_gpus": 0, "resources": {"disk": 2}} in noting.kept


def test_without_optimization_and_several_outputs_and_a_shuffle(noting, ddf):
    made = ddf.map_partitions(doubled)
    shuffled = made.shuffle("b").map_partitions(counted, enforce_metadata=False)
    scheduler = Scheduler(noting)
    for optimize in (True, False):
        one, two = dask.compute(
            made.c.sum(), shuffled, scheduler=scheduler, optimize_graph=optimize
        )
        assert one == made.c.sum().compute(scheduler="sync")
        want = shuffled.compute(scheduler="sync")
        assert_eq(two.sort_values("a"), want.sort_values("a"), check_index=False)
    assert all(needs == {} for needs in noting.requested)
    assert noting.kept


def test_what_is_persisted(noting, ddf):
    scheduler = Scheduler(noting)
    (kept,) = scheduler.persist([ddf.map_partitions(doubled)])
    assert_eq(
        kept.compute(scheduler=scheduler), ddf.map_partitions(doubled).compute(scheduler="sync")
    )
    assert noting.kept
    assert noting.stopped == noting.started


def test_cpus_alone_need_no_worker_of_their_own(noting, ddf):
    two = dask_exo.options(num_cpus=2)(lambda frame: frame.assign(z=1))
    ddf.map_partitions(two).compute(scheduler=Scheduler(noting))
    assert not noting.started
    assert {"num_cpus": 2, "num_gpus": 0} in noting.requested


@pytest.mark.parametrize(("scheduler", "factor"), [("sync", 3), ("threads", 4), ("exo", 5)])
def test_a_class_is_made_once_and_never_for_metadata(noting, ddf, scheduler, factor):
    Model.made = 0
    model = dask_exo.options(num_gpus=1, concurrency=(1, 1))(Model, factor)
    where = Scheduler(noting) if scheduler == "exo" else scheduler
    assert_eq(
        with_model(ddf, model).compute(scheduler=where)[["a", "y"]],
        ddf.assign(y=ddf.a * factor)[["a", "y"]].compute(scheduler="sync"),
    )
    assert Model.made == 1
    with pytest.raises(ValueError, match=r"pass meta="):
        ddf.map_partitions(model)
    with pytest.raises(ValueError, match=r"pass meta="):
        da.ones(4, chunks=2).map_blocks(model)
    assert Model.made == 1


def test_calls_of_an_instance_never_overlap():
    inside = threading.Semaphore(1)

    class Alone:
        def __call__(self, frame):
            assert inside.acquire(blocking=False)
            total = frame.a.map(lambda x: sum(range(x))).sum()
            inside.release()
            return frame.assign(y=total)

    ddf = dd.from_pandas(pd.DataFrame({"a": [3000] * 32}), npartitions=8)
    alone = dask_exo.options()(Alone)
    ddf.map_partitions(alone, meta={"a": "i8", "y": "i8"}).compute(scheduler="threads")


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, {"num_gpus": 1}, {"num_cpus": 2}, {"concurrency": (1, 2)}]),
            st.sampled_from([{}, {"batch_size": 3}, {"max_batch_bytes": 64}, {"batch_size": 1}]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 23),
    st.integers(1, 4),
)
def test_random_chains_give_what_dask_gives(steps, rows, parts):
    ddf = dd.from_pandas(pd.DataFrame({"a": np.arange(rows)}), npartitions=parts, sort=False)
    for i, (needs, batches) in enumerate(steps):
        step = add if needs is None else dask_exo.options(**needs, **batches)(add)
        ddf = ddf.map_partitions(step, i, meta={"a": "i8"})
    noting = Noting([Node("a", 4, 2**30, resources={"CPU": 4, "GPU": 1})])
    got = ddf.compute(scheduler=Scheduler(noting))
    assert got.a.tolist() == [i + sum(range(len(steps))) for i in range(rows)]
    assert_eq(got, ddf.compute(scheduler="sync"))
    workers = any(needs and "num_cpus" not in needs for needs, _ in steps)
    assert bool(noting.started) == workers
    assert len(noting.started) == len(noting.stopped)


def add(frame, k):
    return frame + k


@given(st.integers(0, 50), st.none() | st.integers(1, 60), st.none() | st.integers(8, 200))
def test_batches_are_the_rows_in_order_within_the_limits(rows, size, nbytes):
    frame = pd.DataFrame({"a": np.arange(rows), "s": ["x" * (i % 5) for i in range(rows)]})
    for data in (frame, frame.a, frame.a.to_numpy(), frame.index):
        batches = list(split_rows(data, size, nbytes))
        assert all(len(one) <= (size or rows) for one in batches)
        if nbytes is not None and isinstance(data, np.ndarray):
            assert all(one.nbytes <= nbytes for one in batches)
        whole = concat_results(batches, "f")
        assert type(whole) is type(data)
        assert list(np.asarray(whole).ravel()) == list(np.asarray(data).ravel())


def test_pieces_that_are_yielded_come_back_as_one(ddf, frame):
    @dask_exo.options(batch_size=4)
    def halves(batch):
        yield batch.iloc[:1]
        yield batch.iloc[1:]

    made = ddf.map_partitions(halves, meta=frame.iloc[:0])
    assert_eq(made.compute(scheduler="sync"), frame)


def test_a_wrapper_is_a_function_that_travels():
    again = cloudpickle.loads(cloudpickle.dumps(doubled))
    assert again is doubled  # by name, as any function of a module
    assert pickle.loads(pickle.dumps(doubled)) is doubled  # noqa: S301
    assert doubled.__name__ == "doubled"
    assert doubled(pd.DataFrame({"a": [1]})).c.tolist() == [2]
    one, two = (dask_exo.options(num_gpus=1)(Model, 2) for _ in range(2))
    assert tokenize(one) == tokenize(two) == tokenize(cloudpickle.loads(cloudpickle.dumps(one)))
    assert tokenize(one) != tokenize(dask_exo.options(num_gpus=1)(Model, 3))
    assert tokenize(one) != tokenize(dask_exo.options(num_gpus=2)(Model, 2))
    assert repr(one) == "<Model that requests 1 CPU, 1 GPU>"


def test_an_exception_keeps_its_type(noting, ddf):
    @dask_exo.options(num_gpus=1)
    def fails(frame):
        raise ZeroDivisionError("of the user")

    made = ddf.map_partitions(fails, meta=ddf._meta)
    with pytest.raises(ZeroDivisionError, match="of the user"):
        made.compute(scheduler=Scheduler(noting))
    assert noting.stopped == noting.started


def test_what_no_node_has_is_refused_at_once(ddf):
    futures = Noting([Node("a", 4, 2**30, resources={"CPU": 4}), Node("b", 2, 2**30, resources={})])
    message = r"doubled requests 1 CPU, 1 GPU on one node, but the nodes have 4 CPU, 0 GPU; 0 CPU"
    with pytest.raises(OptionsError, match=message):
        ddf.map_partitions(doubled).compute(scheduler=Scheduler(futures))
    assert not futures.requested


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_gpus": -1}, "GPU: -1 is not an amount"),
        ({"num_cpus": "two"}, "CPU: 'two' is not an amount"),
        ({"resources": {"disk": 1.5}}, "disk: 1.5 is not possible: need a whole number"),
        ({"batch_size": 0}, "batch_size=0: need a number from 1"),
        ({"max_batch_bytes": 0}, "max_batch_bytes=0: need a number from 1"),
        ({"concurrency": (3, 2)}, "concurrency=2: need a number from 3"),
        ({"concurrency": 0}, "concurrency=0: need a number from 1"),
    ],
)
def test_options_that_cannot_be(given, message):
    with pytest.raises(OptionsError, match=message):
        dask_exo.options(**given)


def test_functions_that_cannot_be():
    with pytest.raises(OptionsError, match="need a function, or a class with"):
        dask_exo.options()(object)
    with pytest.raises(OptionsError, match="need them in the call"):
        dask_exo.options()(abs, 1)
    with pytest.raises(OptionsError, match="its first argument is int"):
        dask_exo.options(batch_size=1)(abs)(1)
    with pytest.raises(OptionsError, match="has returned int for a batch"):
        dask_exo.options(batch_size=1)(len)(np.arange(2))
