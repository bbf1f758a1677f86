"""Tasks in flight: their bundles, how they were submitted, and the refs of their values."""

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
    """Bundles that run as one task.

    Attributes
    ----------
    bundles : list of Bundle
    data : bytes
        Pickled code of the bundles.
    args : sequence of Ref
        Inputs. They are held as long as the task may have to be resubmitted.
    kept : list of Key
        Values that are read outside of the call.
    small : int, optional
        Largest value, in bytes, to return in a receipt; None for all values.
    needs : mapping, optional
    node : str, optional
        Node that should run it.
    expected_bytes : int
        Expected size of the outputs.
    actor : PooledActor, optional
        Actor that runs it.
    refs : dict
        Refs of the values that are not in receipts.
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
        """Submit the task; return the ref of its receipts."""
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
    """Fetch the receipts of finished tasks; in place of one, an exception of type ``kind``."""
    try:
        return futures.get(refs)
    except kind as error:
        if len(refs) == 1:
            return [error]
        return [receipts(futures, [ref], kind)[0] for ref in refs]
