"""Schedules are computed here by hand or by a few lines of arithmetic, never by the simulator."""

import gc
import heapq
import tracemalloc
from concurrent.futures import CancelledError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.cluster.futures import Node
from dask_exo.cluster.waiting import drive
from dask_exo.testing import Channels, Cost, DeadlockError, NodeDeath, SimFutures, TaskRun
from tests._data import make, priced

BIG = 10**12


def one(slots=1, store=BIG):
    return [Node("a", slots, store)]


def takes(seconds, nbytes=0):
    return lambda call: Cost(seconds, nbytes)


# Schedules ---------------------------------------------------------------------------------


def test_three_tasks_on_two_slots_take_two_turns():
    f = SimFutures(one(slots=2), takes(3), trace=True)
    refs = [f.submit(pow, 2, i) for i in range(3)]
    assert f.now == 0
    assert f.get(refs) == [1, 2, 4]
    assert f.now == 6
    assert f.trace == [
        TaskRun(0, 3, "a", "pow", "done"),
        TaskRun(0, 3, "a", "pow", "done"),
        TaskRun(3, 6, "a", "pow", "done"),
    ]


def test_a_task_waits_for_its_arguments():
    f = SimFutures(one(slots=4), priced)
    a = f.submit(make, 2, 0)
    b = f.submit(make, 5, 0)
    c = f.submit(make, 1, 0, a, b)
    assert f.get([c]) == [(1, 0, (2, 0), (5, 0))]
    assert f.now == 6


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 4))
def test_independent_tasks_are_list_scheduled(seconds, slots):
    f = SimFutures(one(slots), priced)
    f.get([f.submit(make, s, 0) for s in seconds])
    ends = [0] * slots
    for s in seconds:
        heapq.heapreplace(ends, ends[0] + s)
    assert f.now == max(ends)


def test_values_of_a_generator_appear_evenly():
    f = SimFutures(one(), takes(10))
    refs = f.stream(4, lambda: iter("abcd"))
    seen = []
    while refs:
        done, refs = f.wait(refs)
        seen.append((f.now, f.get(done)))
    assert seen == [(2.5, ["a"]), (5.0, ["b"]), (7.5, ["c"]), (10.0, ["d"])]


def test_a_consumer_starts_with_the_first_value_of_a_generator():
    f = SimFutures(one(slots=2), lambda call: Cost(10 if call.count == 2 else 1, 0))
    first, _ = f.stream(2, lambda: iter("ab"))
    f.get([f.submit(str.upper, first)])
    assert f.now == 6


def test_wishes_are_kept_and_others_go_to_the_least_loaded_node():
    nodes = [Node("a", 2, BIG), Node("b", 2, BIG)]
    f = SimFutures(nodes, takes(1), trace=True)
    wishes = [(abs, (1,), "a"), (min, (1, 2), None), (max, (1, 2), None), (pow, (1, 1), None)]
    f.get([f.submit(fn, *args, node=wish) for fn, args, wish in wishes])
    assert [(run.name, run.node) for run in f.trace] == [
        ("abs", "a"),
        ("min", "b"),
        ("max", "a"),  # both have one free slot: the first
        ("pow", "b"),
    ]


def test_a_task_goes_where_most_of_its_argument_bytes_are():
    nodes = [Node(id_, 2, BIG) for id_ in "abc"]
    calls = []

    def cost(call):
        calls.append(call)
        return Cost(1, {"abs": 30, "min": 50, "max": 40}.get(call.fn.__name__, 0))

    f = SimFutures(nodes, cost, trace=True)
    args = [
        f.submit(abs, 1, node="b"),
        f.submit(min, 1, 2, node="a"),
        f.submit(max, 1, 2, node="c"),
        f.submit(abs, 2, node="b"),
    ]
    assert f.get([f.submit(sum_of, 7, *args)]) == [1 + 1 + 2 + 2 + 7]
    assert f.trace[-1].node == "b"  # 60 bytes
    assert calls[-1].sizes == (0, 30, 50, 40, 30)
    assert (calls[-1].count, calls[-1].node, calls[-1].moved, f.totals.moved) == (1, "b", 90, 90)


def sum_of(*args):
    return sum(args)


def test_waiting_tasks_start_first_come_first_served_wish_or_not():
    f = SimFutures(one(), takes(1), trace=True)
    f.get([f.submit(fn, 1, 1, node=wish) for fn, wish in [(min, None), (max, "a"), (pow, None)]])
    assert [run.name for run in f.trace] == ["min", "max", "pow"]


def test_slow_nodes_take_longer():
    f = SimFutures([Node("a", 1, 0), Node("b", 1, 0)], takes(2), stragglers={"b": 4})
    a, b = f.submit(abs, 1, node="a"), f.submit(abs, 1, node="b")
    f.get([a])
    assert f.now == 2
    f.get([b])
    assert f.now == 8


def test_the_same_seed_gives_the_same_trace():
    def trace(seed):
        nodes = [Node("a", 2, 100), Node("b", 2, 100)]
        faults = [NodeDeath(4, "b", back=6)]
        f = SimFutures(
            nodes, takes(1, 30), seed=seed, faults=faults, trace=True,
            stragglers=lambda random: random.choice([1, 5]),
        )  # fmt: skip
        refs = [f.submit(abs, i) for i in range(20)]
        f.get([f.submit(sum_of, *refs)])
        return f.trace, f.totals.spilled, f.totals.restored

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


# Waiting -----------------------------------------------------------------------------------


def test_wait_returns_all_that_are_finished_by_then():
    f = SimFutures(one(slots=3), priced)
    a, b, c = f.submit(make, 2, 0), f.submit(make, 2, 0), f.submit(make, 5, 0)
    assert f.wait([c, a, b]) == ([a, b], [c])
    assert f.now == 2
    assert f.wait([a, c]) == ([a], [c])
    assert f.now == 2


def test_wait_with_a_timeout_lets_that_time_pass():
    f = SimFutures(one(), takes(3))
    ref = f.submit(abs, 1)
    assert f.wait([ref], timeout=1) == ([], [ref])
    assert f.now == 1
    assert f.wait([ref], timeout=2) == ([ref], [])
    assert f.now == 3
    assert f.wait([f.put(1)], timeout=9)[1] == []
    assert f.now == 3
    ref = f.submit(abs, 1)
    assert f.wait([], timeout=4) == ([], [])
    assert (f.now, f.wait([], timeout=None)) == (7, ([], []))
    assert f.wait([ref], timeout=0) == ([ref], [])


def test_submission_runs_nothing():
    f = SimFutures(one(), takes(0))
    seen = []
    ref = f.submit(seen.append, 1)
    assert seen == []
    f.wait([ref], timeout=0)
    assert seen == [1]


def test_a_coroutine_is_driven_to_its_end():
    f = SimFutures(one(slots=2), takes(1))

    def steps():
        refs = [f.submit(abs, -i) for i in range(4)]
        yield refs
        return f.now

    assert drive(f, steps()) == 2


def test_a_deadlock_says_what_waits_for_what():
    f = SimFutures([Node("a", 1, 0), Node("b", 0, 0)], takes(5), faults=[NodeDeath(1, "a")])
    ref = f.submit(max, f.submit(min, 1, 2), f.submit(abs, 3))
    with pytest.raises(DeadlockError) as caught:
        f.get([ref])
    assert "max waits for min (2 of 2 arguments are missing)" in str(caught.value)
    assert "min waits for a slot on any node" in str(caught.value)
    assert "a is dead, had 1 slots, b has 0 slots" in str(caught.value)
    with pytest.raises(DeadlockError):
        f.wait([ref])
    assert f.wait([ref], timeout=5) == ([], [ref])


# Failures ----------------------------------------------------------------------------------


def test_dependents_of_a_failed_task_get_its_exception():
    f = SimFutures(one(slots=2), takes(2))
    bad = f.submit(divmod, 1, 0)
    after = f.submit(abs, f.submit(abs, bad))
    errors = []
    for ref in (after, bad):
        with pytest.raises(ZeroDivisionError) as caught:
            f.get([ref])
        errors.append(caught.value)
    ref = f.submit(abs, bad)
    assert f.wait([ref], timeout=0) == ([ref], [])
    with pytest.raises(ZeroDivisionError) as caught:
        f.get([ref])
    assert errors[0] is errors[1] is caught.value
    assert f.now == 2
    assert f.get([f.submit(abs, -1)]) == [1]
    del bad, after, ref, errors, caught
    gc.collect()
    assert f.live == 0


@pytest.mark.parametrize("kind", ["split", "stream"])
@pytest.mark.parametrize("made", [0, 1, 3])
def test_another_number_of_values_is_an_error(kind, made):
    f = SimFutures(one(), takes(1))
    refs = getattr(f, kind)(2, lambda: iter(range(made)))
    with pytest.raises(ValueError, match=r"count=2"):
        f.get(refs)


def test_cancelled_tasks_make_room():
    f = SimFutures(one(), takes(10), trace=True)
    running, queued, last = f.submit(abs, 1), f.submit(min, 1, 2), f.submit(max, 1, 2)
    after = f.submit(abs, queued)
    assert f.wait([last], timeout=3) == ([], [last])
    f.cancel([running, queued])
    assert f.get([last]) == [2]
    assert f.now == 13
    assert [(run.end, run.outcome) for run in f.trace] == [(3, "cancelled"), (13, "done")]
    for ref in (running, queued, after):
        with pytest.raises(CancelledError):
            f.get([ref])
    f.cancel([last])
    assert f.get([last]) == [2]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: SimFutures([*one(), *one()], takes(1)), id="one id twice"),
        pytest.param(lambda: SimFutures(one(), takes(1), stragglers={"b": 2}), id="factor"),
        pytest.param(lambda: SimFutures(one(), takes(1), faults=[NodeDeath(1, "b")]), id="fault"),
        pytest.param(lambda: NodeDeath(3, "a", back=2), id="back before death"),
        pytest.param(lambda: SimFutures(one(), takes(1)).submit(abs, 1, node="b"), id="wish"),
        pytest.param(lambda: SimFutures(one(), takes(-1)).submit(abs, 1), id="seconds"),
        pytest.param(lambda: SimFutures(one(), takes(1, [1, 2])).submit(abs, 1), id="sizes"),
    ],
)
def test_what_makes_no_sense_is_refused(build):
    with pytest.raises(ValueError):  # noqa: PT011
        build()


# Stores ------------------------------------------------------------------------------------


def test_the_oldest_value_that_no_task_takes_is_spilled():
    f = SimFutures(one(slots=2, store=100), priced)
    old = f.submit(make, 1, 40)
    f.get([old])
    young = f.submit(make, 1, 40)
    f.get([young])
    taker = f.submit(make, 9, 0, old)  # pins `old` until 11
    third = f.submit(make, 1, 40)
    f.wait([third])
    assert (f.totals.spilled, f.totals.restored, f.used) == (40, 0, {"a": 80})
    del old
    f.wait([taker])
    assert f.used == {"a": 40}
    f.get([f.submit(make, 1, 0, young)])
    assert (f.totals.spilled, f.totals.restored, f.used) == (40, 40, {"a": 80})
    assert f.peak_store == {"a": 80}


def test_arguments_may_exceed_the_store():
    f = SimFutures(one(store=100), priced)
    args = [f.submit(make, 1, 60) for _ in range(3)]
    result = f.submit(make, 1, 10, *args)
    f.wait([result])
    # Two were spilled when the next came; they come back; the result goes to disk itself.
    assert (f.totals.spilled, f.totals.restored, f.used) == (60 + 60 + 10, 120, {"a": 180})
    assert f.peak_store == {"a": 180}


def test_unpinned_values_are_spilled_oldest_first():
    f = SimFutures(one(store=100), priced)
    small, large = f.submit(make, 1, 20), f.submit(make, 1, 50)
    f.wait([f.submit(make, 1, 60, small, large)])  # no room: the result goes to disk
    f.wait([f.submit(make, 1, 40)])
    assert f.totals.spilled == 60 + 20
    last = f.submit(make, 1, 45)
    f.wait([last])
    assert (f.totals.spilled, f.used) == (60 + 20, {"a": 50 + 45})


def test_to_get_a_value_reads_it_back():
    f = SimFutures(one(store=100), priced)
    refs = [f.submit(make, 1, 60) for _ in range(2)]
    assert f.get(refs[1:]) == [(1, 60)]
    assert (f.totals.spilled, f.totals.restored) == (60, 0)
    assert f.get(refs[:1]) == [(1, 60)]
    assert (f.totals.spilled, f.totals.restored, f.used) == (120, 60, {"a": 60})


class OneStore:
    """A store written a second time, with lists, for tasks that run one after another."""

    def __init__(self, capacity):
        self.capacity, self.memory, self.disk, self.written = capacity, [], set(), set()
        self.size, self.spilled, self.restored, self.peak = {}, 0, 0, 0

    @property
    def used(self):
        return sum(self.size[i] for i in self.memory)

    def room(self, size, pinned):
        for i in [i for i in self.memory if i not in pinned]:
            if self.used + size <= self.capacity:
                break
            self.memory.remove(i)
            self.disk.add(i)
            if i not in self.written:  # it is on disk still, after it was read back
                self.spilled += self.size[i]
                self.written.add(i)
        return self.used + size <= self.capacity

    def task(self, i, size, pinned):
        for j in dict.fromkeys(pinned):
            if j in self.disk:
                self.room(self.size[j], pinned)
                self.disk.remove(j)
                self.memory.append(j)
                self.restored += self.size[j]
                self.peak = max(self.peak, self.used)
        self.size[i] = size
        if self.room(size, pinned):
            self.memory.append(i)
        else:
            self.disk.add(i)
            self.written.add(i)
            self.spilled += size
        self.peak = max(self.peak, self.used)

    def drop(self, i):
        self.disk.discard(i)
        if i in self.memory:
            self.memory.remove(i)


STEPS = st.lists(
    st.tuples(st.integers(0, 60), st.lists(st.integers(0, 99), max_size=3), st.integers(-5, 5)),
    max_size=40,
)


@given(STEPS, st.integers(50, 200))
def test_a_store_accounts_as_a_plain_list_does(steps, capacity):
    f = SimFutures(one(store=capacity), priced)
    model = OneStore(capacity)
    refs = {}
    for i, (size, takes_, drops) in enumerate(steps):
        args = [sorted(refs)[n % len(refs)] for n in takes_ if refs]
        ref = f.submit(make, 1, size, *[refs[j] for j in args])
        f.wait([ref])
        refs[i] = ref
        del ref
        model.task(i, size, args)
        for j in sorted(refs)[: max(drops, 0)]:
            del refs[j]
            model.drop(j)
        assert f.used == {"a": model.used}
        assert (f.totals.spilled, f.totals.restored) == (model.spilled, model.restored)
        assert f.peak_store == {"a": model.peak}
        assert f.live == len(refs)


def test_dropping_refs_frees_values_even_future_ones():
    class Big:
        alive = 0

        def __init__(self):
            Big.alive += 1

        def __del__(self):
            Big.alive -= 1

    f = SimFutures(one(slots=4), takes(1, 10))
    refs = [f.submit(Big) for _ in range(4)]
    del refs[0]
    f.wait(refs)
    assert (Big.alive, f.live, f.totals.peak_live, f.used) == (3, 3, 4, {"a": 30})
    taker = f.submit(id, refs.pop())
    assert f.live == 4  # the queued task holds its argument
    f.wait([taker])
    assert (Big.alive, f.live) == (2, 3)
    del refs, taker
    assert (Big.alive, f.live, f.objects, f.used) == (0, 0, 5, {"a": 0})


def test_what_the_driver_puts_is_outside_the_nodes():
    sizes = []

    def cost(call):
        sizes.append((call.sizes, call.moved))
        return Cost(1, 0)

    f = SimFutures(one(store=1), cost)
    assert f.get([f.submit(len, f.put("four"))]) == [4]
    assert sizes == [((0,), 0)]
    assert (f.used, f.totals.spilled, f.objects, f.calls, f.live) == ({"a": 0}, 0, 2, 1, 0)


# Faults ------------------------------------------------------------------------------------


def test_running_tasks_of_a_dead_node_run_elsewhere():
    f = SimFutures(
        [Node("a", 1, BIG), Node("b", 1, BIG)], takes(10), faults=[NodeDeath(4, "b")], trace=True
    )
    refs = [f.submit(abs, -1, node="a"), f.submit(min, 2, 3, node="b")]
    assert f.get(refs) == [1, 2]
    assert f.trace == [
        TaskRun(0, 4, "b", "min", "killed"),
        TaskRun(0, 10, "a", "abs", "done"),
        TaskRun(10, 20, "a", "min", "done"),
    ]
    assert [node.id for node in f.nodes()] == ["a"]


def test_lost_values_are_recomputed_with_freed_inputs():
    nodes = [Node("a", 1, BIG), Node("b", 1, BIG)]
    f = SimFutures(nodes, takes(2, 10), faults=[NodeDeath(9, "b", back=20)], trace=True)
    seven = f.put(-7)
    base = f.submit(abs, seven, node="a")  # 0 to 2 at a, freed at 4
    middle = f.submit(divmod, base, 1, node="b")  # 2 to 4 at b, freed at 6
    last = f.submit(max, middle, (1, 1), node="b")  # 4 to 6 at b, lost at 9
    del base, middle, seven
    f.get([last])
    assert (f.now, f.live, f.used) == (6, 2, {"a": 0, "b": 10})  # `last`, and `seven` for lineage
    assert f.wait([f.submit(pow, 1, 1, node="a")], timeout=3)[1] == []
    assert f.wait([last], timeout=0) == ([last], [])
    assert f.wait([f.submit(min, 1, 1, node="a")], timeout=1)[1] != []  # 8 to 10; now it is 9
    assert f.wait([last])[0] == [last]
    assert f.now == 16
    assert f.get([last]) == [(7, 0)]
    again = [(run.start, run.node, run.name) for run in f.trace if run.start >= 10]
    assert again == [(10, "a", "abs"), (12, "a", "divmod"), (14, "a", "max")]
    assert f.used == {"a": 10, "b": 0}
    del last
    assert f.live == 0


def test_nothing_starts_on_a_node_that_died_idle():
    f = SimFutures(
        [Node("a", 1, BIG), Node("b", 9, BIG)], takes(3), faults=[NodeDeath(1, "b")], trace=True
    )
    f.wait([], timeout=2)
    f.get([f.submit(abs, 1), f.submit(abs, 1, node="b")])
    assert [(run.start, run.node) for run in f.trace] == [(2, "a"), (5, "a")]


def test_an_argument_lost_during_a_wait_is_recomputed():
    f = SimFutures([Node("a", 2, BIG), Node("b", 1, BIG)], priced, faults=[NodeDeath(5, "b")])
    lost, late = f.submit(make, 3, 1, node="b"), f.submit(make, 6, 2, node="a")
    both = f.submit(make, 1, 3, lost, late)
    assert f.get([both]) == [(1, 3, (3, 1), (6, 2))]
    assert f.now == 5 + 3 + 1


def test_a_generator_recomputes_a_lost_earlier_value():
    nodes = [Node("a", 1, BIG), Node("b", 1, BIG)]
    f = SimFutures(
        nodes, lambda call: Cost(10 if call.count == 2 else 1, 1), faults=[NodeDeath(8, "b")],
        trace=True,
    )  # fmt: skip
    first, second = f.stream(2, lambda: iter("xy"), node="a")
    upper = f.submit(str.upper, first, node="b")  # 5 to 6, lost at 8
    del first
    f.get([second])
    assert f.get([upper]) == ["X"]
    assert [(run.start, run.end, run.name) for run in f.trace] == [
        (5, 6, "upper"),
        (0, 10, "<lambda>"),
        (10, 20, "<lambda>"),
        (20, 21, "upper"),
    ]
    assert f.get([second]) == ["y"]
    assert f.used == {"a": 2, "b": 0}


def test_a_node_comes_back_empty_and_takes_tasks():
    f = SimFutures(one(), takes(3, 5), faults=[NodeDeath(1, "a", back=10)], trace=True)
    assert f.get([f.submit(abs, -1)]) == [1]
    assert f.now == 13
    assert [(run.end, run.outcome) for run in f.trace] == [(1, "killed"), (13, "done")]


TASKS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "split", "stream", "put"]),
        st.integers(1, 3),  # values
        st.lists(st.integers(0, 999), max_size=3),  # arguments
        st.sampled_from([None, "a", "b", "c"]),
        st.integers(0, 6),  # seconds
        st.integers(0, 50),  # bytes
        st.booleans(),  # whether the refs are dropped at the end of the submissions
    ),
    max_size=25,
)
DEATHS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from("bc"), st.none() | st.integers(1, 20)),
    max_size=4,
)


def compute(count, seed, *args):
    return [hash((i, seed, args)) for i in range(count)]


def compute_one(count, seed, *args):
    return compute(1, seed, *args)[0]


def generate(count, seed, *args):
    yield from compute(count, seed, *args)


def submit_all(f, tasks, shape):
    """Submit random tasks; return refs and expected values of those that are kept."""
    refs, values, keep = [], [], []
    for seed, (kind, n, takes_, wish, seconds, nbytes, dropped) in enumerate(tasks):
        picked = [i % len(refs) for i in takes_ if refs]
        args, plain = [refs[i] for i in picked], [values[i] for i in picked]
        shape[seed] = Cost(seconds, nbytes)
        if kind == "put":
            new, made = [f.put(seed)], [seed]
        elif kind == "submit":
            new = [f.submit(compute_one, 1, seed, *args, node=wish)]
            made = compute(1, seed, *plain)
        else:
            fn = compute if kind == "split" else generate
            new = getattr(f, kind)(n, fn, n, seed, *args, node=wish)
            made = compute(n, seed, *plain)
        keep += [(ref, value, 0 if kind == "put" else nbytes)
                 for ref, value in zip(new, made, strict=True) if not dropped]  # fmt: skip
        refs += new
        values += made
    return keep


def most_at_once(runs):
    """Most tasks in slots at one time, by node."""
    most = {}
    for node in {run.node for run in runs}:
        here = [(run.start, run.end) for run in runs if run.node == node]
        most[node] = max(sum(s <= t < e for s, e in here) for t, _ in here)
    return most


def up_between(deaths, run):
    """Tell whether a node was there all the time between the start and the end of a run."""
    changes = []
    for i, (at, node, up) in enumerate(deaths):
        if node == run.node:
            changes += [(at, i, False)] + ([(at + up, i, True)] if up else [])
    changes.sort(key=lambda change: change[:2])
    before = [up for at, _, up in changes if at <= run.start]
    return before[-1:] != [False] and not any(
        run.start < at < run.end and not up for at, _, up in changes
    )


@settings(deadline=None, max_examples=400)
@given(
    TASKS, DEATHS, st.sampled_from([BIG, 60]), st.integers(0, 3),
    st.sampled_from([None, Channels(disk=20, net=50)]),
)  # fmt: skip
def test_random_graphs_compute_what_plain_calls_compute(tasks, deaths, store, seed, channels):
    nodes = [Node("a", 2, store), Node("b", 1, store), Node("c", 3, store)]
    shape = {}
    f = SimFutures(
        nodes,
        lambda call: shape[call.args[1]],
        seed=seed,
        faults=[NodeDeath(at, node, at + up if up else None) for at, node, up in deaths],
        stragglers=(lambda random: random.choice([1, 1, 3])) if seed else None,
        channels=channels,
        trace=True,
    )
    keep = submit_all(f, tasks, shape)
    refs, values = [k[0] for k in keep], [k[1] for k in keep]
    assert f.get(refs) == values
    f.wait([], timeout=3000)  # after the last death everything that is held is there again
    assert f.wait(refs, timeout=0) == (refs, [])
    assert f.get(refs) == values
    if store == BIG:
        assert sum(f.used.values()) == sum(k[2] for k in keep)
        assert f.totals.spilled == 0
    limit = {node.id: node.slots for node in nodes}
    assert all(most <= limit[node] for node, most in most_at_once(f.trace).items())
    for run in f.trace:
        assert run.start == run.end or up_between(deaths, run)
    del keep, refs
    assert f.live == 0
    assert all(used == 0 for used in f.used.values())
    if not deaths:
        assert len(f.trace) == f.calls


# Scale -------------------------------------------------------------------------------------


def test_the_control_plane_of_a_shuffle_of_200_000_blocks():
    mappers, reducers = 500, 400
    nodes = [Node(f"n{i}", 8, BIG) for i in range(20)]
    f = SimFutures(nodes, lambda call: Cost(1, 1000), execute=False)
    blocks = [f.split(reducers, compute, node=f"n{m % 20}") for m in range(mappers)]
    out = [f.submit(sum_of, *column) for column in zip(*blocks, strict=True)]
    f.get([row[-1] for row in blocks])
    assert f.now == 4  # 500 tasks on 160 slots
    del blocks
    assert f.live == f.totals.peak_live == mappers * reducers + reducers
    assert f.get(out) == [None] * reducers
    assert f.now == 4 + 3  # 400 tasks on 160 slots, since no slot is free before 4
    assert (f.calls, f.objects, f.live) == (900, 200_400, 400)
    assert sum(f.used.values()) == 400_000


def test_a_live_ref_takes_less_than_150_bytes():
    f = SimFutures(one(), takes(1, 1000), execute=False)
    tracemalloc.start()
    try:
        refs = [f.split(1000, compute) for _ in range(20)]
        f.get([row[-1] for row in refs])
        nbytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f.live == 20_000
    assert nbytes / f.live < 150
