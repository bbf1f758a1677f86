"""Attempts at a task: equal random numbers, and a note for the driver.

Ray recomputes a task when its worker has died, or the node that stored its output. The second
attempt draws the same random numbers as the first, and leaves a note for the driver, which Ray does
not inform.
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
    """Seed the global random generators equally in every attempt.

    They are those of `random` and ``numpy.random``. Another session of Ray, and so another run of a
    program, gets other numbers.
    """
    session = ray.get_runtime_context().get_session_name()
    seed = int.from_bytes(hashlib.blake2b(f"{session} {what}".encode(), digest_size=4).digest())
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def attempt(name: str) -> Iterator[None]:
    """Run a call as one of several attempts; leave a note if it is not the first.

    Parameters
    ----------
    name : str
        Name of the call, unless it reports one.
    """
    task = _task()
    same_numbers(task)
    with collect_outputs(task) as heard:
        yield
    if number := attempts():
        leave(number, heard[-1] if heard else OutputDigest(task, name))


def begin(name: str, seed: str = "") -> None:
    """Do as `attempt` at the start of a generator, which reports no output.

    Parameters
    ----------
    name : str
        Name of the call.
    seed : str
        Seed of the random numbers, if other tasks may be attempts at the same work.
    """
    task = _task()
    same_numbers(seed or task)
    if number := attempts():
        leave(number, OutputDigest(task, name))


def attempts() -> int:
    """Return the number of earlier attempts at the running task."""
    worker: Any = ray._private.worker.global_worker
    return int(worker.core_worker.get_current_task_attempt_number())


def leave(number: int, made: OutputDigest) -> None:
    """Leave a note that a call has run again, for the ``number``-th time."""
    key = f"{_program()}{made.call} {number}"
    internal_kv._internal_kv_put(key, json.dumps(asdict(made)), namespace=_PLACE)


def repeats() -> list[OutputDigest]:
    """Return the notes of all attempts of this program."""
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
        Whether the cluster ends too, and its notes with it; it may not answer any more.
    """
    if not ends:
        with contextlib.suppress(Exception):  # the cluster may be gone
            internal_kv._internal_kv_del(_program(), del_by_prefix=True, namespace=_PLACE)
    _read.clear()


def _task() -> str:
    return str(ray.get_runtime_context().get_task_id())


def _program() -> str:
    """Return the prefix of the keys of this program's notes."""
    return f"{ray.get_runtime_context().get_job_id()} "
