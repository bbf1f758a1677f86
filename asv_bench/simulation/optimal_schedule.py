"""The least time that any schedule of a chain of stages takes, to score policies.

Time is discrete, all partitions have the same size, durations are known. Executors of one kind are
counted, not named; a state is what lies in the queues and how far each task is, so that histories
which lead to the same state are one. Starts are looked at only when something has ended: any other
start could be made earlier.

`lower_bound` is a formula. `search` goes through states in the order of time and keeps the best
``width`` of each moment: what it returns, a schedule takes. `optimum` goes through all states whose
bound is below that (A*), and is exact.

References: thesis section 2.5.4, whose search has one state for each assignment to executors.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import NamedTuple

from dask_exo.errors import PipelineError


class Operator(NamedTuple):
    """A stage of a chain.

    Attributes
    ----------
    slot : str
        The resource of which each task holds one.
    ticks : int
        Duration of one output, at least 1.
    outputs : int
        That each task gives, one after the other.
    """

    slot: str
    ticks: int
    outputs: int = 1


Task = tuple[int, int, int]
"""Stage; ticks until its next output is made, 0 if it waits to begin one; outputs after that."""


class State(NamedTuple):
    """A moment of a schedule.

    Attributes
    ----------
    left : int
        Inputs of the source that nobody has begun.
    queues : tuple of int
        (S,) partitions that wait for each stage; 0 for the source.
    tasks : tuple of Task
        In order.
    """

    left: int
    queues: tuple[int, ...]
    tasks: tuple[Task, ...]


class Rest(NamedTuple):
    """What has to be done: ticks of each resource, partitions times ticks, ticks of a chain."""

    work: dict[str, int]
    stay: int
    path: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.stay + sum(self.work.values())


@dataclass(frozen=True)
class Chain:
    """A pipeline all of whose partitions have the same size.

    A partition counts from when its making begins until what is made of it takes its place, or it
    leaves the chain. A task of several outputs holds its input until the last of them.

    Parameters
    ----------
    operators : tuple of Operator
        (S,) the first one is the source.
    inputs : int
        Of the source.
    slots : mapping
        Number of each resource.
    memory : int
        Partitions that there may be.
    gated : bool
        Whether an output is given away only as its task begins the next one, as with the generators
        of Ray; else the task waits without it.
    """

    operators: tuple[Operator, ...]
    inputs: int
    slots: Mapping[str, int]
    memory: int
    gated: bool = True

    @property
    def start(self) -> State:
        """Nothing has begun."""
        return State(self.inputs, (0,) * len(self.operators), ())

    @cached_property
    def _work(self) -> list[dict[str, int]]:
        """Ticks of each resource for a partition that waits for stage i, in it and all later."""
        after: list[dict[str, int]] = [dict.fromkeys(self.slots, 0)]
        for op in reversed(self.operators):
            work = {name: n * op.outputs for name, n in after[0].items()}
            work[op.slot] += op.ticks * op.outputs
            after.insert(0, work)
        return after

    @cached_property
    def _stay(self) -> list[int]:
        """Partitions times ticks that a partition which waits for stage i takes from then on."""
        stay = [0]
        for i in reversed(range(len(self.operators))):
            op = self.operators[i]
            held = op.ticks if i and op.outputs > 1 else 0
            stay.insert(0, op.outputs * (op.ticks + held + stay[0]))
        return stay

    @cached_property
    def _path(self) -> list[int]:
        """Ticks of a partition that waits for stage i, at least."""
        path = [0]
        for op in reversed(self.operators):
            path.insert(0, op.ticks * op.outputs + path[0])
        return path

    @cached_property
    def _tail(self) -> dict[str, int]:
        return {op.slot: self._path[i + 1] for i, op in enumerate(self.operators)}

    def tail(self, slot: str) -> int:
        """Ticks of what comes after the last use of a resource, at least."""
        return self._tail.get(slot, 0)

    @cached_property
    def _eager(self) -> list[bool]:
        """Stages whose tasks never do harm: no memory of their own, a resource of their own."""
        slots = [op.slot for op in self.operators]
        return [
            i > 0 and op.outputs == 1 and slots.count(op.slot) == 1
            for i, op in enumerate(self.operators)
        ]

    def rest(self, state: State) -> Rest:
        """What has to be done from a state to the end."""
        work = {name: n * state.left for name, n in self._work[0].items()}
        stay, path = self._stay[0] * state.left, self._path[0] if state.left else 0
        for i, queued in enumerate(state.queues):
            if queued:
                stay += self._stay[i] * queued
                path = max(path, self._path[i])
                for name, n in self._work[i].items():
                    work[name] += n * queued
        for i, ticks, more in state.tasks:
            op = self.operators[i]
            own = ticks + more * op.ticks
            # one that waits behind a gate has made an output that it has not given away
            outputs = more + (ticks > 0 or self.gated)
            stay += own * self._holds(i) + outputs * self._stay[i + 1]
            path = max(path, own + self._path[i + 1])
            work[op.slot] += own
            for name, n in self._work[i + 1].items():
                work[name] += n * outputs
        return Rest(work, stay, path)

    def bound(self, state: State) -> int:
        """Ticks from a state to the end, at least: of each resource, of memory, of one task."""
        work, stay, path = self.rest(state)
        by_slots = (ceil(n / self.slots[r]) + self.tail(r) for r, n in work.items() if n)
        return max(path, ceil(stay / self.memory), *by_slots)

    def _holds(self, i: int, *, waits: bool = False) -> int:
        """Partitions that count for a task."""
        its_input = int(i > 0 and self.operators[i].outputs > 1)
        return its_input + int(self.gated or not waits)

    def used(self, state: State) -> int:
        """Partitions that there are."""
        held = sum(self._holds(i, waits=not ticks) for i, ticks, _ in state.tasks)
        return sum(state.queues) + held

    def after(self, state: State) -> Iterator[tuple[int, State]]:
        """All states that can follow, and after how many ticks: when the next output is made."""
        for begun in self._begun(state):
            busy = [task[1] for task in begun.tasks if task[1]]
            if busy:
                yield min(busy), self._passed(begun, min(busy))

    def _begun(self, state: State) -> list[State]:
        """What can be begun at a moment, in all combinations."""
        waiting = sorted({task for task in state.tasks if not task[1]})
        found = [state]
        for task in waiting:
            found = [new for one in found for new in self._resumed(one, task)]
        for i in reversed(range(len(self.operators))):
            found = [new for one in found for new in self._started(one, i)]
        return found

    def _resumed(self, state: State, task: Task) -> Iterator[State]:
        """So many of some tasks that wait, none to all, begin their next output."""
        i, _, more = task
        op, queues, tasks = self.operators[i], list(state.queues), list(state.tasks)
        last = i + 1 == len(self.operators)
        grows = 0 if self.gated and last else 1
        room = self.memory - self.used(state)
        yield state
        for n in range(1, state.tasks.count(task) + 1):
            if n * grows > room:
                return
            tasks.remove(task)
            tasks.append((i, op.ticks, more - 1))
            if self.gated and not last:
                queues[i + 1] += 1
            yield State(state.left, tuple(queues), tuple(sorted(tasks)))

    def _started(self, state: State, i: int) -> Iterator[State]:
        """So many new tasks of a stage, none to all."""
        op = self.operators[i]
        held = sum(self.operators[task[0]].slot == op.slot for task in state.tasks)
        most = min(state.queues[i] if i else state.left, self.slots[op.slot] - held)
        grows = self._holds(i) - (i > 0)
        if grows:
            most = min(most, (self.memory - self.used(state)) // grows)
        for n in range(most if self._eager[i] else 0, most + 1):
            queues = list(state.queues)
            queues[i] -= n if i else 0
            tasks = sorted([*state.tasks, *[(i, op.ticks, op.outputs - 1)] * n])
            yield State(state.left - (0 if i else n), tuple(queues), tuple(tasks))

    def _passed(self, state: State, ticks: int) -> State:
        """The same tasks so many ticks later."""
        queues, tasks = list(state.queues), []
        for i, rest, more in state.tasks:
            made = rest == ticks
            if not made or more:
                tasks.append((i, max(0, rest - ticks), more))
            if made and i + 1 < len(self.operators) and not (more and self.gated):
                queues[i + 1] += 1
        return State(state.left, tuple(queues), tuple(sorted(tasks)))


def lower_bound(chain: Chain) -> int:
    """Ticks that no schedule goes below.

    The largest of: for each resource what comes before its first use, its work over its slots, and
    what comes after its last use; partitions times ticks over the memory; one input alone.

    Examples
    --------
    The thesis's 160 loads of 5 s on 8 CPUs and 4 GPUs, in half seconds:

    >>> load, transform, infer = Operator("CPU", 2, 5), Operator("CPU", 1), Operator("GPU", 1)
    >>> chain = Chain((load, transform, infer), 160, {"CPU": 8, "GPU": 4}, memory=160)
    >>> lower_bound(chain) / 2
    150.5
    >>> lower_bound(Chain((load, transform, infer), 160, {"CPU": 8, "GPU": 4}, memory=6)) / 2
    267.0
    """
    first, ticks = chain.bound(chain.start), 0
    if not chain.inputs:
        return 0
    work, _, _ = chain.rest(chain.start)
    seen: set[str] = set()
    for op in chain.operators:
        if op.slot not in seen:
            seen.add(op.slot)
            after = chain.tail(op.slot)
            first = max(first, ticks + ceil(work[op.slot] / chain.slots[op.slot]) + after)
        ticks += op.ticks
    return first


def search(chain: Chain, width: int = 100) -> int:
    """Ticks of the best schedule found by keeping some states of each moment (beam search).

    Parameters
    ----------
    chain : Chain
    width : int
        States to keep: so many with the least to do, and with the fewest inputs left.

    Raises
    ------
    PipelineError
        None was found.
    """
    moments: dict[int, set[State]] = {0: {chain.start}}
    while moments:
        now = min(moments)
        states = moments.pop(now)
        if any(done(state) for state in states):
            return now
        rated = [(chain.bound(state), chain.rest(state).total, state) for state in states]
        kept = {one[-1] for one in heapq.nsmallest(width, rated)}
        # those that have begun the most inputs as well: the last ones should not begin too late
        kept |= {one[-1] for one in heapq.nsmallest(width, rated, key=lambda r: (r[0], r[2]))}
        for state in kept:
            for ticks, new in chain.after(state):
                moments.setdefault(now + ticks, set()).add(new)
    raise PipelineError(
        f"no schedule found: {chain.memory} partitions of memory and slots {dict(chain.slots)} are "
        f"too few for {len(chain.operators)} stages; allow more memory, or a larger width"
    )


def optimum(chain: Chain, width: int = 100, most: int = 1_000_000) -> int:
    """Ticks of the best schedule there is.

    Parameters
    ----------
    chain : Chain
    width : int
        Of the `search` whose result this has to prove or to improve.
    most : int
        States to look at.

    Raises
    ------
    PipelineError
        No schedule was found, or there are more states than ``most``.

    Examples
    --------
    Two stages of 1 and 2 ticks on three slots: with eight inputs, 24 ticks of work.

    >>> optimum(Chain((Operator("CPU", 1), Operator("CPU", 2)), 8, {"CPU": 3}, memory=20))
    8
    """
    best = search(chain, width)
    earliest = {chain.start: 0}
    heap = [(lower_bound(chain), 0, chain.start)]
    while heap and heap[0][0] < best:
        _, now, state = heapq.heappop(heap)
        if done(state):
            return -now
        if -now > earliest[state]:
            continue
        for ticks, new in chain.after(state):
            at = ticks - now
            if at < earliest.get(new, best):
                earliest[new] = at
                heapq.heappush(heap, (at + chain.bound(new), -at, new))
        if len(earliest) > most:
            raise PipelineError(
                f"more than {most} states: the optimum is between {heap[0][0]} and {best} ticks; "
                f"take fewer inputs, or `lower_bound` and `search`"
            )
    return best


def done(state: State) -> bool:
    """Whether everything has left the chain."""
    return not (state.left or state.tasks or any(state.queues))
