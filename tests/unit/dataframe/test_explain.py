"""What ``explain`` says is what happens."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo import Scheduler
from dask_exo.cluster.futures import Node
from dask_exo.errors import InputError
from dask_exo.report import recording
from dask_exo.shuffle.algorithms import choose_algorithm
from dask_exo.shuffle.choose import BOOKKEEPING, Limits, Shape
from dask_exo.testing import InlineFutures


class Counted(InlineFutures):
    """Counts the refs that shuffles make."""

    made = 0

    def split(self, count, fn, *args, node=None, options=None):
        self.made += count if fn.__name__ == "run_map" else 0
        return super().split(count, fn, *args, node=node, options=options)

    def stream(self, count, fn, *args, node=None, options=None):
        self.made += count
        return super().stream(count, fn, *args, node=node)


def machines(count: int, store: int = 10**9) -> Counted:
    return Counted([Node(f"n{i}", 2, store) for i in range(count)])


def frame() -> dd.DataFrame:
    source = pd.DataFrame({"k": np.arange(3000) % 7, "v": np.arange(3000) * 1.0})
    return dd.from_pandas(source, npartitions=12)


@pytest.mark.parametrize("algorithm", ["simple", "push", "magnet", "two-level", "streaming"])
@pytest.mark.parametrize("count", [1, 4])
def test_the_objects_it_names_are_those_that_are_made(algorithm, count) -> None:
    job = frame().shuffle("k", npartitions=5)
    settings = {
        "exo.shuffle.algorithm": algorithm,
        "exo.scheduler.bundle-target": 0,  # no parts share a call
        "exo.shuffle.round-fraction": 1e-9,
    }
    with dask.config.set(settings):
        f = machines(count)
        with recording() as stats, dask.config.set(scheduler=Scheduler(f)):
            job.compute()
        (ran,) = stats.shuffles
        plan = dask_exo.explain(job, nbytes=ran.nbytes, futures=machines(count))
    (shuffle,) = plan.shuffles
    ((_, choice, found),) = shuffle.sizes
    assert (shuffle.parts, shuffle.reducers) == (ran.maps, ran.reducers) == (12, 5)
    assert choice.algorithm == ran.algorithm == algorithm
    assert f.made == found[algorithm].objects


def test_it_computes_nothing_and_starts_nothing() -> None:
    def never(part):
        raise AssertionError

    job = frame().map_partitions(never, meta=frame()._meta).set_index("k", divisions=[0, 3, 6])
    f = machines(2)
    plan = dask_exo.explain(job, futures=f)
    assert f.calls == f.objects == 0
    sizes = [(shape.nbytes, choice.algorithm) for shape, choice, _ in plan.shuffles[0].sizes]
    assert sizes == [(10**9, "simple"), (3 * 10**9, "push")]


def test_the_text_names_what_was_chosen_and_why() -> None:
    merged = frame().merge(frame().assign(w=1), on="k").groupby("k").w.sum()
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        text = str(dask_exo.explain(merged, nbytes="40 GB", futures=machines(4)))
    assert "shuffles: 2, on 4 node(s) with 8 slots and 3.73 GiB of object store" in text
    assert text.count("push, since 37.25 GiB exceed 50% of the 3.73 GiB store") == 2
    assert text.count("▸ push") == 2
    assert all(text.count(f"  {name} ") == 2 for name in ("simple", "magnet", "riffle"))


def test_several_collections_are_one_computation() -> None:
    plan = dask_exo.explain(frame().v.sum(), frame().k.max(), futures=machines(1))
    assert plan.shuffles == []
    assert sum(plan.tasks.values()) >= 12


def test_costs_at_the_scale_of_cloudsort() -> None:
    """100 TB on 40 nodes: a plain shuffle would restore what it spilled 21 times."""
    shape = Shape(10**14, 50_000, 25_000, 40, 480, 40 * 38 * 10**9)
    choice, found = choose_algorithm(shape, Limits())
    assert choice.algorithm == "push"
    assert found["simple"].restored == 21 * found["simple"].spilled  # 250 blocks share an object
    assert found["simple"].seconds > 5 * found["push"].seconds
    assert found["push"].restored == found["push"].spilled < 10**14
    assert found["magnet"].spilled > 1.9 * found["push"].spilled
    assert found["push"].sent == 10**14 * 39 // 40
    assert found["two-level"].objects < found["push"].objects
    assert found["push"].metadata == BOOKKEEPING * found["push"].objects


def test_small_blocks_are_merged_on_several_nodes_only() -> None:
    """A million blocks take 16 slots 6.25 s, a third pass over 16 GB takes them 2.5 s."""
    nodes = [Node(f"n{i}", 4, 10**10) for i in range(4)]
    job = frame().repartition(npartitions=1000).shuffle("k")
    plan = dask_exo.explain(job, nbytes="16 GB", futures=InlineFutures(nodes))
    ((shape, choice, found),) = plan.shuffles[0].sizes
    assert (shape.parts, shape.reducers, choice.algorithm) == (1000, 1000, "push")
    assert "simple would take about 15 s, push 11 s" in str(plan)
    assert found["simple"].seconds == pytest.approx(2 * 2.5 + 0.3 + 6.25 + 3, rel=0.01)
    few = Shape(shape.nbytes, 64, 64, 4, 16, shape.store)
    alone = Shape(shape.nbytes, 1000, 1000, 1, 16, shape.store)
    assert [choose_algorithm(each, Limits())[0].algorithm for each in (few, alone)] == [
        "simple"
    ] * 2


def test_the_estimate_grows_with_what_must_be_done() -> None:
    def seconds(**changes):
        shape = Shape(10**11, 1000, 1000, 4, 16, 10**10)
        return {
            name: c.seconds
            for name, c in choose_algorithm(replace(shape, **changes), Limits())[1].items()
        }

    usual = seconds()
    for changes in ({"nbytes": 10**12}, {"parts": 10_000}, {"slots": 4}):
        assert all(seconds(**changes)[name] > usual[name] for name in usual)
    assert all(seconds(store=10**12)[name] < usual[name] for name in usual)


def test_data_that_fits_is_not_spilled() -> None:
    _, found = choose_algorithm(Shape(10**9, 10, 10, 1, 2, 10**10), Limits())
    assert {cost.spilled + cost.restored + cost.sent for cost in found.values()} == {0}


@dask_exo.options(num_gpus=0.5)
class Model:
    def __call__(self, part):
        return part.assign(w=1)


def test_needs_are_shown_and_the_picture_and_json_agree() -> None:
    source = frame()
    scored = source.map_partitions(Model, meta=source._meta.assign(w=1))
    plan = dask_exo.explain(scored.merge(frame(), on="k"), nbytes="40 GB", futures=machines(4))
    (asking,) = [group for group in plan.groups if group.needs]
    assert asking.needs == "1 CPU, 0.5 GPU, on actors (as many as fit)"
    assert f"each task of {asking.name} needs {asking.needs}" in str(plan)
    found = json.loads(plan.to_json())
    assert (found["nodes"], found["slots"], found["store"]) == (4, 8, 4 * 10**9)
    assert [one["name"] for one in found["shuffles"]] == [one.name for one in plan.shuffles]
    push = found["shuffles"][0]["sizes"][0]["costs"]["push"]
    assert push == vars(plan.shuffles[0].sizes[0][2]["push"])
    keys = {group["key"] for group in found["groups"]}
    assert len(keys) == len(plan.groups)
    assert {end for edge in found["edges"] for end in edge} <= keys
    assert sum(g["tasks"] for g in found["groups"] if g["kind"] == "tasks") == sum(
        plan.tasks.values()
    )
    root = ET.fromstring(plan.svg())
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{name}rect")) == len(plan.groups)
    assert len(root.findall(f"{name}path")) == len(plan.edges)
    texts = [text.text for text in root.findall(f"{name}text")]
    assert texts.count("12 → 12: push") == 2
    assert f"needs {asking.needs}" in texts
    # every reader is drawn below what it reads
    order = [group.key for group in plan.groups]
    assert all(order.index(a) < order.index(b) for a, b in plan.edges)


def test_hostile_names_are_harmless_in_the_picture() -> None:
    hostile = dask.delayed(len)([1], dask_key_name="a<script>alert(1)</script>")
    text = dask_exo.explain(hostile, futures=machines(1))._repr_html_()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2


def test_it_says_what_joins_do_with_frequent_keys() -> None:
    other = frame().rename(columns={"k": "key"})
    outer = frame().exo.merge(other, "outer", left_on="k", right_on="key")
    semi = frame().exo.merge(other, "leftsemi", left_on="k", right_on="key")
    text = str(dask_exo.explain(outer, semi, nbytes="1MB", futures=machines(1)))
    assert "outer join on k = key: heavy hitters of the side that has more of them are" in text
    assert "copies without a partner are dropped" in text
    assert "leftsemi join on k = k: heavy hitters of the left side are spread" in text
    plain = dask_exo.explain(frame().merge(other), nbytes="1MB", futures=machines(1))
    assert plain.heavy_hitters == []


@pytest.mark.parametrize(
    ("arguments", "nbytes", "message"),
    [
        ((3,), None, "explain takes Dask collections and not 'int'"),
        ((pd.DataFrame(),), None, "and not 'DataFrame'"),
        ((), None, "explain needs a Dask collection"),
        ((frame(),), "3 potatoes", "nbytes='3 potatoes' is not a size"),
    ],
)
def test_what_cannot_be_explained_is_refused_without_a_cluster(
    monkeypatch, arguments, nbytes, message
) -> None:
    monkeypatch.setattr(Scheduler, "where", lambda *_: pytest.fail("asked for a cluster"))
    with pytest.raises(InputError, match=message):
        dask_exo.explain(*arguments, nbytes=nbytes)


def test_the_engine_is_named_with_the_reason() -> None:
    assert "on threads, since its input has about" in str(dask_exo.explain(frame()))
    with dask.config.set({"exo.engine": "local"}):
        assert dask_exo.explain(frame()).engine == "on threads, since exo.engine is 'local'"
    assert dask_exo.explain(frame(), futures=machines(1)).engine == ""
