"""What shares a call, on a simulated cluster: every call takes a second there."""

from operator import neg

import dask
import pytest

from dask_exo import Scheduler
from dask_exo.cluster.futures import Node
from dask_exo.testing import Cost, SimFutures


def run(graph):
    futures = SimFutures([Node("n", 2, 10**9)], lambda call: Cost(1, 0), trace=True)
    return Scheduler(futures)(graph, list(graph)), futures


@pytest.mark.parametrize(("tasks", "calls", "seconds"), [(2, 2, 1), (10, 8, 4), (40, 13, 7)])
def test_only_one_task_a_slot_tells_what_those_of_its_group_take(tasks, calls, seconds) -> None:
    """The others wait for that, and then share calls: each slot shall get two of what is left.

    Of ten: two, and then 2, 2, 1, 1, 1 and 1.
    """
    graph = {("neg", i): (neg, i) for i in range(tasks)}
    values, futures = run(graph)
    assert list(values) == [-i for i in range(tasks)]
    assert (futures.calls, futures.now) == (calls, seconds)


def test_groups_without_measurements_fill_a_slots_queue() -> None:
    graph = {f"{name}-{'0' * 32}": (neg, i) for i, name in enumerate("abcdef")}
    with dask.config.set({"exo.scheduler.tasks-per-slot": 3}):
        values, futures = run(graph)
    assert list(values) == [-i for i in range(6)]
    assert [one.start for one in futures.trace] == [0, 0, 1, 1, 2, 2]
