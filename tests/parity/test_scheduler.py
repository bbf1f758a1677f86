"""The whole path but Ray: rewrite, plan, loop and shuffles in one process, against Dask's own."""

from __future__ import annotations

import operator
import tempfile
import threading

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo import Scheduler
from dask_exo.cluster.futures import Node
from dask_exo.errors import ConfigError, IntegrityError
from dask_exo.execution.worker import run_map
from dask_exo.planning.normalize import normalize
from dask_exo.planning.partitioners import ShuffleNode
from dask_exo.report import recording
from dask_exo.testing import InlineFutures
from tests._data import NODES, frames, table


@pytest.fixture(params=["simple", "push"])
def algorithm(request):
    with dask.config.set({"exo.shuffle.algorithm": request.param}):
        yield request.param


@pytest.fixture(params=["tasks", "disk", "p2p"])
def method(request):
    with dask.config.set({"dataframe.shuffle.method": request.param}):
        yield request.param


CASES = {
    "shuffle": lambda d: d.shuffle("i"),
    "shuffle wide": lambda d: d.shuffle("i", npartitions=40),
    "shuffle narrow": lambda d: d.shuffle("i", npartitions=2),
    "shuffle on index": lambda d: d.shuffle(on_index=True),
    "shuffle, one partition": lambda d: d.shuffle("i").partitions[3],
    "shuffle, some partitions": lambda d: d.shuffle("i", npartitions=20).partitions[[7, 3, 12]],
    "shuffle, then map": lambda d: d.shuffle("s").map_partitions(lambda p: p.assign(g=p.f * 2)),
    "two shuffles": lambda d: d.shuffle("i").assign(h=1).shuffle("s", npartitions=5),
    "set_index": lambda d: d.set_index("f"),
    "set_index of times": lambda d: d.set_index("z"),
    "sort_values": lambda d: d.sort_values("f").map_partitions(lambda p: p),
    "merge": lambda d: d.merge(d[["i", "f"]][d.f < 0.1], on="i", broadcast=False),
    "merge, outer": lambda d: d[d.f < 0.1].merge(
        d[d.f > 0.9], on="i", how="outer", broadcast=False
    ),
    "merge, left": lambda d: d[d.f < 0.1].merge(d[d.f > 0.9], on="i", how="left", broadcast=False),
    "groupby apply": lambda d: (
        d[["s", "f"]].groupby("s").apply(lambda g: g.f.max(), meta=pd.Series(dtype="f8"))
    ),
    "groupby agg": lambda d: d.groupby("i").agg({"f": ["sum", "mean"]}, split_out=3),
    "groupby median": lambda d: d[["i", "f"]].groupby("i").median(split_out=2),
    "drop_duplicates": lambda d: d[["i", "s"]].drop_duplicates(split_out=3),
    "value_counts": lambda d: d["i"].value_counts(split_out=2),
    "nunique": lambda d: d["i"].nunique(),
    "sum": lambda d: d[["i", "f"]].sum(),
}


def in_order(value):
    """A frame in an order of its own: a shuffle may bring groups in any."""
    if not isinstance(value, (pd.DataFrame, pd.Series)):
        return value
    return value.sort_values(list(value.columns)) if value.ndim == 2 else value.sort_index()


@pytest.mark.parametrize("name", CASES)
def test_a_dataframe_is_computed_as_by_dask(name, exo, method, algorithm) -> None:
    build = CASES[name]
    got = in_order(build(frames()).compute(scheduler=exo))
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        expected = in_order(build(frames()).compute(scheduler="sync"))
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(got, expected)
    elif isinstance(expected, pd.Series):
        pd.testing.assert_series_equal(got, expected)
    else:
        assert got == expected


@pytest.mark.parametrize("name", ["shuffle", "merge", "set_index", "groupby apply"])
def test_no_shuffle_of_dasks_own_is_left(name, exo, method) -> None:
    with recording() as stats:
        CASES[name](frames()).compute(scheduler=exo)
    assert len(stats.shuffles) == (2 if name == "merge" else 1)
    assert not [group for group in stats.tasks if "barrier" in group or "split" in group]


def test_input_order_is_kept_within_an_output_partition(exo, algorithm) -> None:
    ddf = frames(npartitions=13)
    parts = dask.compute(*ddf.shuffle("s", npartitions=4).to_delayed(), scheduler="sync")
    got = ddf.shuffle("s", npartitions=4).map_partitions(
        lambda p: pd.DataFrame({"ok": [p.index.is_monotonic_increasing]})
    )
    assert got.compute(scheduler=exo)["ok"].all()
    assert sum(len(part) for part in parts) == 2000


@pytest.mark.parametrize("ignore_index", [True, False])
def test_the_index_is_ignored_where_dask_ignores_it(exo, method, ignore_index) -> None:
    pdf = pd.DataFrame({"i": range(60)}, index=[f"row {i:02}" for i in range(60)])
    ddf = dd.from_pandas(pdf, npartitions=5)
    got = ddf.shuffle("i", ignore_index=ignore_index).compute(scheduler=exo)
    assert sorted(got.i) == list(pdf.i)
    if ignore_index and method == "tasks":
        assert got.index.dtype.kind == "i"
    else:
        pd.testing.assert_frame_equal(got.sort_index(), pdf, check_index_type=False)


def test_arrays_bags_delayed_and_raw_graphs_are_computed(exo) -> None:
    x = da.random.default_rng(1).random((300, 200), chunks=(50, 70))
    np.testing.assert_array_equal(
        (x.T @ x).compute(scheduler=exo), (x.T @ x).compute(scheduler="sync")
    )
    bag = db.range(100, npartitions=7).map(lambda v: v % 10).frequencies()
    assert sorted(bag.compute(scheduler=exo)) == [(i, 10) for i in range(10)]
    tree = [dask.delayed(operator.add)(i, i) for i in range(20)]
    assert dask.delayed(sum)(tree).compute(scheduler=exo) == 380
    graph = {"a": 1, "b": (operator.add, "a", 10), "c": [(operator.mul, "b", 2), "a"], "d": "b"}
    assert exo(graph, ["a", ["b", "c"], "d"]) == (1, (11, [22, 1]), 11)
    assert exo(graph, "b") == 11


@pytest.mark.filterwarnings("ignore:Computing mixed collections")
def test_mixed_collections_are_computed_at_once(exo) -> None:
    ddf, x = frames(), da.ones((10, 10), chunks=5)
    got = dask.compute(ddf.f.sum(), x.sum(), dask.delayed(1), scheduler=exo)
    expected = dask.compute(ddf.f.sum(), x.sum(), dask.delayed(1), scheduler="sync")
    assert got == pytest.approx(expected)


def test_a_key_that_is_not_there_is_named(exo) -> None:
    with pytest.raises(KeyError, match="nowhere"):
        exo({"a": 1}, "nowhere")


class Lossy(InlineFutures):
    """A cluster on which one block loses its last row on the way."""

    def split(self, count, fn, *args, node=None, options=None):
        lossy = self.calls == 0 and fn is run_map

        def lose(*values):
            blocks = fn(*values)
            if lossy:
                blocks[0].offsets[-1] -= 1
            return blocks

        return super().split(count, lose, *args, node=node, options=options)


def test_a_row_lost_on_the_way_is_an_error_and_not_a_result() -> None:
    ddf = frames()
    with pytest.raises(IntegrityError, match="2000 rows went in, 1999 came out"):
        ddf.shuffle("i").map_partitions(len).compute(scheduler=Scheduler(Lossy()))
    with dask.config.set({"exo.shuffle.integrity": False}):
        assert (
            ddf.shuffle("i").map_partitions(len).compute(scheduler=Scheduler(Lossy())).sum() == 1999
        )


def test_a_row_lost_on_the_way_fails_all_persisted_partitions() -> None:
    lossy = Scheduler(Lossy())
    with dask.config.set(scheduler=lossy):
        shuffled = frames().shuffle("i").persist()
        first = shuffled.partitions[0]  # which is delivered before rows are compared
        del shuffled
        for thread in threading.enumerate():
            if thread.name == "dask_exo-run":
                thread.join()
        with pytest.raises(IntegrityError, match="2000 rows went in, 1999 came out"):
            first.compute()


@pytest.mark.parametrize("name", ["shuffle", "shuffle, some partitions", "merge", "set_index"])
def test_a_rewritten_graph_computes_the_same_on_any_scheduler(name, method) -> None:
    expr = CASES[name](frames()).optimize(fuse=False).expr
    keys = expr.__dask_keys__()
    graph, names, _ = normalize(expr, keys)
    assert any(isinstance(node, ShuffleNode) for node in graph.values())
    got = pd.concat(dask.get(graph, [names[key] for key in keys]))
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        expected = CASES[name](frames()).compute(scheduler="sync")
    pd.testing.assert_frame_equal(in_order(got), in_order(expected))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, object], list[str]]:
    """Random graphs of sums, items, aliases and literals, and some keys of it."""
    graph: dict[str, object] = {"k0": draw(st.integers(0, 9))}
    for i in range(1, draw(st.integers(2, 25))):
        known = st.sampled_from(sorted(graph))
        graph[f"k{i}"] = draw(
            st.one_of(
                st.integers(0, 9),
                known,
                st.builds(lambda a, b: (operator.add, a, b), known, known),
                st.builds(lambda a: (operator.getitem, [(abs, a), 7], 0), known),
                st.builds(lambda keys: (sum, keys), st.lists(known, max_size=4)),
            )
        )
    keys = draw(st.lists(st.sampled_from(sorted(graph)), min_size=1, max_size=5))
    return graph, keys


@given(graphs())
def test_any_graph_gives_what_dask_gives_and_leaves_no_ref(case) -> None:
    graph, keys = case
    futures = InlineFutures(NODES[3])
    assert Scheduler(futures)(graph, keys) == dask.get(graph, keys)
    assert futures.live == 0


def joined(*lists):
    return [len(lists), *[x for one in lists for x in one][-5:]]


def joined_in_place(*lists):
    """The same, and spoils what it was given."""
    made = joined(*lists)
    for one in lists:
        one.append("spoilt")
    return made


@st.composite
def layers(draw: st.DrawFn) -> tuple[list[tuple[tuple[str, int], list[tuple[str, int]]]], list]:
    """Groups of tasks alike, each of which reads some of those before; and some of their keys."""
    tasks: list[tuple[tuple[str, int], list[tuple[str, int]]]] = []
    for i in range(draw(st.integers(5, 60))):
        known = [key for key, _ in tasks[-8:]]
        reads = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        tasks.append(((draw(st.sampled_from("abc")), i), reads))
    keys = draw(st.lists(st.sampled_from([key for key, _ in tasks]), min_size=1, max_size=4))
    return tasks, keys


@given(layers(), st.sampled_from([0, 10**6]), st.sampled_from([1, 7]))
def test_tasks_that_share_a_call_do_not_see_each_others_writes(case, small, slots) -> None:
    tasks, keys = case
    expected = dask.get({key: (joined, *reads) for key, reads in tasks}, keys)
    futures = InlineFutures([Node("a", slots, 10**9)])
    with dask.config.set({"exo.scheduler.small-result": small}):
        got = Scheduler(futures)({key: (joined_in_place, *reads) for key, reads in tasks}, keys)
    assert got == expected
    assert futures.live == 0


@given(layers(), st.data())
def test_a_failure_in_a_call_is_that_of_the_task_that_failed(case, data) -> None:
    tasks, keys = case
    failing = data.draw(st.sampled_from([key for key, _ in tasks]))
    graph = {key: (joined, *reads) for key, reads in tasks}
    graph[failing] = (operator.truediv, 1, 0)
    try:
        expected = dask.get(graph, keys)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            Scheduler(InlineFutures())(graph, keys)
    else:
        assert Scheduler(InlineFutures())(graph, keys) == expected


def test_a_tree_follows_itself_within_few_calls() -> None:
    level = [("leaf", i) for i in range(1000)]
    graph: dict = {key: (list, [key[1]]) for key in level}
    while len(level) > 1:
        above = [(f"depth{len(level)}", i) for i in range(-(-len(level) // 2))]
        graph.update({key: (sum, level[2 * key[1] : 2 * key[1] + 2], []) for key in above})
        level = above
    futures = InlineFutures(NODES[1])
    assert sorted(Scheduler(futures)(graph, level)[0]) == list(range(1000))
    assert futures.calls < 100


def test_a_broadcast_join_is_one_task_for_each_partition() -> None:
    left = dd.from_pandas(table(4000), npartitions=40).persist(scheduler="sync")
    right = dd.from_pandas(table(40).drop_duplicates("i"), npartitions=2).persist(scheduler="sync")
    merged = left.merge(right, on="i", broadcast=True)
    futures = InlineFutures(NODES[1])
    with dask.config.set({"exo.scheduler.bundle-target": 0, "exo.scheduler.small-result": 0}):
        got = merged.compute(scheduler=Scheduler(futures))
    assert futures.calls < 60
    expected = table(4000).merge(table(40).drop_duplicates("i"), on="i")
    columns = list(expected.columns)
    pd.testing.assert_frame_equal(
        got.sort_values(columns, ignore_index=True),
        expected.sort_values(columns, ignore_index=True),
        check_dtype=False,
    )


def make_part(number: int, columns=None) -> pd.DataFrame:
    return pd.DataFrame({"a": [number], "b": [2 * number]})[columns or ["a", "b"]]


def test_making_a_graph_may_compute() -> None:
    """The metadata of a projected ``from_map`` is computed while its graph is made."""
    exo = Scheduler(InlineFutures())
    with dask.config.set(scheduler=exo):
        ddf = dd.from_map(make_part, range(3), enforce_metadata=True)
        found = ddf[["a"]].compute()
    pd.testing.assert_frame_equal(found.reset_index(drop=True), pd.DataFrame({"a": [0, 1, 2]}))


class Target:
    """Cannot leave the process."""

    def __init__(self):
        self.rows, self.lock = 0, threading.Lock()

    def __setitem__(self, where, what):
        with self.lock:
            self.rows += len(what)


class Array(Target):
    """The same, and remembers."""

    def __init__(self):
        super().__init__()
        self.values = np.zeros((400, 250))

    def __setitem__(self, where, what):
        self.values[where] = what

    def __getitem__(self, where):
        return self.values[where]


def test_store_writes_into_arrays_of_this_process() -> None:
    exo = Scheduler(InlineFutures())
    x = np.arange(100_000.0).reshape(400, 250)
    chunked = da.from_array(x, chunks=(150, 100)) + 1
    target, other = np.zeros_like(x), np.zeros_like(x)
    chunked.store(target, scheduler=exo)
    np.testing.assert_array_equal(target, x + 1)
    kept = da.store([chunked, chunked * 2], [target, other], return_stored=True, compute=False)
    first, second = dask.compute(*kept, scheduler=exo)
    np.testing.assert_array_equal(first, x + 1)
    np.testing.assert_array_equal(second, (x + 1) * 2)
    np.testing.assert_array_equal(other, (x + 1) * 2)
    with tempfile.TemporaryDirectory() as directory:
        mapped = np.memmap(f"{directory}/x", x.dtype, "w+", shape=x.shape)
        da.store(chunked, mapped, lock=threading.Lock(), scheduler=exo)
        np.testing.assert_array_equal(mapped, x + 1)
    mine = Target()
    da.store(chunked, mine, scheduler=exo)
    assert mine.rows == len(x) * 3  # three chunks across
    kept = da.store(chunked, target, lock=threading.Lock(), return_stored=True, compute=False)
    np.testing.assert_array_equal(
        (kept.persist(scheduler=exo) * 2).compute(scheduler=exo), (x + 1) * 2
    )
    loaded = da.store(
        chunked, mine_too := Array(), return_stored=True, load_stored=True, compute=False
    )
    np.testing.assert_array_equal(loaded.compute(scheduler=exo), x + 1)
    assert mine_too.lock.acquire(blocking=False)
    stored = da.store(chunked, target, lock=threading.Lock(), return_stored=True, scheduler=exo)
    np.testing.assert_array_equal(stored.compute(scheduler=exo), x + 1)
    small = np.zeros(4)
    da.store(da.ones(4, chunks=2), small, regions=(slice(0, 4),), scheduler=exo)
    np.testing.assert_array_equal(small, 1)


@pytest.mark.parametrize("name", ["magnet", "riffle", "two-level", "streaming"])
def test_every_algorithm_gives_the_same_result(exo, name) -> None:
    left = dd.from_pandas(table(), npartitions=9)
    right = dd.from_pandas(table(500, seed=1)[["i", "f"]], npartitions=4)
    job = left.merge(right, on="i", how="outer").set_index("i").f_x
    settings = {"exo.shuffle.algorithm": name, "exo.shuffle.round-fraction": 1e-7}
    with dask.config.set(settings), recording() as stats:
        got = job.compute(scheduler=exo)
    assert {shuffle.algorithm for shuffle in stats.shuffles} == {name}
    expected = job.compute(scheduler="sync")
    pd.testing.assert_series_equal(
        got.sort_index().groupby(level=0).sum(), expected.groupby(level=0).sum()
    )
    assert sorted(got.fillna(-1)) == sorted(expected.fillna(-1))


def test_an_unknown_algorithm_is_refused_before_anything_runs() -> None:
    futures = InlineFutures()
    job = dd.from_pandas(table(), npartitions=3).shuffle("i")
    with (
        dask.config.set({"exo.shuffle.algorithm": "magic"}),
        pytest.raises(ConfigError, match=r"'magic' is no shuffle algorithm: .* simple"),
    ):
        job.compute(scheduler=Scheduler(futures))
    assert futures.calls == 0
