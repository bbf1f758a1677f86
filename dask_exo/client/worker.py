"""Workers of a client: those of `distributed`, in actors of Ray.

A task runs as in `distributed`, except that large inputs and results are in the object store. If
it writes into an input, which is read-only memory there, it runs again on a copy.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

import dask.config
from dask.utils import key_split
from distributed import Reschedule, Worker
from distributed.utils import LoopRunner, sync
from distributed.worker_state_machine import StateMachineEvent, WorkerState

from dask_exo.client.stored import Stored, keys_of_stored, opened, reading, stored
from dask_exo.cluster.ownership import writable
from dask_exo.dask_adapter import GraphNode
from dask_exo.errors import ClusterError
from dask_exo.execution.persisted import setting
from dask_exo.execution.worker import write_or_copy

STOPPED = 1.0  # seconds in which the actor of a closed worker is stopped, if it is meant to be
PAUSE = 0.5  # seconds for the scheduler to notice the loss of a worker, before a task runs again


class _Task:
    """A node of a graph that runs on values which may be `Stored`, as may its result."""

    def __init__(self, node: GraphNode) -> None:
        self._node = node
        self.is_coro = node.is_coro

    def __call__(self, values: Mapping[Any, Any]) -> Any:
        if self.is_coro:
            return self._awaited(values)
        shared = keys_of_stored(values)
        if not shared:
            return stored(self._node(values))
        inputs = _opened(values)

        def call(prepare: Any) -> Any:
            return self._node({**inputs, **{key: prepare(inputs[key]) for key in shared}})

        return stored(write_or_copy(call, key_split(self._node.key), shared=False))

    async def _awaited(self, values: Mapping[Any, Any]) -> Any:
        if shared := keys_of_stored(values):
            inputs = await asyncio.to_thread(_opened, values)
            values = {**inputs, **{key: writable(inputs[key]) for key in shared}}
        return stored(await self._node(values))

    def __repr__(self) -> str:
        return repr(self._node)


def _opened(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Read inputs from the store; reschedule the task if one is gone with the worker it was on."""
    try:
        return opened(values)
    except ClusterError:
        time.sleep(PAUSE)
        raise Reschedule from None


class _State(WorkerState):
    """State of a worker that reports the types of values, not `Stored`."""

    def _get_task_finished_msg(self, ts: Any, *args: Any, **kwargs: Any) -> Any:
        value = self.data.get(ts.key)
        if isinstance(value, Stored):
            ts.type = value.kind or object
        return super()._get_task_finished_msg(ts, *args, **kwargs)


class ExoWorker(Worker):
    """A worker of a client, whose large values are in the object store."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, data=dict, memory_limit=0, WorkerStateClass=_State, **kwargs)

    async def execute(self, key: Any, *, stimulus_id: str) -> StateMachineEvent:
        """Run a task; see `distributed.Worker.execute`."""
        task = self.state.tasks[key]
        if key not in self.state.actors and not isinstance(task.run_spec, _Task):
            task.run_spec = _Task(task.run_spec)
        return await super().execute(key, stimulus_id=stimulus_id)

    async def get_data(self, comm: Any, keys: Any, who: Any = None, serializers: Any = None) -> Any:
        """Send values: `Stored` as it is to those that tell who they are, else what it refers to.

        Workers do, and clients of this package; others have no connection to Ray.
        """
        with setting(reading, who is None):
            return await super().get_data(comm, keys, who, serializers)

    def update_data(self, data: dict[Any, object], stimulus_id: str | None = None) -> Any:
        """Keep values that a client has sent; see `distributed.Worker.update_data`."""
        return super().update_data({k: stored(v) for k, v in data.items()}, stimulus_id)

    def _get_client(self, timeout: float | None = None) -> Any:
        """Return the client of the tasks of this worker."""
        if self._client is None:
            from dask_exo.client.client import Client

            Client.for_worker(self, timeout)  # becomes the default one of this process
        return super()._get_client(timeout)


class WorkerHost:
    """An actor with one worker in it, which is started again if the scheduler restarts it."""

    def __init__(self, settings: Mapping[str, Any], scheduler: str, options: Any) -> None:
        dask.config.set(settings)
        self._runner = LoopRunner()
        self._runner.start()
        self._worker = sync(self._runner.loop, self._start, scheduler, dict(options))

    async def _start(self, scheduler: str, options: dict[str, Any]) -> ExoWorker:
        worker = await ExoWorker(scheduler, **options)
        self._watch = asyncio.create_task(self._end_with(worker))
        return worker

    async def _end_with(self, worker: ExoWorker) -> None:
        """End the process with its worker: Ray starts both again, unless it stops the actor."""
        await worker.finished()
        await asyncio.sleep(STOPPED)
        os._exit(0)

    def address(self) -> str:
        """Return the address of the worker."""
        return str(self._worker.address)
