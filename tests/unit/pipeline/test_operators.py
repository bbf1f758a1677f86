"""Pipelines that have parts in common as one graph of stages."""

from __future__ import annotations

from collections import Counter
from functools import partial

import dask.dataframe as dd
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.errors import PipelineError
from dask_exo.pipeline import materialize, of, union
from dask_exo.pipeline.operators import Union, name_of, planned, stage_of


def begun(n=2):
    return of(dd.from_pandas(pd.DataFrame({"a": range(6)}), npartitions=n))


def names(parts):
    return [[step.transform.name for step in part.steps] for part in parts]


def plan(*ends, makes=True):
    return planned(ends, lambda _: makes)


def f(frame):
    return frame


def g(frame):
    return frame


def h(frame):
    return frame


def test_a_shared_step_is_its_own_stage_and_runs_once():
    read = begun().map_partitions(f)
    parts, sinks = plan(read.map_partitions(g), read.map_partitions(h).map_partitions(g), read)
    assert names(parts) == [["f"], ["g"], ["h", "g"]]
    assert [part.takes for part in parts] == [(), (0,), (0,)]
    assert sinks == [(1,), (2,), (0,)]
    apart, _ = plan(begun().map_partitions(f), begun().map_partitions(f))
    assert names(apart) == [["f"], ["f"]]  # alike, and not the same
    assert [part.takes for part in apart] == [(), ()]


def test_branches_of_a_source_share_its_stage():
    source = begun()
    parts, sinks = plan(source.map_partitions(f), source.map_partitions(g))
    assert names(parts) == [[], ["f"], ["g"]]
    assert [part.source is not None for part in parts] == [True, False, False]
    assert sinks == [(1,), (2,)]


def test_a_union_takes_from_all_and_may_be_the_last_step():
    one, other = begun().map_partitions(f), begun().map_partitions(g)
    both = union(one, other)
    parts, sinks = plan(both)
    assert (names(parts), sinks) == ([["f"], ["g"]], [(0, 1)])
    parts, sinks = plan(both.map_partitions(h), both)
    assert [part.takes for part in parts] == [(), (), (0, 1)]
    assert sinks == [(2,), (0, 1)]
    assert repr(both.map_partitions(h)) == (
        "Pipeline of 4 partitions: f (1 CPU), g (1 CPU), h (1 CPU)"
    )
    parts, _ = plan(union(one, one).map_partitions(h))
    assert [part.takes for part in parts] == [(), (0, 0)]


@st.composite
def together(draw):
    """Pipelines, each made from those before it."""
    made = [begun() for _ in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 7))):
        some = [
            made[i] for i in draw(st.lists(st.integers(0, len(made) - 1), min_size=1, max_size=3))
        ]
        if len(some) > 1 and draw(st.booleans()):
            made.append(union(*some))
        else:
            cpus = draw(st.sampled_from([1, 2]))
            made.append(some[0].map_partitions(f, num_cpus=cpus))
    return [made[i] for i in draw(st.lists(st.integers(0, len(made) - 1), min_size=1, max_size=4))]


def ways(chain):
    """All ways from a source to the end: the source and the steps."""
    own = tuple(map(id, chain.steps))
    if isinstance(chain.source, Union):
        return [way + own for one in chain.source.pipelines for way in ways(one)]
    return [(id(chain.source), *own)]


def ways_in(parts, i):
    own = tuple(map(id, parts[i].steps))
    if parts[i].source is not None:
        return [(id(parts[i].source), *own)]
    return [way + own for k in parts[i].takes for way in ways_in(parts, k)]


@given(together(), st.booleans())
def test_outputs_took_their_paths_and_each_step_is_once(ends, makes):
    parts, sinks = plan(*ends, makes=makes)
    for chain, sink in zip(ends, sinks, strict=True):
        found = Counter(way for i in sink for way in ways_in(parts, i))
        assert found == Counter(ways(chain))
    steps = [id(step) for part in parts for step in part.steps]
    sources = [id(part.source) for part in parts if part.source is not None]
    assert len(set(steps)) == len(steps)
    assert len(set(sources)) == len(sources)
    assert all(k < i for i, part in enumerate(parts) for k in part.takes)


def test_what_cannot_run_together():
    limited = begun().limit(3)
    for call in (union, materialize):
        with pytest.raises(PipelineError, match="needs at least one pipeline"):
            call()
        with pytest.raises(PipelineError, match="argument 1 ends with limit"):
            call(begun(), limited)
        with pytest.raises(PipelineError, match="argument 0 is not a pipeline"):
            call(pd.DataFrame())


def test_stages_have_the_names_of_the_functions_that_the_user_wrote(tmp_path):
    steps = begun().map_partitions(f).map_partitions(partial(g)).map_batches(lambda frame: frame)
    (only,), _ = plan(steps.to_parquet(str(tmp_path), compute=False))
    assert name_of(only.steps) == "f > g > <lambda> > to_parquet"
    assert stage_of(only).writes
