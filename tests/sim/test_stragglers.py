"""Slow nodes on the simulated cluster: what they cost, and that nothing gets lost or doubled."""

from __future__ import annotations

from collections import Counter

import dask
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asv_bench.benchmarks import stragglers
from dask_exo import shuffle
from dask_exo.cluster.futures import Node
from dask_exo.cluster.waiting import drive
from dask_exo.config import Config
from dask_exo.shuffle import algorithms
from dask_exo.shuffle.choose import Limits
from dask_exo.shuffle.map_stage import Refs
from dask_exo.shuffle.run_shuffle import limits_of, run_shuffle
from dask_exo.shuffle.spec import ReducerInput, Spec
from dask_exo.shuffle.stragglers import SpeculationPolicy
from dask_exo.testing import Call, Cost, NodeDeath, SimFutures
from tests._data import cost

ALGORITHMS = ["simple", "push", "magnet", "riffle", "two-level"]
R = 7


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_slow_node_in_four_costs_little(algorithm) -> None:
    healthy = stragglers.run(algorithm).seconds
    plain = stragglers.run(algorithm, slow=stragglers.SLOW, speculation=False).seconds
    helped = stragglers.run(algorithm, slow=stragglers.SLOW).seconds
    assert plain >= 3 * healthy
    # whoever could do without the fourth node at once needs a third more
    assert helped <= (1.35 if algorithm == "magnet" else 1.3) * healthy


@pytest.mark.parametrize("algorithm", ["push", "magnet", "riffle", "two-level"])
def test_out_of_core_a_slow_node_is_as_good_as_none(algorithm) -> None:
    """Three nodes have three quarters of the disks: that alone costs a third."""
    three = stragglers.run(algorithm, "out of core", nodes=3).seconds
    helped = stragglers.run(algorithm, "out of core", slow=stragglers.SLOW).seconds
    assert helped <= 1.1 * three


@pytest.mark.parametrize("algorithm", ["simple", "push", "magnet", "two-level"])
def test_nothing_changes_where_nothing_is_late(algorithm) -> None:
    assert stragglers.run(algorithm) == stragglers.run(algorithm, speculation=False)


class Words:
    """A program whose maps say which of their calls a word comes from: no two calls make the same.

    The tally counts parts; what arrives must be of one call of each part.
    """

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()

    def map(self, part: int) -> list[list[tuple[int, int, int]]]:
        self.calls[part] += 1
        return [[(part, r, self.calls[part])] for r in range(R)]

    @staticmethod
    def reduce(*blocks):
        return [word for block in blocks for word in block]


def check(outputs: list[list[tuple[int, int, int]]], parts: int) -> None:
    """Each reducer has one block of each part, in order, and all have those of the same call."""
    for r, words in enumerate(outputs):
        assert [(part, own) for part, own, _ in words] == [(part, r) for part in range(parts)]
    used = [
        {call for words in outputs for part, _, call in words if part == p} for p in range(parts)
    ]
    assert all(len(calls) == 1 for calls in used)


def run(
    futures: SimFutures, algorithm: str, parts: int, policy: SpeculationPolicy | None, share: float
):
    program = shuffle.Program(R, (words := Words()).map, words.reduce, words.reduce)
    spec = Spec(R, tuple(futures.nodes()), program.cut, program.merge)
    limits = Limits(algorithm, round_fraction=share, bundle_target=1e-9, speculation=policy)
    found = drive(futures, run_shuffle(futures, Refs(range(parts)), spec, limits))
    outputs = [futures.submit(program.output, c.slot, *c.refs, node=c.node) for c in found.inputs]
    return found, futures.get(outputs), words


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    seed=st.integers(0, 1000),
    share=st.sampled_from([1e-9, 0.001, 0.3]),
    odds=st.floats(0, 0.6),
    nodes=st.integers(2, 4),
)
def test_tasks_slow_at_random_lose_and_double_nothing(algorithm, seed, share, odds, nodes) -> None:
    futures = SimFutures(
        [Node(f"n{i}", 2, 10**6) for i in range(nodes)],
        cost,
        seed=seed,
        stragglers=lambda random: 20.0 if random.random() < odds else random.uniform(1, 2),
    )
    found, outputs, _ = run(futures, algorithm, 30, SpeculationPolicy(1.5, 0.5), share)
    check(outputs, 30)
    assert found.tally.rows == 30 * R
    del found
    assert futures.live == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(at=st.floats(0.5, 40), slow=st.floats(1, 30))
def test_a_slow_node_and_a_dying_one(algorithm, at, slow) -> None:
    futures = SimFutures(
        [Node(f"n{i}", 2, 10**6) for i in range(4)],
        cost,
        faults=[NodeDeath(at=at, node="n1", back=at + 10)],
        stragglers={"n2": slow},
    )
    found, outputs, _ = run(futures, algorithm, 30, SpeculationPolicy(1.5, 0.5), 1e-9)
    for r, words in enumerate(outputs):
        assert [(part, own) for part, own, _ in words] == [(part, r) for part in range(30)]
    assert found.tally.rows == 30 * R


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_slow_node_gets_no_reducers_and_few_maps(algorithm) -> None:
    nodes = [Node(f"n{i}", 2, 10**6) for i in range(4)]
    futures = SimFutures(nodes, cost, stragglers={"n3": 30.0}, trace=True)
    found, outputs, words = run(futures, algorithm, 30, SpeculationPolicy(2.0, 0.5), 1e-9)
    check(outputs, 30)
    assert {column.node for column in found.inputs} == {"n0", "n1", "n2"}
    assert max(words.calls.values()) <= 2
    assert sum(words.calls.values()) <= 30 + 2  # two were copied, at most, and ended both times
    assert {t.outcome for t in futures.trace if t.node == "n3"} == {"cancelled"}


def test_an_algorithm_without_speculation_gets_fixed_rows(monkeypatch) -> None:
    monkeypatch.setattr(algorithms, "_algorithms", dict(algorithms._algorithms))

    @shuffle.register
    def plain(futures, maps, spec):
        columns = yield from maps.take(len(maps))
        blocks = [[row[w] for row in columns] for w in range(len(spec.nodes))]
        yield from maps.finish()
        return [ReducerInput(blocks[w], r) for w, mine in enumerate(spec.owned) for r in mine]

    nodes = [Node(f"n{i}", 2, 10**6) for i in range(4)]
    futures = SimFutures(nodes, cost, stragglers={"n3": 30.0})
    found, outputs, words = run(futures, "plain", 30, SpeculationPolicy(2.0, 0.5), 1e-9)
    check(outputs, 30)
    assert found.tally.rows == 30 * R
    assert max(words.calls.values()) <= 2


def test_a_late_merge_is_cancelled_and_its_blocks_are_read() -> None:
    nodes = [Node(f"n{i}", 2, 10**6) for i in range(4)]

    def costly(call: Call) -> Cost:
        seconds, sizes = cost(call)
        merge = getattr(call.fn, "__name__", "") == "merge"
        late = merge and call.node == "n2" and futures.now > 20
        return Cost(seconds * (50 if late else 1), sizes)

    futures = SimFutures(nodes, costly, trace=True)
    found, outputs, words = run(futures, "push", 60, SpeculationPolicy(2.0, 0.5), 1e-9)
    check(outputs, 60)
    assert max(words.calls.values()) == 1
    merges = [t for t in futures.trace if t.name == "merge"]
    assert {t.outcome for t in merges if t.node == "n2"} == {"done", "cancelled"}
    assert {t.outcome for t in merges if t.node != "n2"} == {"done"}
    usual = max(len(column.refs) for column in found.inputs if column.node != "n2")
    assert min(len(column.refs) for column in found.inputs if column.node == "n2") > usual


def test_reducers_of_a_slow_node_are_shared_among_the_others() -> None:
    nodes = tuple(Node(f"n{i}", 1, 10**6) for i in range(3))
    spec = Spec(R, nodes, list, lambda: iter(()), frozenset(["n1"]))
    assert spec.owned == (range(3), range(3, 3), range(3, 7))


def test_by_default_there_is_patience_and_it_can_be_turned_off() -> None:
    assert limits_of(Config.current()).speculation == SpeculationPolicy(2.0, 2.0)
    with dask.config.set({"exo.shuffle.speculation": False}):
        assert limits_of(Config.current()).speculation is None
