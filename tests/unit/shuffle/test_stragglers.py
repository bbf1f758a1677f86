"""When a call is late and a node is slow; and how a coroutine waits for a time."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from dask_exo.cluster.futures import Node
from dask_exo.cluster.waiting import Until, drive
from dask_exo.shuffle.stragglers import (
    SpeculationPolicy,
    late,
    least_loaded,
    slow_nodes,
    speculation_budget,
)
from dask_exo.testing import Cost, InlineFutures, SimFutures

SECONDS = st.floats(0.001, 1000)
RUNNING = st.dictionaries(st.integers(), st.tuples(SECONDS, st.integers(1, 5)), max_size=8)


@given(st.lists(SECONDS, max_size=20), RUNNING, st.floats(0, 5000), SECONDS)
def test_only_running_calls_beyond_the_floor_are_late(durations, running, now, floor) -> None:
    policy = SpeculationPolicy(2.0, floor)
    found = late(running, durations, now=now, policy=policy)
    assert len(set(found)) == len(found)
    assert all(now >= running[key][0] + floor for key in found)
    assert not found or len(durations) >= len(running)


@given(SECONDS, st.integers(2, 20), st.lists(st.integers(1, 5), max_size=8), st.floats(1.1, 4))
def test_nothing_is_late_while_all_parts_take_the_same_time(each, done, sizes, factor) -> None:
    running = {i: (0.0, size) for i, size in enumerate(sizes)}
    for i, size in running.items():
        found = late(
            running, [each] * done, now=each * size[1], policy=SpeculationPolicy(factor, 0.0)
        )
        assert i not in found


@given(st.lists(SECONDS, min_size=2, max_size=20), RUNNING, SECONDS, SECONDS)
def test_who_is_late_stays_late(durations, running, now, more) -> None:
    def at(when: float) -> set[int]:
        return set(late(running, durations, now=when, policy=SpeculationPolicy(1.5, 1.0)))

    assert at(now) <= at(now + more)


def test_the_call_that_should_have_ended_first_is_first() -> None:
    running = {"long": (0.0, 4), "short": (1.0, 1), "new": (19.0, 1)}
    assert late(running, [2.0] * 5, now=20.0, policy=SpeculationPolicy()) == ["short", "long"]


@given(st.integers(1, 100), st.integers(0, 300), st.integers(0, 100))
def test_copies_take_idle_slots_and_half_of_all_at_most(slots, busy, speculative) -> None:
    room = speculation_budget(slots=slots, busy=busy, speculative=speculative)
    assert room >= 0
    assert room == 0 or (busy + room <= slots and speculative + room <= max(1, slots // 2))


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.lists(SECONDS, min_size=1), min_size=1),
    st.integers(0, 3),
    st.floats(1.1, 10),
)
def test_some_node_is_never_slow(seconds, late_calls, factor) -> None:
    found = slow_nodes(seconds, "abcdef", late=late_calls, factor=factor)
    assert set(seconds) - found
    assert late_calls or found <= set(seconds)


@given(st.integers(2, 6), SECONDS, st.floats(1.0, 1.9))
def test_nodes_of_nearly_one_speed_are_not_slow(count, each, factor) -> None:
    seconds = {str(i): [each if i else each * factor] * 3 for i in range(count)}
    assert not slow_nodes(seconds, list(seconds), late=0, factor=2.0)


@given(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), st.integers(1, 5))
def test_the_node_with_the_least_to_do_for_its_slots(load, slots) -> None:
    assume(load)
    each = {"a": slots, "b": 2 * slots, "c": 1}
    best = least_loaded(load, each)
    assert all(load.get(best, 0) / each[best] <= load.get(n, 0) / each[n] for n in each)


def test_a_coroutine_resumes_at_a_time_or_any_completion() -> None:
    f = SimFutures([Node("a", 4, 100)], lambda call: Cost(call.args[0], 0))
    seen = []

    def steps():
        ten, three, five = (f.submit(float, seconds) for seconds in (10, 3, 5))
        yield Until(all=[ten], time=1.5)
        seen.append(f.now)
        yield Until(all=[ten], any=[three, five])
        seen.append(f.now)
        yield Until(all=[three, five], any=[ten], time=90.0)
        seen.append(f.now)
        yield Until(time=7.0, any=[ten])
        seen.append(f.now)
        yield [ten]
        return f.now

    assert drive(f, steps()) == 10
    assert seen == [1.5, 3, 5, 7]


def test_inline_nothing_is_ever_waited_for() -> None:
    f = InlineFutures()

    def steps():
        start = f.now
        yield Until(all=[f.submit(abs, -1)], time=start + 3600)
        return "done"

    assert drive(f, steps()) == "done"
