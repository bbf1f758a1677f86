"""Disks and networks of simulated nodes; times are computed here by hand or by plain sums."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.cluster.futures import Node
from dask_exo.testing import Channels, NodeDeath, SimFutures, TaskRun
from tests._data import make, priced

CHANNELS = Channels(disk=10, net=20)


def cluster(*stores, slots=1, **options):
    nodes = [Node(id_, slots, store) for id_, store in zip("abc", stores, strict=False)]
    return SimFutures(nodes, priced, channels=CHANNELS, trace=True, **options)


def starts(f):
    return sorted((run.start, run.node, run.name) for run in f.trace)


def test_arguments_come_while_another_task_has_the_slot():
    f = cluster(1000, 1000)
    far = f.submit(make, 1, 100, node="b")
    f.wait([far])
    busy = f.submit(make, 30, 0, node="a")
    taker = f.submit(max, 3, 0, far, node="a")  # 100 bytes at 20 per second: there at 6
    f.wait([busy, taker])
    assert f.wait([taker])[0] == [taker]
    assert [(run.start, run.end) for run in f.trace] == [(0, 1), (1, 31), (31, 34)]
    assert (f.totals.moved, f.totals.restored) == (100, 0)


def test_a_task_without_far_arguments_gets_the_slot_meanwhile():
    f = cluster(1000, 1000)
    far = f.submit(make, 1, 100, node="b")
    f.wait([far])
    taker, other = f.submit(max, 1, 0, far, node="a"), f.submit(min, 2, 0, node="a")
    f.wait([taker])
    f.wait([other])
    assert starts(f) == [(0, "b", "make"), (1, "a", "min"), (6, "a", "max")]


@given(st.lists(st.integers(1, 99), min_size=1, max_size=8))
def test_values_pass_a_network_one_after_another(sizes):
    f = cluster(10**6, 10**6, slots=20)
    far = [f.submit(make, 1, size, node="b") for size in sizes]
    f.wait([f.submit(make, 2, 0)])
    f.get([f.submit(make, 1, 0, ref, node="a") for ref in far])
    began = [run.start for run in f.trace if run.node == "a" and run.start >= 2]
    assert began == pytest.approx([2 + total / 20 for total in accumulate(sizes)])


def test_senders_and_receivers_share_bandwidth():
    f = cluster(1000, 1000, 1000, slots=9)
    values = [f.submit(make, 1, 100, node=node) for node in "abc"]
    f.wait([f.submit(make, 2, 0)])
    f.get([f.submit(make, 0, 0, values[i], node=n) for i, n in [(0, "b"), (1, "a")]])
    assert f.now == 2 + 5  # both ways at once
    f.get([f.submit(make, 0, 0, values[i], node="c") for i in (0, 1)])
    assert f.now == 7 + 10
    f.get([f.submit(make, 0, 0, values[2], node=node) for node in "ab"])
    assert f.now == 17 + 10


def test_a_task_waits_for_the_spilling_it_causes():
    f = cluster(100)
    old = f.submit(make, 1, 80)
    young = f.submit(make, 1, 60)
    f.wait([young])
    assert f.now == 2 + 8  # 80 bytes at 10 per second
    assert (f.totals.spilled, f.totals.writes, f.used) == (80, 1, {"a": 60})
    f.wait([f.submit(make, 1, 0, old)])  # 60 out, 80 in
    assert f.now == 10 + 14 + 1
    assert (f.totals.spilled, f.totals.writes, f.totals.restored, f.used) == (140, 2, 80, {"a": 80})


def test_a_value_larger_than_the_store_goes_to_disk():
    f = cluster(100, slots=2)
    large = f.submit(make, 1, 200)
    f.wait([large])
    assert (f.now, f.totals.spilled, f.used) == (1 + 20, 200, {"a": 0})
    f.get([f.submit(make, 0, 0, large) for _ in range(2)])
    assert (f.now, f.totals.restored, f.totals.spilled) == (21 + 40, 400, 200)


def test_values_of_others_take_room_while_somebody_takes_them():
    f = cluster(100, 1000)
    own = f.submit(make, 1, 60, node="a")
    far = f.submit(make, 1, 80, node="b")
    f.wait([own])
    taker = f.submit(make, 1, 0, far, node="a")
    f.wait([taker])
    assert (f.now, f.totals.spilled, f.used) == (1 + 6 + 1, 60, {"a": 0, "b": 80})
    assert f.peak_store == {"a": 80, "b": 80}


def test_what_two_tasks_take_at_a_time_comes_once():
    f = cluster(1000, 10, slots=2)
    large = f.submit(make, 1, 100, node="b")  # on b's disk
    f.wait([large])
    assert f.now == 1 + 10
    f.get([f.submit(make, 5, 0, large, node="a") for _ in range(2)])
    assert (f.now, f.totals.moved, f.totals.restored) == (11 + 10 + 5, 100, 100)


def test_prefetched_arguments_fill_half_of_the_store():
    f = cluster(100, 1000)
    far = [f.submit(make, 1, 40, node="b") for _ in range(3)]
    f.wait([far[2]])
    refs = [f.submit(make, 10, 0, ref, node="a") for ref in far]
    f.wait([], timeout=5)
    assert (f.now, f.used["a"], f.totals.moved) == (8, 80, 80)  # one in the slot, one ahead of it
    f.get(refs)
    assert f.now == 3 + 2 + 30


def test_a_cancelled_task_lets_go_of_what_comes():
    f = cluster(1000, 1000)
    far = f.submit(make, 1, 100, node="b")
    f.wait([far])
    taker = f.submit(make, 1, 0, far, node="a")
    f.wait([], timeout=1)
    assert f.used == {"a": 100, "b": 100}
    f.cancel([taker])
    assert f.used == {"a": 0, "b": 100}
    f.get([f.submit(make, 2, 0, node="a")])
    assert f.trace[-1] == TaskRun(2, 4, "a", "make", "done")


def test_an_argument_lost_on_its_way_is_made_again():
    f = cluster(1000, 1000, 1000, faults=[NodeDeath(5.5, "b")])
    far = f.submit(make, 1, 100, node="b")
    taker = f.submit(make, 1, 0, far, node="a")  # 1 to 6 on its way
    assert f.get([taker]) == [(1, 0, (1, 100))]
    assert starts(f) == [(0, "b", "make"), (5.5, "a", "make"), (6.5, "a", "make")]
    assert f.used == {"a": 100, "b": 0, "c": 0}


TASKS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "stream"]),
        st.integers(1, 3),  # values
        st.lists(st.integers(0, 999), max_size=3),  # arguments
        st.sampled_from([None, "a", "b", "c"]),
        st.integers(0, 6),  # seconds
        st.integers(0, 50),  # bytes
        st.booleans(),  # whether the refs are dropped
    ),
    max_size=25,
)


@given(TASKS, st.integers(20, 300))
def test_stores_are_never_overfull_and_nothing_is_left(tasks, store):
    f = cluster(store, store, store, slots=2, execute=False)
    refs, kept, new, args = [], [], [], []
    for kind, count, takes, wish, seconds, nbytes, dropped in tasks:
        args = [refs[i % len(refs)] for i in takes if refs]
        if kind == "submit":
            new = [f.submit(make, seconds, nbytes, *args, node=wish)]
        else:
            new = f.stream(count, make, seconds, nbytes, *args, node=wish)
        refs += new
        kept += [] if dropped else [(ref, nbytes) for ref in new]
    f.wait([], timeout=10**6)
    assert f.wait(refs, timeout=0) == (refs, [])
    assert len(f.trace) == f.calls
    del refs, new, args
    assert all(peak <= store for peak in f.peak_store.values())
    assert sum(f.used.values()) <= sum(nbytes for _, nbytes in kept)
    del kept
    assert (f.live, set(f.used.values())) == (0, {0})
