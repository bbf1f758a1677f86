"""Shuffles that Dask has made a graph of, run as Exoshuffles: against Dask, numpy and pandas."""

from __future__ import annotations

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.core import flatten
from hypothesis import given
from hypothesis import strategies as st

from dask_exo import Scheduler
from dask_exo.dask_adapter import Alias, DataNode, Task, TaskRef, roles
from dask_exo.errors import IntegrityError, ShuffleMethodError
from dask_exo.execution.persisted import Local, Promise, fetch
from dask_exo.execution.worker import run_map
from dask_exo.planning.graph_passes import unfuse
from dask_exo.planning.normalize import normalize
from dask_exo.planning.partitioners import ShuffleNode
from dask_exo.report import recording
from dask_exo.testing import InlineFutures
from tests import _data
from tests._data import NODES, inline, table


@pytest.fixture(autouse=True)
def quick_files(monkeypatch):
    """Dask's groupby by disk, the oracle, waits for the disk after each item."""
    monkeypatch.setattr("os.fsync", lambda file: None)


@pytest.fixture(params=[(1, "simple"), (3, "push")], ids=["one-node", "three-nodes"])
def exo(request):
    count, algorithm = request.param
    with dask.config.set({"exo.shuffle.algorithm": algorithm}):
        yield inline(count)


@pytest.fixture
def p2p():
    with dask.config.set(
        {
            "dataframe.shuffle.method": "p2p",
            "array.rechunk.method": "p2p",
            "array.chunk-size": "1B",  # else small chunks are united before
        }
    ):
        yield


def frames(npartitions: int = 6) -> dd.DataFrame:
    return _data.frames(500, npartitions)


def other() -> dd.DataFrame:
    return dd.from_pandas(table(120, seed=1)[["i", "f"]], npartitions=3)


FRAMES = {
    "shuffle": lambda: frames().shuffle("i"),
    "shuffle wide": lambda: frames().shuffle("i", npartitions=19),
    "shuffle on index": lambda: frames().shuffle(on_index=True),
    "shuffle, then map": lambda: frames().shuffle("s").map_partitions(lambda p: p.assign(g=p.f)),
    "two shuffles": lambda: frames().shuffle("i").assign(h=1).shuffle("s", npartitions=4),
    "merge": lambda: frames().merge(other(), on="i", broadcast=False),
    "merge, outer": lambda: frames().merge(other(), on="i", how="outer", broadcast=False),
    "merge on index": lambda: frames().merge(
        other(), left_on="i", right_index=True, how="left", broadcast=False
    ),
    "groupby apply": lambda: (
        frames()[["s", "f"]].groupby("s").apply(lambda g: g.f.max(), meta=pd.Series(dtype="f8"))
    ),
    "set_index": lambda: frames().set_index("f"),
}


def rows_of(parts) -> pd.DataFrame:
    """Rows of partitions, in an order of their own."""
    whole = pd.concat(parts)
    if whole.ndim == 1:
        return whole.sort_index()
    return whole.sort_values(list(whole.columns), ignore_index=True)


def by_dask(build):
    with dask.config.set({"dataframe.shuffle.method": "tasks", "array.rechunk.method": "tasks"}):
        return build()


def equal(got, expected) -> None:
    if isinstance(expected, pd.Series):
        pd.testing.assert_series_equal(got, expected, check_names=False)
    else:
        pd.testing.assert_frame_equal(got, expected)


@pytest.mark.parametrize("name", FRAMES)
def test_delayed_partitions_of_a_shuffled_frame(name, exo, p2p) -> None:
    parts = FRAMES[name]().to_delayed()
    with recording() as stats:
        got = dask.compute(*parts, scheduler=exo)
    assert len(stats.shuffles) == (2 if name in {"two shuffles"} or "merge" in name else 1)
    expected = by_dask(lambda: dask.compute(*FRAMES[name]().to_delayed(), scheduler="sync"))
    assert len(got) == len(expected)
    equal(rows_of(got), rows_of(expected))


def test_partitions_have_their_rows_in_input_order(exo, p2p) -> None:
    got = dask.compute(*frames().shuffle("i", npartitions=5).to_delayed(), scheduler=exo)
    expected = by_dask(
        lambda: dask.compute(*frames().shuffle("i", npartitions=5).to_delayed(), scheduler="sync")
    )
    for mine, theirs in zip(got, expected, strict=True):
        pd.testing.assert_frame_equal(mine.sort_index(), theirs.sort_index())
        assert mine.index.is_monotonic_increasing


def test_only_the_partitions_that_are_asked_for_are_made(exo, p2p) -> None:
    parts = frames().shuffle("i", npartitions=8).to_delayed()
    with recording() as stats:
        got = dask.compute(parts[5], parts[2], parts[5], scheduler=exo)
    expected = by_dask(
        lambda: dask.compute(*frames().shuffle("i", npartitions=8).to_delayed(), scheduler="sync")
    )
    for mine, number in zip(got, (5, 2, 5), strict=True):
        pd.testing.assert_frame_equal(mine, expected[number].loc[mine.index])
        assert len(mine) == len(expected[number])
    (shuffle,) = stats.shuffles
    assert shuffle.reducers == 2


@pytest.mark.filterwarnings("ignore:Computing mixed collections")
def test_delayed_values_mixed_with_frames(exo, p2p) -> None:
    def build():
        shuffled = frames().shuffle("i", npartitions=5)
        biggest = dask.delayed(max)([dask.delayed(len)(part) for part in shuffled.to_delayed()])
        return dask.delayed(lambda a, b: (a, b))(biggest, 1), shuffled.f.sum()

    first, total = dask.compute(*build(), scheduler=exo)
    expected = by_dask(lambda: dask.compute(*build(), scheduler="sync"))
    assert (first, total) == (expected[0], pytest.approx(expected[1]))


def test_a_frame_that_is_used_before_and_after_its_shuffle(exo, p2p) -> None:
    def build():
        ddf = frames()
        before = [dask.delayed(len)(part) for part in ddf.to_delayed()]
        after = [dask.delayed(len)(part) for part in ddf.shuffle("i").to_delayed()]
        return dask.delayed(lambda a, b: (a, sum(b)))(before, after)

    assert build().compute(scheduler=exo) == by_dask(lambda: build().compute(scheduler="sync"))


def barriers_left(collection) -> list[object]:
    """Keys of a normalized graph that belong to a shuffle of Dask's own."""
    graph, *_ = normalize(collection.__dask_graph__(), list(flatten(collection.__dask_keys__())))
    assert any(isinstance(node, ShuffleNode) for node in graph.values())
    return [
        key for key in graph if key in roles(graph) or "barrier" in str(key) or "partd" in str(key)
    ]


def test_nothing_of_the_old_shuffle_is_left(p2p) -> None:
    merged = frames().merge(other(), on="i", broadcast=False).to_delayed()
    assert not barriers_left(dask.delayed(list)(merged))
    assert not barriers_left(da.ones((20, 20), chunks=(5, 20)).rechunk((20, 5)))
    bag = db.range(50, npartitions=5)
    assert not barriers_left(bag.groupby(odd, shuffle="disk"))


def odd(x: int) -> int:
    return x % 2


SHAPES = {
    "1d": ((40,), (7,), (11,)),
    "1d, uneven": ((30,), ((5, 1, 9, 15),), ((8, 8, 14),)),
    "2d, transposed": ((24, 18), (4, 18), (24, 3)),
    "2d, partial": ((24, 18), (5, 4), (7, 18)),
    "2d, along one axis": ((24, 18), (5, 4), (8, 4)),
    "3d": ((8, 9, 10), (2, 9, 5), (8, 3, 2)),
    "3d, uneven": ((8, 9, 10), ((3, 5), (2, 2, 5), (10,)), ((8,), (4, 5), (1, 9))),
    "empty chunks": ((8, 6), ((4, 0, 4), (2, 4)), ((3, 5), (1, 5))),
    "empty new chunks": ((8, 6), ((4, 4), (2, 4)), ((3, 0, 5), (1, 5))),
    "one chunk": ((12, 12), (3, 3), (12, 12)),
    "from one chunk": ((12, 12), (12, 12), (5, 5)),
}


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_a_rechunked_array_is_the_same_array(name, exo, p2p, optimize) -> None:
    shape, old, new = SHAPES[name]
    values = np.arange(np.prod(shape)).reshape(shape)
    x = da.from_array(values, chunks=old)
    y = x.rechunk(new)
    got = y.compute(scheduler=exo, optimize_graph=optimize)
    np.testing.assert_array_equal(got, values)
    chunks = dask.compute(*y.to_delayed().ravel(), scheduler=exo)
    sizes = [block.shape for block in chunks]
    assert sizes == [tuple(len(r) for r in idx) for idx in _blocks(y.chunks)]


def _blocks(chunks):
    from itertools import product

    return product(*([range(n) for n in axis] for axis in chunks))


CHANGES = {
    "none": lambda x: x,
    "map": lambda x: x + 1,
    "slice": lambda x: x[3:17:2, ::3],
    "one element": lambda x: x[5, 7],
    "some chunks": lambda x: x.blocks[1:3, 1],
    "reduction": lambda x: x.sum(axis=0),
    "reduction of all": lambda x: x.max(),
    "again": lambda x: (x * 2).rechunk((20, 4)).rechunk((3, 9)) - 1,
    "self product": lambda x: x.T @ x,
}


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_made_of_a_rechunked_array(name, exo, p2p, optimize) -> None:
    def build():
        x = da.from_array(np.arange(20 * 30).reshape(20, 30), chunks=(20, 4)) - 5
        return CHANGES[name](x.rechunk((6, 13)))

    with recording() as stats:
        got = build().compute(scheduler=exo, optimize_graph=optimize)
    assert stats.shuffles or name in {"one element"}
    np.testing.assert_array_equal(got, by_dask(lambda: build().compute(scheduler="sync")))


DTYPES = {
    "float": lambda n: np.linspace(0, 1, n),
    "bool": lambda n: np.arange(n) % 3 == 0,
    "complex": lambda n: np.arange(n) * 1j,
    "time": lambda n: np.datetime64("2026-01-01") + np.arange(n),
    "fixed text": lambda n: np.array([f"t{i}" for i in range(n)]),
    "structured": lambda n: np.array(
        [(i, i / 2) for i in range(n)], dtype=[("a", "i4"), ("b", "f8")]
    ),
    "object": lambda n: np.array([(i, "t") if i % 2 else None for i in range(n)] + [0], "O")[:-1],
    "big-endian": lambda n: np.arange(n, dtype=">i8"),
    "fortran": lambda n: np.asfortranarray(np.arange(n).reshape(12, -1)).ravel(order="K"),
}


@pytest.mark.parametrize("name", DTYPES)
def test_arrays_of_any_dtype_are_rechunked(name, exo, p2p) -> None:
    values = DTYPES[name](12 * 10).reshape(12, 10)
    y = da.from_array(values, chunks=(3, 10)).rechunk((12, 3))
    got = y.compute(scheduler=exo)
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got, values)


def test_masked_arrays_are_rechunked(exo, p2p) -> None:
    values = np.ma.masked_greater(np.arange(60).reshape(6, 10), 31)
    got = da.from_array(values, chunks=(2, 10)).rechunk((6, 3)).compute(scheduler=exo)
    assert isinstance(got, np.ma.MaskedArray)
    np.testing.assert_array_equal(got.mask, values.mask)
    np.testing.assert_array_equal(got.filled(-1), values.filled(-1))


def test_unknown_chunks_are_rechunked_along_the_other_axis(exo, p2p) -> None:
    values = np.arange(120).reshape(12, 10)

    def build():
        x = da.from_array(values, chunks=(4, 10))
        return x[x[:, 0] % 3 == 0].rechunk({1: 3})

    np.testing.assert_array_equal(build().compute(scheduler=exo), values[values[:, 0] % 3 == 0])


@st.composite
def regrids(draw: st.DrawFn):
    """A shape, and two ways to divide it."""

    def divide(n):
        cuts = sorted(draw(st.sets(st.integers(1, n - 1), max_size=4))) if n > 1 else []
        return tuple(b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True))

    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    return shape, tuple(map(divide, shape)), tuple(map(divide, shape)), draw(st.booleans())


@given(regrids())
def test_any_grid_can_become_any_other(case) -> None:
    shape, old, new, optimize = case
    values = np.arange(np.prod(shape)).reshape(shape)
    with dask.config.set({"array.rechunk.method": "p2p"}):
        y = da.from_array(values, chunks=old).rechunk(new)
    futures = InlineFutures(NODES[3])
    got = y.compute(scheduler=Scheduler(futures), optimize_graph=optimize)
    np.testing.assert_array_equal(got, values)
    assert futures.live == 0


ITEMS = {
    "integers": lambda n: list(range(n)),
    "words": lambda n: [f"w{i % 23}" * (i % 4) for i in range(n)],
    "mixed": lambda n: [(i, f"{i}", i / 2, None, i * 1j, frozenset([i]))[i % 6] for i in range(n)],
    "equal keys": lambda n: [(1, 1.0, True, 0, False)[i % 5] for i in range(n)],
    "arrays": lambda n: [np.arange(i % 4) for i in range(n)],
}

GROUPERS = {
    "integers": lambda x: x % 7,
    "words": len,
    "mixed": lambda x: type(x).__name__,
    "equal keys": lambda x: x,
    "arrays": lambda x: x.sum() if len(x) > 1 else None,
}


def plain(value):
    """The same with lists for arrays, which have no plain equality."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value


def same_groups(got, expected, method: str) -> bool:
    """Whether both have the same groups in the same order.

    By disk Dask's order is that in which its tasks happened to run.
    """
    got, expected = plain(got), plain(expected)
    if method == "disk":
        got = sorted((repr(k), sorted(map(repr, v))) for k, v in got)
        expected = sorted((repr(k), sorted(map(repr, v))) for k, v in expected)
    return got == expected


def some(name: str, npartitions: int) -> db.Bag:
    return db.from_sequence(ITEMS[name](120), npartitions=npartitions)


@pytest.mark.parametrize("method", ["disk", "tasks"])
@pytest.mark.parametrize("name", ITEMS)
def test_a_bag_is_grouped_as_by_dask(name, method, exo) -> None:
    grouped = some(name, 4).groupby(GROUPERS[name], shuffle=method)
    got = dask.compute(*grouped.to_delayed(), scheduler=exo)
    expected = dask.compute(*grouped.to_delayed(), scheduler="sync")
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert same_groups(mine, theirs, method)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("npartitions", [1, 3, 40])
@pytest.mark.parametrize("method", ["disk", "tasks"])
def test_a_bag_of_any_size_is_grouped_by_one_shuffle(method, npartitions, optimize) -> None:
    exo = inline(3)
    grouped = some("integers", npartitions).groupby(GROUPERS["integers"], shuffle=method)
    with recording() as stats:
        got = grouped.compute(scheduler=exo, optimize_graph=optimize)
    assert len(stats.shuffles) == (0 if (method, npartitions) == ("tasks", 1) else 1)
    assert same_groups(got, grouped.compute(scheduler="sync"), method)


def test_tuples_stay_tuples_where_dasks_file_makes_lists_of_them(exo) -> None:
    grouped = db.from_sequence([(i, str(i)) for i in range(9)], npartitions=3).groupby(
        lambda kv: (kv[0] % 2,), shuffle="disk"
    )
    assert dict(grouped.compute(scheduler=exo)) == {
        (k,): [(i, str(i)) for i in range(k, 9, 2)] for k in range(2)
    }


@pytest.mark.parametrize("method", ["disk", "tasks"])
def test_items_of_a_group_are_in_the_order_of_the_bag(method, exo) -> None:
    got = some("integers", 6).groupby(lambda x: x % 5, shuffle=method).compute(scheduler=exo)
    assert dict(got) == {k: list(range(k, 120, 5)) for k in range(5)}


@pytest.mark.parametrize(
    "change",
    [
        lambda bag: bag.map(lambda kv: (kv[0], sum(kv[1]))),
        lambda bag: bag.count(),
        lambda bag: bag.filter(lambda kv: kv[0] > 3).map(len).sum(),
        lambda bag: (
            bag.map(lambda kv: {"k": kv[0], "n": len(kv[1])}).to_dataframe({"k": int, "n": int})
        ).n.sum(),
        lambda bag: (
            bag.map(lambda kv: (kv[0] % 3, len(kv[1]))).groupby(lambda kv: kv[0]).map(len).sum()
        ),
        lambda bag: bag.pluck(1).flatten().frequencies(),
        lambda bag: bag.repartition(2).map(lambda kv: kv[0]),
        lambda bag: dask.delayed(len)(bag.to_delayed()[0]),
    ],
    ids=["map", "count", "filter", "frame", "again", "flatten", "repartition", "delayed"],
)
@pytest.mark.parametrize("method", ["disk", "tasks"])
def test_what_is_made_of_a_grouped_bag(change, method, exo) -> None:
    bag = db.range(120, npartitions=12).map(lambda x: x * 3)
    with dask.config.set({"dataframe.shuffle.method": method}):
        result = change(bag.groupby(lambda x: x % 11))
    got, expected = result.compute(scheduler=exo), result.compute(scheduler="sync")
    if isinstance(expected, list) and method == "disk":
        got, expected = sorted(got), sorted(expected)
    assert got == expected


@pytest.mark.parametrize("npartitions", [1, 9])
def test_groupby_by_disk_into_another_number_of_partitions(npartitions, exo) -> None:
    bag = db.range(100, npartitions=5)
    grouped = bag.groupby(lambda x: x % 13, shuffle="disk", npartitions=npartitions)
    parts = dask.compute(*grouped.to_delayed(), scheduler=exo)
    assert len(parts) == npartitions
    expected = dask.compute(*grouped.to_delayed(), scheduler="sync")
    for mine, theirs in zip(parts, expected, strict=True):
        assert same_groups(mine, theirs, "disk")


@pytest.mark.parametrize("max_branch", [2, 3, 5])
def test_groupby_by_tasks_in_several_steps(max_branch, exo) -> None:
    bag = db.range(200, npartitions=11)
    grouped = bag.groupby(lambda x: x % 29, shuffle="tasks", max_branch=max_branch)
    assert grouped.compute(scheduler=exo) == grouped.compute(scheduler="sync")
    some = dask.compute(*grouped.to_delayed()[3:6], scheduler=exo)
    expected = dask.compute(*grouped.to_delayed()[3:6], scheduler="sync")
    assert list(map(list, some)) == list(map(list, expected))


def test_a_bag_that_is_used_before_and_after_it_is_grouped(exo) -> None:
    bag = db.range(60, npartitions=4).map(lambda x: x + 1)
    groups = [bag.groupby(odd, shuffle=method) for method in ("tasks", "disk")]
    total, by_tasks, by_disk = dask.compute(bag.sum(), *groups, scheduler=exo)
    assert total == sum(range(1, 61))
    assert dict(by_tasks) == dict(by_disk) == {1: list(range(1, 61, 2)), 0: list(range(2, 61, 2))}


def test_no_file_is_written_by_a_groupby_by_disk(exo, tmp_path) -> None:
    with dask.config.set(temporary_directory=str(tmp_path)):
        got = db.range(60, npartitions=4).groupby(odd, shuffle="disk").count()
        assert got.compute(scheduler=exo) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "build",
    [
        lambda: dask.delayed(list)(frames().shuffle("i").map_partitions(len).to_delayed()),
        lambda: dask.delayed(list)(
            frames().merge(other(), on="i", broadcast=False).map_partitions(len).to_delayed()
        ),
        lambda: da.arange(100, chunks=7).reshape(10, 10).rechunk((10, 3)).rechunk((4, 10)).sum(),
        lambda: db.range(50, npartitions=5).groupby(odd, shuffle="disk").count(),
        lambda: db.range(50, npartitions=5).groupby(odd, shuffle="tasks").count(),
    ],
    ids=["shuffle", "merge", "rechunk", "disk", "tasks"],
)
def test_the_new_graph_computes_the_same_on_any_scheduler(build, p2p) -> None:
    collection = build()
    keys = list(flatten(collection.__dask_keys__()))
    graph, names, _ = normalize(collection.__dask_graph__(), keys)
    (got,) = dask.get(graph, [names[key] for key in keys])
    expected = by_dask(lambda: build().compute(scheduler="sync"))
    assert np.sum(got) == np.sum(expected)


class Lossy(InlineFutures):
    """A cluster on which a pickle of the first map gets lost."""

    lost = False

    def split(self, count, fn, *args, node=None, options=None):
        def lose(*values):
            blocks = fn(*values)
            next(block for block in blocks[0].pickles if block).clear()
            return blocks

        if fn is not run_map or self.lost:
            return super().split(count, fn, *args, node=node, options=options)
        self.lost = True
        return super().split(count, lose, *args, node=node, options=options)


def test_a_lost_item_or_piece_is_an_error_and_not_a_result(p2p) -> None:
    for method in ("disk", "tasks"):
        grouped = db.range(60, npartitions=4).groupby(odd, shuffle=method)
        with pytest.raises(IntegrityError, match=r"60 rows went in, [0-9]+ came out"):
            grouped.compute(scheduler=Scheduler(Lossy()))
    rechunked = da.ones((20, 20), chunks=(5, 20)).rechunk((20, 5))
    with pytest.raises(IntegrityError, match=r"needs 4 blocks, and 3 arrived"):
        rechunked.compute(scheduler=Scheduler(Lossy()))


def test_without_integrity_nobody_sums_the_keys(exo, monkeypatch) -> None:
    from dask_exo.partitions import protocol

    summed = []
    host = protocol.kernels(pd.DataFrame())
    real = host.checksum
    monkeypatch.setattr(host, "checksum", lambda f, c: summed.append(c) or real(f, c))
    with dask.config.set({"exo.shuffle.integrity": False}):
        frames().shuffle("i").map_partitions(len).compute(scheduler=exo)
    assert summed
    assert not any(summed)
    frames().shuffle("i").map_partitions(len).compute(scheduler=exo)
    assert ("i",) in summed


def test_an_unknown_form_of_a_p2p_graph_is_refused(p2p) -> None:
    collection = dask.delayed(list)(frames().shuffle("i").to_delayed())
    graph = dict(collection.__dask_graph__())
    transfer = next(key for key in graph if "transfer" in str(key))
    graph[transfer] = Task(transfer, len, TaskRef("x"))
    graph["x"] = DataNode("x", [])
    with pytest.raises(ShuffleMethodError, match=r"not understand.*dataframe\.shuffle\.method"):
        normalize(graph, collection.key)


def test_an_unknown_form_of_a_disk_groupby_is_refused() -> None:
    grouped = db.range(10, npartitions=2).groupby(odd, shuffle="disk")
    graph = dict(grouped.__dask_graph__())
    part = next(key for key in graph if "groupby-part" in str(key))
    graph[part] = Task(part, list, [])
    with pytest.raises(ShuffleMethodError, match="would lose items"):
        normalize(graph, list(grouped.__dask_keys__()))


def test_fused_tasks_around_a_persisted_value_are_taken_apart() -> None:
    promise = Promise(location=Local(20))
    tasks = [
        Task("a", fetch, promise),
        Task("b", odd, TaskRef("a")),
        Task("c", max, TaskRef("b"), TaskRef("x")),
    ]
    graph = {
        "abc": Task.fuse(*tasks, key="abc"),
        "c": Alias("c", "abc"),
        "x": DataNode("x", 1),
        "other": Task.fuse(Task("y", odd, TaskRef("x")), Task("z", odd, TaskRef("y"))),
    }
    new = unfuse(graph)
    assert new["a"].func is fetch
    assert set(new) == {"abc", "a", "b", "c", "x", "other"}
    assert new["other"] is graph["other"]
    assert dask.get(new, ["c", "other"]) == dask.get(graph, ["c", "other"])


def test_fused_tasks_with_the_same_inner_keys_are_taken_apart() -> None:
    def fused(key, value):
        inner = Task.fuse(
            Task("a", fetch, Promise(location=Local(value))), Task("b", odd, TaskRef("a"))
        )
        return Task.fuse(inner, Task(key, max, TaskRef("b"), TaskRef("x")))

    graph = {"p": fused("p", 4), "q": fused("q", 3), "x": DataNode("x", 0)}
    new = unfuse(graph)
    assert [node.func for node in new.values() if isinstance(node, Task)].count(fetch) == 2
    assert dask.get(new, ["p", "q"]) == (0, 1)


def test_inner_keys_that_are_taken_keep_their_numbers() -> None:
    def fused(key):
        value = Task("x", fetch, Promise(location=Local(4)))
        return Task.fuse(value, Task(("y", 3), max, TaskRef("x"), 1), Task(key, odd, ref))

    ref = TaskRef(("y", 3))
    graph = unfuse({key: fused(key) for key in "pq"})
    assert [key for key in graph if isinstance(key, tuple) and key[-1] == 3] == [
        ("y", 3),
        ("y-unfused", "q", ("y", 3), 3),
    ]


def test_a_graph_without_shuffles_is_left_as_it_is() -> None:
    x = da.ones((4, 4), chunks=2) + 1
    graph, *_ = normalize(x.__dask_graph__(), list(flatten(x.__dask_keys__())))
    assert unfuse(graph) is graph


@pytest.mark.parametrize("method", ["tasks", "p2p"])
def test_a_partition_that_is_asked_for_twice_is_there_twice(method, exo) -> None:
    with dask.config.set({"dataframe.shuffle.method": method}):
        got = frames().shuffle("i").partitions[[3, 3, 1]].compute(scheduler=exo)
    expected = by_dask(lambda: dask.compute(*frames().shuffle("i").to_delayed(), scheduler="sync"))
    equal(rows_of([got]), rows_of([expected[3], expected[3], expected[1]]))


def with_table(part: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    return part.assign(a=part.a + table.a.max())


computed: list[int] = []


def counted(part: pd.DataFrame) -> pd.DataFrame:
    computed.append(len(part))
    return part


@pytest.mark.parametrize("run", ["compute", "persist", "optimize"])
def test_a_single_partition_that_all_read_is_computed_once(run: str) -> None:
    """Persisted and optimized collections come with the fusion of Dask."""
    source = pd.DataFrame({"a": range(12)})
    ddf, one = (dd.from_pandas(source, npartitions=n) for n in (4, 1))
    table = one.map_partitions(counted, meta=source.head(0))
    joined = ddf.map_partitions(with_table, table, meta=source.head(0))
    computed.clear()
    with dask.config.set(scheduler=Scheduler(InlineFutures())):
        found = joined.compute() if run == "compute" else getattr(joined, run)().compute()
    pd.testing.assert_frame_equal(found, source + 11)
    assert computed == [12]
