"""Which attempt at a task this is; and what is the same in all of them.

Ray runs a task again where its worker has died, or the node with what it had returned. The second
attempt draws the same random numbers as the first one, and leaves a note for the driver: Ray itself
tells it nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import ray
from ray.experimental import internal_kv

from dask_exo.cluster.task_status import OutputDigest, collect_outputs

_PLACE = "dask_exo-repeats"  # in the table of names that every cluster of Ray has

_read: dict[bytes, OutputDigest] = {}


def same_numbers(what: str) -> None:
    """Let the generators of random numbers that a process has begin as in every attempt.

    They are those of `random` and of ``numpy.random``. In another session of Ray, and so in another
    run of a program, the numbers are others.
    """
    session = ray.get_runtime_context().get_session_name()
    seed = int.from_bytes(hashlib.blake2b(f"{session} {what}".encode(), digest_size=4).digest())
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def attempt(name: str) -> Iterator[None]:
    """Around a call: begin as in every attempt, and leave a note if this is not the first one.

    Parameters
    ----------
    name : str
        What it does, unless it says that itself.
    """
    task = _task()
    same_numbers(task)
    with collect_outputs(task) as heard:
        yield
    if number := attempts():
        leave(number, heard[-1] if heard else OutputDigest(task, name))


def begin(name: str, seed: str = "") -> None:
    """At the start of a generator: do as `attempt`, but for what it may say.

    Parameters
    ----------
    name : str
        What it does.
    seed : str
        Of its random numbers, where other tasks may be further attempts at the same.
    """
    task = _task()
    same_numbers(seed or task)
    if number := attempts():
        leave(number, OutputDigest(task, name))


def attempts() -> int:
    """How often the task that runs here has been started before."""
    worker: Any = ray._private.worker.global_worker
    return int(worker.core_worker.get_current_task_attempt_number())


def leave(number: int, made: OutputDigest) -> None:
    """Leave a note that a call has run again, for the ``number``-th time."""
    key = f"{_program()}{made.call} {number}"
    internal_kv._internal_kv_put(key, json.dumps(asdict(made)), namespace=_PLACE)


def repeats() -> list[OutputDigest]:
    """All notes of this program."""
    keys = internal_kv._internal_kv_list(_program(), namespace=_PLACE)
    for key in keys:
        if key not in _read:
            note = internal_kv._internal_kv_get(key, namespace=_PLACE)
            _read[key] = OutputDigest(**json.loads(note))
    return list(_read.values())


def forget(*, ends: bool) -> None:
    """Remove the notes of this program, before it leaves the cluster.

    Parameters
    ----------
    ends : bool
        Whether the cluster ends with it, and the notes do: it may not even answer any more.
    """
    if not ends:
        with contextlib.suppress(Exception):  # the cluster may be gone
            internal_kv._internal_kv_del(_program(), del_by_prefix=True, namespace=_PLACE)
    _read.clear()


def _task() -> str:
    return str(ray.get_runtime_context().get_task_id())


def _program() -> str:
    """What the notes of this program begin with."""
    return f"{ray.get_runtime_context().get_job_id()} "
