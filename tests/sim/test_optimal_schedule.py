"""The best schedule of a chain: against plain enumeration, and against what the thesis says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asv_bench.simulation.optimal_schedule import Chain, Operator, lower_bound, optimum, search
from dask_exo.errors import PipelineError


def enumerated(chain: Chain) -> int | None:
    """One primitive at a time: begin a task, let a task go on, or let one tick pass."""
    ops = chain.operators
    now, level = 0, {(chain.inputs, (0,) * len(ops), ())}
    seen = set(level)
    while level:
        todo, following = list(level), set()
        while todo:
            left, queues, tasks = todo.pop()
            if not (left or tasks or any(queues)):
                return now
            free = {r: n - sum(ops[t[0]].slot == r for t in tasks) for r, n in chain.slots.items()}
            fresh = []
            for i, op in enumerate(ops):
                if free[op.slot] and (queues[i] if i else left):
                    less = tuple(n - (i > 0 and j == i) for j, n in enumerate(queues))
                    more = (*tasks, (i, op.ticks, op.outputs - 1))
                    fresh.append((left - (i == 0), less, tuple(sorted(more))))
            for task in set(tasks):
                i, rest, outputs = task
                if rest:
                    continue
                others = list(tasks)
                others.remove(task)
                gives = chain.gated and i + 1 < len(ops)
                more = tuple(n + (gives and j == i + 1) for j, n in enumerate(queues))
                others.append((i, ops[i].ticks, outputs - 1))
                fresh.append((left, more, tuple(sorted(others))))
            for state in fresh:
                if state not in seen and room(chain, state) >= 0:
                    seen.add(state)
                    todo.append(state)
            following.add(ticked(chain, (left, queues, tasks)))
        level = following - seen
        seen |= level
        now += 1
    return None


def room(chain, state):
    """Partitions that still fit: queues, inputs that are held, outputs under way or not given."""
    _, queues, tasks = state
    inputs = sum(i > 0 and chain.operators[i].outputs > 1 for i, _, _ in tasks)
    return (
        chain.memory - sum(queues) - inputs - sum(chain.gated or rest > 0 for _, rest, _ in tasks)
    )


def ticked(chain, state):
    left, queues, tasks = state
    queues, after = list(queues), []
    for i, rest, outputs in tasks:
        if rest > 1 or not rest:
            after.append((i, max(0, rest - 1), outputs))
            continue
        if outputs:
            after.append((i, 0, outputs))
        if i + 1 < len(queues) and not (outputs and chain.gated):
            queues[i + 1] += 1
    return left, tuple(queues), tuple(sorted(after))


@st.composite
def chains(draw):
    small = st.integers(1, 2)
    ops = [
        Operator(draw(st.sampled_from("AB")), draw(small), draw(st.sampled_from([1, 1, 3])))
        for _ in range(draw(st.integers(1, 3)))
    ]
    slots = {"A": draw(small), "B": draw(small)}
    return Chain(
        tuple(ops), draw(st.integers(0, 3)), slots, draw(st.integers(1, 5)), draw(st.booleans())
    )


@given(chains(), st.sampled_from([1, 10]))
def test_the_optimum_is_what_plain_enumeration_finds(chain, width):
    wanted = enumerated(chain)
    if wanted is None:
        with pytest.raises(PipelineError, match="no schedule found"):
            optimum(chain, width=10_000)
        return
    try:
        found = search(chain, width)
    except PipelineError:  # a narrow one may end where nothing can go on
        found = search(chain, 10_000)
    assert optimum(chain, width=10_000) == wanted
    assert lower_bound(chain) <= wanted <= found


def inference(loads, cpus, gpus, memory, gated=True):
    """Thesis section 2.5.3.1, in half seconds."""
    ops = (Operator("CPU", 2, 5), Operator("CPU", 1), Operator("GPU", 1))
    return Chain(ops, loads, {"CPU": cpus, "GPU": gpus}, memory, gated)


@pytest.mark.parametrize(("memory", "bound"), [(3, 533), (6, 267), (8, 200), (10, 160), (20, 150)])
def test_the_thesis_bound_is_below_ours_and_the_best_near(memory, bound):
    chain = inference(160, 8, 4, memory)
    assert bound * 2 - 1 <= lower_bound(chain) <= bound * 2 + 1
    if memory == 6:
        assert search(chain, width=5) <= 1.02 * lower_bound(chain)


@pytest.mark.parametrize("memory", [2, 3, 6])
def test_small_inference_is_solved_exactly(memory):
    """Two CPUs need 30 s for 8 loads; in two partitions of memory one after the other passes."""
    best = optimum(inference(8, 2, 1, memory))
    assert best == {2: 82, 3: 75, 6: 64}[memory]
    assert best >= lower_bound(inference(8, 2, 1, memory))


def test_too_much_to_look_at_is_an_error():
    with pytest.raises(PipelineError, match="more than 10 states: the optimum is between"):
        optimum(inference(8, 2, 1, 4), most=10)
