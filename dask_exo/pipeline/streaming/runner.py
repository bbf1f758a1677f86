"""`StreamRunner`: runs the tasks of a pipeline on actors and processes of a cluster."""

from __future__ import annotations

import contextlib
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from dask_exo.cluster.futures import Futures, OutputStream
from dask_exo.cluster.resources import submit_options
from dask_exo.cluster.sampling import Stack
from dask_exo.cluster.task_status import Activity, TaskStatus
from dask_exo.config import Config
from dask_exo.errors import NonDeterminismError, WorkerLostError
from dask_exo.execution.autoscaler import WorkLeft, wants_of
from dask_exo.execution.submission import raise_failure
from dask_exo.pipeline.streaming.actor_pools import StageActorPools
from dask_exo.pipeline.streaming.blocks import RETRY, Block, StageSpec, lineage_of, links, origin_of
from dask_exo.pipeline.streaming.recovery import Recovery, StreamTask, TasksInFlight, TaskState
from dask_exo.pipeline.streaming.snapshot import PipelineView
from dask_exo.pipeline.streaming.task import BlockMetadata, StageActor, StageCode, TaskInputs, run

SHORT_TASK = 1.0  # seconds of the longest task behind which another may wait for the same actor
POLL_INTERVAL = 0.05  # seconds between two polls for an actor, or for a lost input
RESOURCES_INTERVAL = 1.0  # seconds between two looks at the resources of the cluster


class StreamRunner:
    """Tasks of a pipeline on a cluster.

    Stages without state that request only CPUs run on processes that all tasks of the cluster
    share; the others run on actors. After ``patience`` seconds without an output, the runner checks
    for lost inputs.
    """

    def __init__(
        self,
        futures: Futures,
        stages: Sequence[StageSpec],
        codes: Sequence[StageCode],
        *,
        patience: float = 2.0,
    ) -> None:
        self._futures, self._stages, self._patience = futures, stages, patience
        self._codes = [futures.put(code) for code in codes]
        self._modes, self._names = zip(*((c.nondeterminism, c.key) for c in codes), strict=True)
        self._stateless = list(map(self.is_stateless, stages, codes))
        self._in_flight = TasksInFlight()
        self._last_event = self.now()
        self._longest = [0.0] * len(stages)  # task; endless if it makes several blocks
        self._stacks = defaultdict[int, Counter[Stack]](Counter)  # by stage
        self._resources, self._last_look = futures.resources(), self.now()
        self._sources = [i for i, link in enumerate(links(stages)) if not link.before]
        self.pools: StageActorPools = StageActorPools(
            futures, stages, self._codes, self._stateless, self.now
        )
        self.pools.start_minimum(self._resources)
        self.recovery: Recovery = Recovery(
            futures,
            stages,
            [code.skips for code in codes],
            self.pools,
            self._in_flight,
            submit=self._submit,
            release=self._release,
        )
        self._started: Counter[int] = Counter()
        self._weight = Config.current().share
        self._who, self._asked = f"pipeline {uuid.uuid4().hex}", False

    def is_stateless(self, stage: StageSpec, code: StageCode) -> bool:
        """Return whether the tasks of a stage run on processes that all tasks share."""
        return stage.request.keys() <= {"CPU"} and not any(t.stateful for t in code.transforms)

    def now(self) -> float:
        """Return seconds since an arbitrary moment."""
        return self._futures.now

    def total(self) -> Mapping[str, float]:
        """Return the resources of the cluster, at most a second old: nodes come and go."""
        if self.now() - self._last_look > RESOURCES_INTERVAL:
            self._resources, self._last_look = self._futures.resources(), self.now()
            part = self._futures.share(self._who, self._weight)
            for name in ("CPU", "GPU") if part < 1.0 else ():
                amount = self._resources.get(name, 0.0)
                self._resources[name] = max(min(amount, 1.0), float(int(part * amount)))
        return self._resources

    def ask(self, work: Iterable[WorkLeft]) -> None:
        """Ask for nodes that are worth it for some work; for none, take that back."""
        wants = wants_of(work)
        if not wants:
            self._futures.share(self._who, 0.0)
        if self._futures.elastic and (wants or self._asked):
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._asked = self._futures.ask(self._who, wants) and bool(wants)

    def start(self, stage: int, inputs: Sequence[Block]) -> StreamTask:
        """Start a task on an actor with the resources that the stage requests.

        The first tasks of sources also start actors of later stages, if no other stage can use
        the resources of these.
        """
        task = StreamTask(stage, list(inputs))
        self._submit(task)
        self._started[stage] += 1
        if stage in self._sources:
            self.pools.prestart(self._resources, self._started, self._sources)
        return task

    def wait(self, tasks: Sequence[StreamTask], timeout: float | None) -> list[StreamTask]:
        """Wait until a task has an output or has ended.

        A task whose actor has died restarts, and makes the outputs that are missing. Inputs that
        were lost with a node are recomputed before that.

        Raises
        ------
        Exception
            A function of the user raised it.
        WorkerLostError
            Actors died again and again.
        """
        self.pools.dismiss_expired()
        self.recovery.submit_recalled()
        if not tasks:
            self._futures.wait([], timeout or 0)
            return []
        final_states = (TaskState.DRAINED, TaskState.SET_ASIDE)
        ready = [task for task in tasks if task.state in final_states]
        streams = self._submitted([task for task in tasks if task.state not in final_states])
        if self.recovery.polls or not streams:
            timeout = POLL_INTERVAL if timeout is None else min(timeout, POLL_INTERVAL)
        if not streams and not ready:
            self._futures.wait([], timeout or 0)
        for stream in self._wait_for(streams, 0 if ready else timeout):
            task, self._last_event = self._in_flight.by_stream[stream], self.now()
            if self._read(task):
                ready.append(task)
        if self.now() - self._last_event > self._patience:
            self.recovery.recall()
            self._last_event = self.now()
        return ready

    def take(self, task: StreamTask) -> Block | None:
        """Return the next output; None at the end."""
        if task.dead_letters is not None:
            return task.dead_letters.pop() if task.dead_letters else None
        metadata, task.metadata = task.metadata, None
        if metadata is None:
            task.become(TaskState.ENDED)
            self._release(task)
            return None
        try:
            ref = task.stream.take()
        except WorkerLostError as error:
            self.recovery.restart(task, error)
            return RETRY
        lineage = lineage_of(task.inputs, task.taken, metadata.digest)
        task.taken += 1
        self._check_digest(task, metadata)
        task.digest = metadata.digest
        if task.only is None:
            longest = max(self._longest[task.stage], metadata.seconds)
            self._longest[task.stage] = inf if metadata.more else longest
        if metadata.samples is not None:
            self._stacks[task.stage].update(metadata.samples.stacks)
        if not metadata.more:
            task.inputs = list(lineage.inputs)  # without values, which would stay in the store
        # a drained task stays with its actor, behind which the next task of that may wait
        task.become(TaskState.RUNNING if metadata.more else TaskState.DRAINED)
        return Block(
            ref,
            metadata.nbytes,
            metadata.rows,
            more=metadata.more,
            seconds=metadata.seconds,
            origin=metadata.origin,
            rejected=metadata.rejected,
            held=metadata.held,
            lineage=lineage,
        )

    def take_stacks(self, stage: int) -> dict[Stack, int]:
        """Return the samples of the tasks of a stage since the last call."""
        return self._stacks.pop(stage, {})

    def idle(self, stage: int) -> int:
        """Return how many actors can run a task of a stage now, or after a short one."""
        return self.pools.idle(stage) + len(self._soon_idle(stage))

    def at_target(self, stage: int) -> bool:
        """Return whether a stage has as many actors as its measured rate needs."""
        return self.pools.at_target(stage, self._resources)

    def resize(self, view: PipelineView) -> bool:
        """Resize the actor pools by measured rates; return whether anything has changed."""
        return self.pools.resize(view)

    def cancel(self, tasks: Sequence[StreamTask]) -> None:
        """Stop tasks, and end all actors."""
        self.recovery.clear()
        for stream in self._submitted(tasks):
            stream.cancel()
        self.pools.dismiss_idle()
        for actor in self._in_flight.by_actor:
            actor.handle.stop()

    def activity(self, tasks: Sequence[StreamTask]) -> Activity:
        """Return what tasks do at the moment."""
        awaited = [task.awaited() for task in tasks]
        status = self._futures.activity([stream.next for stream in self._submitted(tasks)])
        submitted = iter(status.tasks)
        return replace(
            status,
            tasks=[
                TaskStatus("pending", self.pools.request(task.stage))
                if task.stream is None
                else next(submitted)
                for task in awaited
            ],
        )

    def _wait_for(
        self, streams: Sequence[OutputStream], timeout: float | None
    ) -> list[OutputStream]:
        """Wait until some streams can be read; return those."""
        by_ref = {stream.next: stream for stream in streams}
        done, pending = self._futures.wait(list(by_ref), timeout) if by_ref else ([], [])
        if done and pending:
            done = done + self._futures.wait(pending, 0)[0]
        return [by_ref[ref] for ref in done]

    def _submitted(self, tasks: Sequence[StreamTask]) -> list[OutputStream]:
        """Return the streams that tasks wait for, as far as these are submitted."""
        awaited = [task if task.maker is None else task.awaited() for task in tasks]
        return [task.stream for task in awaited if task.stream is not None]

    def _submit(self, task: StreamTask) -> None:
        """Submit a task, or let it wait for an input or an actor."""
        lost = next((k for k, block in enumerate(task.inputs) if block.value is None), None)
        if lost is not None:
            self.recovery.recompute_input(task, lost)
            return
        stage = task.stage
        values = [block.value for block in task.inputs]
        origins = [block.known_origin for block in task.inputs]
        start = TaskInputs(task.inputs[0].place, task.taken, origins, task.only is not None)
        args = (self._codes[stage], start, *values)
        seed = f"{self._names[stage]} {start.place}"
        if self._stateless[stage]:
            options = submit_options(self._stages[stage].request)
            task.stream = self._futures.generate(run, *args, options=options, seed=seed)
        else:
            task.actor = self._acquire(task)
            if task.actor is None:
                self.recovery.wait_for_actor(task)
                return
            task.stream = task.actor.handle.generate(StageActor.run, *args, seed=seed)
        task.become(TaskState.RUNNING)
        self._in_flight.add(task)

    def _acquire(self, task: StreamTask) -> Any:
        """Return an actor for a task; None if a task that recomputes a block has to wait."""
        stage = task.stage
        if not self.pools.idle(stage):
            actors = self._soon_idle(stage)
            if actors:
                return actors[0]
            if task.only is not None and self.pools.must_wait(stage, self._resources):
                return None
            self.pools.start_actor(stage, self._resources)
        return self.pools.acquire(stage)

    def _soon_idle(self, stage: int) -> list[Any]:
        """Return actors with a single short task, behind which another one may wait."""
        if not self.pools.can_prestart(stage) or not 0 < self._longest[stage] < SHORT_TASK:
            return []
        if not self.pools.at_target(stage, self._resources):
            return []  # there is room for one more actor
        return self._in_flight.with_one_task(stage)

    def _read(self, task: StreamTask) -> bool:
        """Read the metadata of the next output; return whether the executor can take it."""
        try:
            task.metadata = task.stream.read()
        except WorkerLostError as error:
            self.recovery.restart(task, error)
            return False
        if task.metadata is not None and task.metadata.failure is not None:
            raise_failure(task.metadata.failure)  # it names stage, partition and rows
        task.become(TaskState.DRAINED if task.metadata is None else TaskState.HAS_OUTPUT)
        if task.reader is None:
            return True
        block = self.take(task)
        if block is not RETRY:
            self.recovery.deliver(task, block)
        return False

    def _check_digest(self, task: StreamTask, metadata: BlockMetadata) -> None:
        """Check that a task that runs again makes the same outputs as before."""
        actual, expected = metadata.before, task.digest
        if task.only is not None:
            actual, expected = metadata.digest, task.only.digest
        if actual == expected:
            return
        text = (
            f"stage {self._stages[task.stage].name!r} ran again on {origin_of(task.inputs)}, since "
            f"an actor or a node was lost, and made other blocks than before, of which some are "
            f"used already: let it depend on its input only. If the difference does no harm, set "
            f"exo.fault.nondeterminism to 'warn' or 'ignore'"
        )
        if self._modes[task.stage] == "error":
            raise NonDeterminismError(text)
        warnings.warn(text, stacklevel=2)

    def _release(self, task: StreamTask) -> None:
        """Remove a task that has ended, and release its actor."""
        if self._in_flight.remove(task):
            self.pools.release(task.stage, task.actor)
        self.recovery.submit_waiting()
