"""The scheduler and the workers of a client: those of `distributed`, with the workers in actors.

The scheduler runs in the process that creates the client. Workers start with the first task that
needs one, since collections are computed without them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
from collections.abc import Collection, Mapping
from typing import Any

import dask.config
from distributed import Scheduler, SchedulerPlugin, SpecCluster
from distributed.core import error_message
from distributed.deploy.spec import ProcessInterface

from dask_exo.client.stored import result_of
from dask_exo.client.worker import WorkerHost
from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import Actor
from dask_exo.dask_adapter import Task

PENDING = "dask_exo-collection"
"""A resource that no worker has: a task that requires it waits for `ExoScheduler.fulfil`."""

MOMENT = 0.01  # seconds between two looks at whether graphs have been received
LAST_MESSAGE = 0.1  # seconds in which a worker receives that it is closed; it logs a failure

NEEDING_WORKERS = frozenset(
    {"broadcast", "get_cluster_state", "has_what", "ncores", "ncores_running", "scatter"}
)
"""Requests of clients that are about all workers."""


class ExoScheduler(Scheduler):
    """A scheduler that starts its workers when they are needed.

    Tasks that stand for results of collections wait until the client has computed these.
    """

    def __init__(self, *args: Any, cluster: RayCluster, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cluster, self._arriving = cluster, 0
        self._expected: dict[Any, str] = {}  # the client of each key that stands for a result
        self._held: dict[Any, Any] = {}  # results that are `Stored`
        self.stream_handlers.update(expect=self.expect, fulfil=self.fulfil)
        self.stream_handlers["client-releases-keys"] = self._release
        self.add_plugin(_Unwanted(self))
        for name in NEEDING_WORKERS & self.handlers.keys():
            self.handlers[name] = self._with_workers(self.handlers[name])
        self.handlers["identity"] = self._identity

    def _with_workers(self, handler: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._cluster.start_workers()
            result = handler(*args, **kwargs)
            return await result if asyncio.iscoroutine(result) else result

        return call

    async def _identity(self, n_workers: int = -1) -> dict[str, Any]:
        if n_workers:
            await self._cluster.start_workers()
        return self.identity(n_workers)

    async def update_graph(self, client: str, *args: Any, **kwargs: Any) -> None:
        """Schedule tasks; see `distributed.Scheduler.update_graph`."""
        self._arriving += 1
        try:
            await self._cluster.start_workers()
            await super().update_graph(client, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  raised where the futures are used
            report = {"op": "task-erred", **error_message(error)}
            for key in kwargs["keys"]:
                self.report({**report, "key": key}, client=client)
        finally:
            self._arriving -= 1

    async def _release(self, client: str, keys: Collection[Any]) -> None:
        await self._received()
        self.client_releases_keys(keys=keys, client=client)

    async def _received(self) -> None:
        """Wait for graphs that are being received: a message may be about their tasks."""
        while self._arriving:
            await asyncio.sleep(MOMENT)

    def expect(self, client: str, keys: Collection[Any]) -> None:
        """Expect results of a collection."""
        self._expected.update(dict.fromkeys(keys, client))

    def settle(self, key: Any) -> None:
        """Tell a client that its result is here, or that no task and no client needs it."""
        client = self._expected.pop(key, None)
        if client in self.client_comms:
            self.client_comms[client].send({"op": "settled", "key": key})

    def forget(self, key: Any) -> None:
        """Drop a result whose task is forgotten."""
        self._held.pop(key, None)
        self.settle(key)

    async def fulfil(self, client: str, results: Mapping[Any, tuple[bytes, bool]]) -> None:
        """Let pending tasks run, which return or raise the results of a collection."""
        await self._received()
        ready = {}
        places = itertools.cycle(sorted(self.idle.values() or self.running, key=_bytes))
        for key, (sealed, is_stored) in results.items():
            task = self.tasks.get(key)
            if task is not None and task.resource_restrictions:
                if is_stored:  # until a worker has it
                    self._held[key] = pickle.loads(sealed)  # noqa: S301  our own client's bytes
                task.run_spec, task.resource_restrictions = Task(key, result_of, sealed), {}
                task.worker_restrictions = {place.address for place in itertools.islice(places, 1)}
                task.loose_restrictions = True  # any other will do if that one has gone
                self.settle(key)
                ready[key] = "processing" if task.state == "no-worker" else "waiting"
        self.transitions(ready, "fulfil")


def _bytes(worker: Any) -> int:
    return int(worker.nbytes)


class _Unwanted(SchedulerPlugin):
    """Sees which tasks are forgotten."""

    def __init__(self, scheduler: ExoScheduler) -> None:
        self._scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """See `distributed.SchedulerPlugin.transition`."""
        if finish == "forgotten":
            self._scheduler.forget(key)


class WorkerActor(ProcessInterface):
    """Starts and stops the actor of one worker."""

    def __init__(self, scheduler: str, name: Any, node: str, options: Mapping[str, Any]) -> None:
        super().__init__(scheduler, name)
        self._scheduler, self._node, self._options = scheduler, node, {**options, "name": name}
        self._actor: Actor | None = None

    async def start(self) -> None:
        """Start it, and wait for its address."""
        self.address: str = await asyncio.to_thread(self._launch)
        await super().start()

    def _launch(self) -> str:
        settings = {k: v for k, v in dask.config.config.items() if k != "scheduler"}
        futures, args = on_ray.RayFutures(), (settings, self._scheduler, self._options)
        self._actor = futures.actor(
            {"num_cpus": 0}, WorkerHost, *args, node=self._node, restarts=-1
        )
        (address,) = futures.get([self._actor.submit(WorkerHost.address)])
        return str(address)

    async def close(self) -> None:
        """Stop it."""
        if self._actor is not None and on_ray.running():
            await asyncio.sleep(LAST_MESSAGE)
            self._actor.stop()
        await super().close()


class RayCluster(SpecCluster):
    """A scheduler in this process, and workers in actors on the nodes of a Ray cluster.

    By default there is one worker for each slot. ``host`` is the address of this machine, by which
    workers reach the scheduler.
    """

    def __init__(
        self,
        *,
        n_workers: int | None = None,
        nthreads: int | None = None,
        host: str = "127.0.0.1",
        asynchronous: bool = False,
        loop: Any = None,
        **options: Any,
    ) -> None:
        scheduler = {
            "cluster": self,
            "host": host,
            "port": 0,
            "dashboard": False,
            "dashboard_address": f"{host}:0",
        }
        self._n_workers, self._options = n_workers, {"nthreads": nthreads or 1, **options}
        self._starting: asyncio.Future[None] | None = None
        super().__init__(
            scheduler={"cls": ExoScheduler, "options": scheduler},
            asynchronous=asynchronous,
            loop=loop,
            name="dask_exo",
            silence_logs=logging.WARNING,
        )

    async def start_workers(self) -> None:
        """Start the workers, if they do not run yet, and wait for them."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start_workers())
        await asyncio.shield(self._starting)

    async def _start_workers(self) -> None:
        nodes = await asyncio.to_thread(on_ray.RayFutures().nodes)
        rounds = range(max(node.slots for node in nodes))
        slots = [node.id for i in rounds for node in nodes if i < node.slots]
        count = self._n_workers or len(slots)
        self.worker_spec.update({i: self._spec(slots[i % len(slots)]) for i in range(count)})
        await self._correct_state()

    async def _start(self) -> None:
        await super()._start()
        await asyncio.to_thread(on_ray.publish_scheduler, self.scheduler_address)

    async def _close(self) -> None:
        if on_ray.running():
            on_ray.publish_scheduler("")
        await super()._close()

    def _spec(self, node: str) -> dict[str, Any]:
        return {"cls": WorkerActor, "options": {"node": node, "options": self._options}}
