"""The whole scheduler on a simulated cluster: dying nodes, slow nodes, small stores."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dask_exo import Scheduler, shuffle
from dask_exo.cluster.futures import Node
from dask_exo.testing import NodeDeath, SimFutures
from tests._data import ONE_TASK_PER_CALL, cost, simulated

ALGORITHMS = shuffle.names()


def live_after_repeats(futures: SimFutures) -> int:
    """Count live refs once tasks have ended that recompute lost values nobody reads any more."""
    futures.wait([], timeout=1000)
    return futures.live


def frame() -> pd.DataFrame:
    return pd.DataFrame({"k": np.arange(600) % 37, "v": np.arange(600)})


def shuffled(futures: SimFutures, algorithm: str, more=()) -> pd.DataFrame:
    ddf = dd.from_pandas(frame(), npartitions=20)
    chosen = {"exo.shuffle.algorithm": algorithm, "exo.shuffle.round-fraction": 0.00001}
    with dask.config.set({**chosen, **dict(more)}):
        got = ddf.shuffle("k", npartitions=12).compute(scheduler=Scheduler(futures))
    return got.sort_values("v").reset_index(drop=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    deaths=st.lists(
        st.tuples(st.floats(0.5, 60), st.sampled_from(["n1", "n2"]), st.floats(1, 20)), max_size=3
    ),
    slow=st.floats(1, 10),
    seed=st.integers(0, 10),
)
def test_dying_and_slow_nodes_change_nothing(algorithm, deaths, slow, seed) -> None:
    faults = [NodeDeath(at=at, node=node, back=at + away) for at, node, away in deaths]
    futures = simulated(faults=faults, stragglers={"n2": slow}, seed=seed)
    pd.testing.assert_frame_equal(shuffled(futures, algorithm), frame())


class Elastic(SimFutures):
    """A cluster whose nodes join and leave, and whose autoscaler hears what is wanted."""

    elastic = True

    def ask(self, who, wants):
        self.wanted = wants
        return True


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=20)
@given(
    deaths=st.lists(
        st.tuples(st.floats(0.5, 40), st.sampled_from(["n1", "n2"]), st.floats(1, 20)), max_size=3
    )
)
@example(deaths=[(0.1, "n1", 3.0)])
def test_nodes_that_join_and_leave_change_nothing(algorithm, deaths) -> None:
    faults = [NodeDeath(at=at, node=node, back=at + away) for at, node, away in deaths]
    futures = Elastic([Node(f"n{i}", 2, 10**6) for i in range(3)], cost, faults=faults)
    pd.testing.assert_frame_equal(shuffled(futures, algorithm), frame())
    assert futures.wanted == {}


@pytest.mark.parametrize("algorithm", ["push", "two-level", "simple"])
def test_a_program_keeps_to_its_share(algorithm) -> None:
    class Shared(Elastic):
        part = 1.0

        def share(self, who, weight):
            return self.part

    times = []
    for part in (1.0, 0.34):
        futures = Shared([Node(f"n{i}", 4, 10**6) for i in range(3)], cost)
        futures.part = part
        pd.testing.assert_frame_equal(shuffled(futures, algorithm), frame())
        times.append(futures.now)
    assert times[1] > 1.5 * times[0]


@pytest.mark.parametrize("algorithm", ["push", "two-level"])
def test_a_node_that_joins_gets_work(algorithm) -> None:
    class Joining(Elastic):
        def nodes(self) -> list[Node]:
            return super().nodes()[: 1 if self.now < 6 else None]

    faults = [NodeDeath(at=0.001, node=node, back=6.0) for node in ("n1", "n2")]
    times = []
    for elastic in (True, False):
        futures = Joining([Node(f"n{i}", 2, 10**6) for i in range(3)], cost, faults=faults)
        futures.elastic = elastic
        pd.testing.assert_frame_equal(shuffled(futures, algorithm), frame())
        times.append(futures.now)
    assert times[0] < 0.9 * times[1]


@pytest.mark.parametrize("algorithm", ["push", "magnet", "riffle", "two-level"])
@settings(max_examples=20)
@given(
    deaths=st.lists(
        st.tuples(st.floats(0.5, 60), st.sampled_from(["n1", "n2"]), st.floats(1, 20)), max_size=2
    ),
    slow=st.floats(1, 10),
    limit=st.integers(1, 5000),
)
@example(deaths=[(36.5, "n1", 1.0)], slow=1.0, limit=2088)  # ends before a repeat does
def test_merges_of_bounded_bytes_survive_them_too(algorithm, deaths, slow, limit) -> None:
    faults = [NodeDeath(at=at, node=node, back=at + away) for at, node, away in deaths]
    futures = simulated(faults=faults, stragglers={"n2": slow})
    got = shuffled(futures, algorithm, {"exo.shuffle.merge-limit": limit})
    pd.testing.assert_frame_equal(got, frame())
    assert (live_after_repeats(futures) if deaths else futures.live) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_is_held_when_a_computation_is_over(algorithm) -> None:
    futures = simulated()
    shuffled(futures, algorithm)
    assert futures.live == 0
    assert set(futures.used.values()) == {0}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_cluster_gives_the_same_schedule(algorithm) -> None:
    traces = []
    for _ in range(2):
        futures = simulated(trace=True, seed=3)
        shuffled(futures, algorithm, ONE_TASK_PER_CALL)
        traces.append([(t.node, t.name, t.start, t.end) for t in futures.trace])
    assert traces[0] == traces[1]


def test_merges_of_push_run_where_their_reducers_live() -> None:
    futures = simulated(trace=True)
    shuffled(futures, "push")
    merges = [t for t in futures.trace if t.name == "merge"]
    assert {t.node for t in merges} == {"n0", "n1", "n2"}


def test_rounds_are_strict() -> None:
    """No map of round k + 1 starts before the merges of round k - 1 have ended."""
    futures = simulated(trace=True)
    shuffled(futures, "push", ONE_TASK_PER_CALL)
    maps = sorted(t.start for t in futures.trace if t.name == "run_map")
    merges = sorted(t.end for t in futures.trace if t.name == "merge")
    rounds = [maps[i : i + 6] for i in range(0, len(maps), 6)]  # 6 slots: 6 parts a round
    for k in range(1, len(rounds) - 1):
        last_merge_of_before = merges[3 * k - 1]  # 3 nodes: 3 merges a round
        assert min(rounds[k + 1]) >= last_merge_of_before


@pytest.mark.parametrize("algorithm", ["push", "two-level"])
def test_large_rounds_on_nodes_of_one_slot_do_not_overlap(algorithm) -> None:
    """Two of them would fill the store, and a slot has one task at a time."""
    futures = simulated(2, slots=1, store=20_000, trace=True)
    shuffled(futures, algorithm, ONE_TASK_PER_CALL)
    maps = sorted(t.start for t in futures.trace if t.name == "run_map")
    merges = sorted(t.end for t in futures.trace if t.name == "merge")
    assert len(maps) == len(merges) > 4  # a map, and a merge, on each node in a round
    for k in range(2, len(maps), 2):
        assert min(maps[k : k + 2]) >= merges[k - 1]


@pytest.mark.parametrize("algorithm", ["push", "two-level"])
def test_many_small_rounds_hold_no_more_than_two_large_ones(algorithm) -> None:
    """On nodes of four slots 4 rounds of 4 parts are alive at most, where it were 2 of 8."""
    futures = simulated(2, slots=4, trace=True)
    ddf = dd.from_pandas(frame(), npartitions=40)
    chosen = {
        "exo.shuffle.algorithm": algorithm,
        "exo.shuffle.round-fraction": 0.00001,
        **ONE_TASK_PER_CALL,
    }
    with dask.config.set(chosen):
        ddf.shuffle("k", npartitions=12).compute(scheduler=Scheduler(futures))
    maps = sorted(t.start for t in futures.trace if t.name == "run_map")
    runs = [t for t in futures.trace if t.name == "merge"]
    merges = sorted(t.end for t in runs)
    assert (len(maps), len(merges)) == (40, 2 * 9)  # 8 parts that were measured, then 8 rounds of 4
    for k in range(4, 9):
        assert maps[4 + 4 * k] >= merges[2 * (k - 3) - 1]
    beside = [
        sum(t.node == run.node and t.start <= run.start < t.end for t in runs) for run in runs
    ]
    assert 1 < max(beside) <= 3  # merges of a node


def test_results_leave_a_small_store_as_they_finish() -> None:
    """The driver returns them in any case, so they need not be spilled until it does."""
    futures = simulated(1, store=20_000)
    parts = [dask.delayed(bytes)(1000 + i) for i in range(60)]
    with dask.config.set({**ONE_TASK_PER_CALL, "exo.scheduler.small-result": 1}):
        got = dask.compute(*parts, scheduler=Scheduler(futures))
    assert [len(each) for each in got] == list(range(1000, 1060))
    assert futures.totals.spilled == 0


def test_a_frame_is_concatenated_by_the_driver() -> None:
    """A task would store it once more, after all of its partitions have been spilled."""
    futures = simulated(1, store=20_000, trace=True)
    ddf = dd.from_map(lambda i: frame().assign(i=i), range(60), meta=frame().assign(i=0))
    settings = {
        **ONE_TASK_PER_CALL,
        "exo.scheduler.small-result": 1,
        "scheduler": Scheduler(futures),
    }
    with dask.config.set(settings):
        got = ddf.compute()
    assert got.i.tolist() == [i for i in range(60) for _ in range(600)]
    assert len(futures.trace) == 60
    assert futures.totals.spilled == 0


def test_push_spills_no_more_than_what_it_merges() -> None:
    """In a store that a round fits into, map outputs never reach the disk."""
    futures = simulated(1, store=60_000)
    shuffled(futures, "push")
    merged = futures.totals.spilled
    assert merged <= 12 * 1000 * 10  # R blocks of 1 kB in each of M / 2 rounds


@given(
    deaths=st.lists(
        st.tuples(st.floats(0.5, 60), st.sampled_from(["n1", "n2"]), st.floats(1, 20)), max_size=3
    ),
    every=st.integers(1, 8),
)
@example(deaths=[(36.5, "n2", 17.0), (53.5, "n1", 2.0)], every=30)  # ends before a repeat does
def test_states_of_a_stream_survive_dying_nodes(deaths, every) -> None:
    faults = [NodeDeath(at=at, node=node, back=at + away) for at, node, away in deaths]
    futures = simulated(faults=faults)

    def spread(n: int) -> list[int]:
        return [n if n % 5 == r else 0 for r in range(5)]

    def add(*n: int) -> int:
        return sum(n)

    program = shuffle.Program(5, spread, add, add)
    for seen in shuffle.stream(range(30), program, every=every, futures=futures):
        expected = [sum(n for n in range(seen.parts) if n % 5 == r) for r in range(5)]
        assert futures.get(seen.outputs) == expected
    del seen
    assert (live_after_repeats(futures) if deaths else futures.live) == 0
