"""A simulated cluster behind the waist: virtual time, slots, stores, spilling, faults.

Shuffles, policies and the driver loop run on it unchanged. With ``execute=True`` tasks compute what
they compute anywhere; with ``execute=False`` only their number, order, duration and size is
simulated, which is how the control plane of a sort of 100 TB fits into a laptop.

- A value is stored on the node of its task. Taking it on another node moves bytes, once for each
  node while the value is in memory. The copies take no room.
- The driver's own values (`put`) are stored outside the nodes, without a size: never spilled,
  never lost.
- A dead node takes all its values with it; those with refs are recomputed, recursively.

References: Exoshuffle sections 4.2 (spilling) and 4.3 (lineage); Ray's ownership paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dask_exo.cluster.futures import (
    FetchTimeoutError,
    Futures,
    Node,
    Produce,
    StoreUsage,
    SubmitOptions,
)
from dask_exo.cluster.resources import resources_of
from dask_exo.cluster.task_status import Activity, OutputDigest
from dask_exo.testing.inline import InlineActor
from dask_exo.testing.simulated.cluster import SimCluster, plan_faults
from dask_exo.testing.simulated.generators import (
    GeneratedValue,
    SimActor,
    SimGenerators,
    SimOutput,
    SimStream,
    Work,
)
from dask_exo.testing.simulated.store import FAILED, PENDING, SimRef, SimValue, StoreTotals
from dask_exo.testing.simulated.tasks import (
    Call,
    Channels,
    CostModel,
    DeadlockError,
    Fault,
    NodeDeath,
    SimTask,
    Stragglers,
    TaskRun,
    explain,
    slowness,
    status_of,
)


class SimFutures(Futures):
    """Run tasks on a simulated cluster with a virtual clock; implements `Futures`.

    Time passes only in `wait` and `get`. A task waits for its arguments, then for a slot: on the
    node that it requests while that is alive, else on the node with a free slot and most bytes of
    its arguments, else on the least loaded one. Functions run when their virtual time is over,
    generators step by step, evenly.

    Parameters
    ----------
    cost : callable
        `Call` -> `Cost`, pure; called when a task starts.
    execute : bool
        Call functions; else all values are None.
    seed : int
        Of the generator that ``stragglers`` draws from.
    stragglers : mapping or callable, optional
        How many times longer tasks take: factors by node id, or a function that draws one for each
        start of a task.
    channels : Channels, optional
        Disks and networks of the nodes, which take their own time. Without them arguments are there
        at once, and ``cost`` includes their transfer.
    trace : bool
        Append a `TaskRun` to `trace` for each stay of a task in a slot.
    work : Work, optional
        Outputs of generator tasks, with their costs. By default their functions run, and ``cost``
        is that of each value.
    loading : float
        Seconds that an actor takes to start.

    Examples
    --------
    >>> from dask_exo.testing import Cost
    >>> node = Node("a", slots=2, store=100)
    >>> f = SimFutures([node], lambda call: Cost(seconds=3, sizes=60))
    >>> refs = [f.submit(pow, 2, i) for i in range(3)]
    >>> f.get(refs), f.now
    ([1, 2, 4], 6.0)
    >>> f.totals.spilled, f.peak_store  # 3 values of 60 bytes, one fits
    (120, {'a': 60})
    """

    shares_memory = False

    def __init__(  # noqa: PLR0913 - each has a default, and names one thing that can vary
        self,
        nodes: Sequence[Node],
        cost: CostModel,
        *,
        execute: bool = True,
        seed: int = 0,
        faults: Sequence[Fault] = (),
        stragglers: Stragglers | None = None,
        channels: Channels | None = None,
        trace: bool = False,
        work: Work | None = None,
        loading: float = 0.0,
    ) -> None:
        ids = {node.id for node in nodes}
        if len(ids) != len(nodes):
            raise ValueError(f"two nodes have one id: {[node.id for node in nodes]}")
        self.calls: int = 0
        self.trace: list[TaskRun] = []
        self._cluster = SimCluster(
            nodes,
            cost,
            slowness(stragglers, seed, ids),
            execute=execute,
            lineage=any(isinstance(fault, NodeDeath) for fault in faults),
            channels=channels,
            trace=self.trace if trace else None,
        )
        # bytes spilled, restored, moved; refs alive
        self.totals: StoreTotals = self._cluster.ledger
        self._machines = {machine.node.id: machine for machine in self._cluster.machines}
        self._cost = cost
        self.generators: SimGenerators = SimGenerators(self._cluster, work or self._work, loading)
        self._cluster.generators = self.generators
        plan_faults(self._cluster, faults)

    @property
    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self._cluster.now

    @property
    def objects(self) -> int:  # type: ignore[override]
        """Refs made."""
        return self.totals.objects

    @property
    def live(self) -> int:
        """Refs that have holders, a task that is to take them included."""
        return self.totals.live

    @property
    def used(self) -> dict[str, int]:
        """Bytes in the memory of each node's store, by node id."""
        return {id_: machine.store.used for id_, machine in self._machines.items()}

    @property
    def peak_store(self) -> dict[str, int]:
        """The most bytes there have been in the memory of each node's store, by node id."""
        return {id_: max(m.peak, m.store.peak) for id_, m in self._machines.items()}

    def generate(
        self,
        fn: Callable[..., Any],
        *args: Any,
        options: SubmitOptions | None = None,
        seed: str = "",  # noqa: ARG002  this process is not ours
    ) -> SimStream:
        """Start one generator task, which waits for the resources that it requests."""
        self.calls += 1
        stream = SimStream(self.generators, fn, args, resources_of(options or {}), None)
        self.generators.acquire(stream)
        return stream

    def actor(self, options: SubmitOptions, cls: type | None = None, *args: Any) -> InlineActor:
        """Start an actor; one without a class runs its calls in a slot each, as tasks do."""
        if cls is None:
            return InlineActor(self, set())
        instance = cls(*(arg.entry.value if type(arg) is SimRef else arg for arg in args))
        return SimActor(self.generators, self, resources_of(options), instance)

    def _work(self, fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[SimOutput]:
        seconds, size = self._cost(Call(fn, tuple(args), (0,) * len(args), 1, "", 0, 0))
        values = iter(fn(*args))
        for value in values:
            yield SimOutput(
                seconds, size if isinstance(size, int) else size[0], value, next(values)
            )

    def put(self, value: Any) -> SimRef:
        """Store a value at the driver."""
        if isinstance(value, SimRef):
            return value
        cluster = self._cluster
        entry = cluster.entry(None, 0)
        entry.value = value
        cluster.driver.add(entry)
        self.totals.count_refs(1)
        return SimRef(entry)

    def wait(
        self, refs: Sequence[SimRef], timeout: float | None = None
    ) -> tuple[list[SimRef], list[SimRef]]:
        """Let time pass until one of ``refs`` is finished; return those finished, and the others.

        Without ``refs``, let ``timeout`` virtual seconds pass.

        Raises
        ------
        DeadlockError
            Without a timeout: none of them can ever finish.
        """
        cluster = self._cluster
        deadline = float("inf") if timeout is None else cluster.now + timeout
        done = [ref for ref in refs if ref.entry.state != PENDING]
        if not refs and timeout is None:
            return [], []
        while not done and self._pass([ref.entry for ref in refs], deadline):
            done = [ref for ref in refs if ref.entry.state != PENDING]
        if not done:
            if timeout is None:
                raise DeadlockError(self._why(refs[0].entry))
            cluster.now = deadline
        return done, [ref for ref in refs if ref.entry.state == PENDING]

    def get(self, refs: Sequence[SimRef], timeout: float | None = None) -> list[Any]:
        """Let time pass until ``refs`` are finished; return their values, in order.

        Raises
        ------
        DeadlockError
            Without a timeout: one of them can never finish.
        """
        cluster = self._cluster
        deadline = float("inf") if timeout is None else cluster.now + timeout
        values = []
        for ref in refs:
            entry = ref.entry
            while entry.state == PENDING:
                if cluster.events and cluster.events[0][0] <= deadline:
                    cluster.step()
                elif timeout is None:
                    raise DeadlockError(self._why(entry))
                else:
                    cluster.now = deadline
                    raise FetchTimeoutError(f"not there after {timeout} s")
            if entry.state == FAILED:
                raise entry.value
            entry.store.restore(entry)
            values.append(entry.value)
        return values

    def cancel(self, refs: Sequence[SimRef]) -> None:
        """Cancel the tasks behind ``refs``; missing outputs fail with `CancelledError`."""
        entries = [ref.entry for ref in refs]
        tasks = [e.task for e in entries if e.state == PENDING and e.task is not None]
        self._cluster.cancel(dict.fromkeys(tasks))

    def nodes(self) -> list[Node]:
        """Return the live nodes, in the given order."""
        return [machine.node for machine in self._cluster.machines if machine.alive]

    def store(self) -> StoreUsage:
        """Return the use of the stores of all nodes."""
        return StoreUsage(sum(self.used.values()), self.totals.spilled, self.totals.restored)

    def activity(self, refs: Sequence[SimRef]) -> Activity:
        """Return the status of the tasks behind ``refs``."""
        tasks = [ref.entry.task if ref.entry.state == PENDING else None for ref in refs]
        running = {task for machine in self._cluster.machines for task in machine.running}
        alive = [machine for machine in self._cluster.machines if machine.alive]
        nodes = {machine.node.id: SimGenerators.whole(machine) for machine in alive}
        streams = [
            ref.entry.stream() if isinstance(ref.entry, GeneratedValue) else None for ref in refs
        ]
        statuses = [
            status_of(task) if stream is None else stream.status()
            for task, stream in zip(tasks, streams, strict=True)
        ]
        others = len(running.difference(tasks)) + len(
            self.generators.busy.keys() - {s.actor or s for s in streams if s is not None}
        )
        return Activity(statuses, others, nodes)

    def resources(self, *, free: bool = False) -> dict[str, float]:
        """Return the resources of live nodes, or what no generator task or actor has of them."""
        return self.generators.resources(free=free)

    def recomputed(self) -> list[OutputDigest]:
        """Return output digests of repeated calls; none if ``execute`` is off."""
        return list(self._cluster.repeats)

    def call(
        self,
        produce: Produce,
        count: int,
        fn: Callable[..., Any],
        args: Sequence[Any],
        *,
        node: str | None = None,
        options: SubmitOptions | None = None,  # noqa: ARG002  every task gets one slot
    ) -> list[SimRef]:
        """Start a task; see `Futures.call`."""
        if node is not None and node not in self._machines:
            raise ValueError(f"no node is called {node!r}; there are {sorted(self._machines)}")
        self.calls += 1
        cluster = self._cluster
        task = SimTask(
            produce, count, fn, tuple(args), None if node is None else self._machines[node]
        )
        task.serial = self.calls
        outputs = [cluster.entry(task, i) for i in range(count)]
        task.outputs = list(outputs)
        self.totals.count_refs(count)
        cluster.admit(task)
        return [SimRef(entry) for entry in outputs]

    def _pass(self, watched: Sequence[SimValue], deadline: float) -> bool:
        """Let time pass until one of ``watched`` is finished, with all events of that moment."""
        cluster = self._cluster
        cluster.watched, cluster.has_finished = set(watched), False
        events = cluster.events
        while events and events[0][0] <= (cluster.now if cluster.has_finished else deadline):
            cluster.step()
        cluster.watched = set()
        return cluster.has_finished

    def _why(self, entry: SimValue) -> str:
        reason = explain(entry, self._cluster.machines)
        return f"nothing can happen any more at {self.now} s: {reason}"
