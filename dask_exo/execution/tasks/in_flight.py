"""A task in flight: some bundles, how they were sent, and where their values will be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dask_exo.cluster.futures import Futures, Ref, SubmitOptions
from dask_exo.execution.actor_pool import PooledActor
from dask_exo.execution.tasks.worker import run_to_driver, run_to_store
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Bundle


@dataclass(slots=True)
class TaskCall:
    """Some bundles that are one task.

    Attributes
    ----------
    bundles : list of Bundle
    data : bytes
        Their code.
    args : sequence of Ref
        What they read. It is held as long as the task may have to be sent again.
    kept : list of Key
        Values that are asked for outside of the call.
    small : int, optional
        Bytes of a value that comes back with the receipt; all are without it.
    needs : mapping, optional
    node : str, optional
        Where it should run.
    expected_bytes : int
        Bytes that it is expected to return.
    actor : PooledActor, optional
        The worker that runs it.
    refs : dict
        Of the values that it returns as such.
    """

    bundles: list[Bundle]
    data: bytes
    args: Sequence[Ref]
    kept: list[Key]
    small: int | None
    needs: SubmitOptions | None
    node: str | None
    expected_bytes: int
    actor: PooledActor | None
    refs: dict[Key, Ref] = field(default_factory=dict)

    def send(self, futures: Futures) -> Ref:
        """Submit it; return the ref of what becomes of the bundles."""
        submit: Callable[..., Ref] = partial(futures.submit, node=self.node, needs=self.needs)
        split: Callable[..., list[Ref]] = partial(futures.split, node=self.node, needs=self.needs)
        if self.actor is not None:
            submit, split = self.actor.worker.submit, self.actor.worker.split
        if self.small is None:
            return submit(run_to_driver, self.data, *self.args)
        count = len(self.kept) + 1
        *refs, done = split(count, run_to_store, self.data, self.small, *self.args)
        self.refs = dict(zip(self.kept, refs, strict=True))
        return done


def receipts(futures: Futures, refs: Sequence[Ref], kind: type[Exception]) -> list[Any]:
    """What tasks that have ended returned; the exception itself where it is of one kind."""
    try:
        return futures.get(refs)
    except kind as error:
        if len(refs) == 1:
            return [error]
        return [receipts(futures, [ref], kind)[0] for ref in refs]
