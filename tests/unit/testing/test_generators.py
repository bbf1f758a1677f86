"""Generator tasks and actors, inline and on a virtual clock."""

from __future__ import annotations

import pytest

from dask_exo.cluster.futures import Node
from dask_exo.errors import WorkerLostError
from dask_exo.testing import Cost, InlineFutures, NodeDeath, ProcessDeath, SimFutures


def pairs(count):
    for i in range(count):
        yield i
        yield f"about {i}"


class Counts:
    def __init__(self, start):
        self.calls = start

    def run(self, count):
        self.calls += 1
        yield from pairs(count)
        yield self.calls
        yield "calls"


def simulated(*faults, nodes=1, **options):
    made = [Node(f"n{i}", 1, 10**6, resources={"CPU": 1.0}) for i in range(nodes)]
    return SimFutures(made, lambda _: Cost(1.0, 100), faults=faults, **options)


def read_all(futures, stream):
    found = []
    while True:
        assert futures.wait([stream.next], 100.0)[0]
        if stream.read() is None:
            return futures.get(found)
        found.append(stream.take())


@pytest.mark.parametrize("make", [InlineFutures, simulated])
def test_a_stream_yields_values_after_their_metadata(make):
    futures = make()
    stream = futures.generate(pairs, 3)
    futures.wait([stream.next])
    assert stream.read() == "about 0"
    assert read_all(futures, stream) == [0, 1, 2]


@pytest.mark.parametrize("make", [InlineFutures, simulated])
def test_an_actor_of_a_class_passes_its_instance_to_calls(make):
    futures = make()
    actor = futures.actor({"num_cpus": 1}, Counts, futures.put(5))
    assert [read_all(futures, actor.generate(Counts.run, 1)) for _ in range(2)] == [[0, 6], [0, 7]]
    actor.retire()


@pytest.mark.parametrize("make", [InlineFutures, simulated])
def test_a_ref_is_put_as_it_is(make):
    futures = make()
    ref = futures.put(3)
    assert futures.put(ref) is ref


def test_a_task_waits_until_its_value_is_taken_and_for_resources():
    futures = simulated()
    first, second = (futures.generate(pairs, 2) for _ in range(2))
    assert not futures.wait([second.next], 100.0)[0]
    assert [one.state for one in futures.activity([first.next, second.next]).tasks] == [
        "finished",
        "pending",
    ]
    assert futures.resources(free=True) == {"CPU": 0.0}
    assert read_all(futures, first) == read_all(futures, second) == [0, 1]
    assert futures.now == 103.0


def test_a_task_whose_process_dies_makes_the_missing_values():
    futures = simulated(ProcessDeath(1.5))
    assert read_all(futures, futures.generate(pairs, 3)) == [0, 1, 2]
    assert futures.now == 1.5 + 3.0


def test_a_call_of_an_actor_that_dies_fails():
    futures = simulated(ProcessDeath(1.5, actors=True))
    actor = futures.actor({"num_cpus": 1}, Counts, 0)
    stream = actor.generate(Counts.run, 3)
    with pytest.raises(WorkerLostError):
        read_all(futures, stream)
    assert futures.resources(free=True) == {"CPU": 1.0}


def test_a_value_lost_with_its_node_takes_its_work_again():
    futures = simulated(NodeDeath(1.5, "n0"), nodes=2)
    stream = futures.generate(pairs, 1)
    futures.wait([stream.next])
    stream.read()
    ref = stream.take()
    futures.wait([], 1.0)
    reader = futures.generate(lambda value: iter([value, "read"]), ref)
    assert read_all(futures, reader) == [0]
    assert futures.now == 2.0 + 1.0 + 1.0
