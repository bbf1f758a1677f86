"""Attempts at tasks, their status in Ray's control store, and outputs of generators.

Ray recomputes a task when its worker has died, or the node that stored its output. The second
attempt draws the same random numbers as the first, and leaves a note for the driver, which Ray does
not inform.

Workers report the status of tasks every second, and the oldest finished tasks are dropped, so
pending and running tasks are known. If events are switched off, every status is unknown, and
nothing is called a stall.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.exceptions
from ray._private.state import available_resources_per_node, jobs, state
from ray.core.generated import common_pb2, gcs_pb2
from ray.experimental import internal_kv

from dask_exo.cluster.futures import Ref, SubmitOptions
from dask_exo.cluster.on_ray.translation import DIED, check_connection, ended, lost
from dask_exo.cluster.resources import fits, resources_of
from dask_exo.cluster.task_status import Activity, OutputDigest, TaskStatus, collect_outputs
from dask_exo.errors import ConfigError

_PLACE = "dask_exo-recomputed"  # namespace in the key-value store that every Ray cluster has
_SCHEDULERS = "dask_exo-schedulers"  # another one

_notes: dict[bytes, OutputDigest] = {}


def same_numbers(what: str) -> None:
    """Seed the global random generators equally in every attempt.

    In another session of Ray, and so in another run of a program, the numbers differ.
    """
    session = ray.get_runtime_context().get_session_name()
    seed = int.from_bytes(hashlib.blake2b(f"{session} {what}".encode(), digest_size=4).digest())
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def attempt(name: str) -> Iterator[None]:
    """Run a call as one of several attempts; leave a note, by ``name``, if it is not the first."""
    task = _task()
    same_numbers(task)
    with collect_outputs(task) as outputs:
        yield
    _leave_note(outputs[-1] if outputs else OutputDigest(task, name))


def begin(name: str, seed: str = "") -> None:
    """Start an attempt at a generator, like `attempt`; attempts at the same work share a seed."""
    task = _task()
    same_numbers(seed or task)
    _leave_note(OutputDigest(task, name))


def _leave_note(output: OutputDigest) -> None:
    """Leave a note of the running attempt, unless it is the first."""
    worker: Any = ray._private.worker.global_worker
    if number := int(worker.core_worker.get_current_task_attempt_number()):
        key = f"{_program()}{output.call} {number}"
        internal_kv._internal_kv_put(key, json.dumps(asdict(output)), namespace=_PLACE)


def recomputed() -> list[OutputDigest]:
    """Return the notes of all attempts of this program."""
    keys = internal_kv._internal_kv_list(_program(), namespace=_PLACE)
    for key in keys:
        if key not in _notes:
            note = internal_kv._internal_kv_get(key, namespace=_PLACE)
            _notes[key] = OutputDigest(**json.loads(note))
    return list(_notes.values())


def publish_scheduler(address: str) -> None:
    """Tell tasks of this program the address of its client's scheduler; empty if there is none."""
    internal_kv._internal_kv_put(_program(), address, namespace=_SCHEDULERS)


def published_scheduler() -> str:
    """Return the address of the scheduler of this program's client, or an empty string."""
    return (internal_kv._internal_kv_get(_program(), namespace=_SCHEDULERS) or b"").decode()


def forget(*, ends: bool) -> None:
    """Remove the notes of this program before it leaves a cluster that does not end with it."""
    if not ends:
        with contextlib.suppress(Exception):  # the cluster may be gone
            internal_kv._internal_kv_del(_program(), del_by_prefix=True, namespace=_PLACE)
            internal_kv._internal_kv_del(_program(), namespace=_SCHEDULERS)
    _notes.clear()


def ended_programs() -> set[str]:
    """Return the ids of the programs of the cluster that have ended."""
    return {job["JobID"] for job in jobs() if job["IsDead"]}


def entries(place: str) -> list[str]:
    """Return the keys in a namespace of the key-value store."""
    return [key.decode() for key in internal_kv._internal_kv_list("", namespace=place)]


def forget_ended(*places: str) -> None:
    """Remove what programs have left that ended without leaving the cluster.

    Keys in the namespaces ``places``, by default those of this module, begin with a program's id.
    """
    for place in places or (_PLACE, _SCHEDULERS):
        keys = entries(place)
        ended = ended_programs() if keys else set()
        for key in keys:
            if key.partition(" ")[0] in ended:
                internal_kv._internal_kv_del(key, namespace=place)


def _task() -> str:
    return str(ray.get_runtime_context().get_task_id())


def _program() -> str:
    """Return the prefix of the keys of this program's notes."""
    check_connection()
    return f"{ray.get_runtime_context().get_job_id()} "


_STATUS = common_pb2.TaskStatus  # type: ignore[attr-defined]  # created at import
_ENDED = {_STATUS.Value("FINISHED"), _STATUS.Value("FAILED")}
_RUNS = {_STATUS.Value("RUNNING")}
_BLOCKED = {_STATUS.Value("RUNNING_IN_RAY_GET"), _STATUS.Value("RUNNING_IN_RAY_WAIT")}
"""It waits for other tasks, and its slot is free meanwhile."""
_CREATION = common_pb2.TaskType.Value("ACTOR_CREATION_TASK")  # type: ignore[attr-defined]


def activity(tasks: Sequence[bytes]) -> Activity:
    """Return the status of tasks, by their ids; see `dask_exo.cluster.futures.Futures.activity`."""
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    return replace(judge(tasks, _events(), alive), free=available_resources_per_node())


def judge(
    tasks: Sequence[bytes], events: Iterable[Any], alive: Mapping[str, Mapping[str, float]]
) -> Activity:
    """Return the status of tasks, by the events of the last attempt at each.

    ``events`` are of all tasks of the cluster; ``alive`` maps live nodes to their resources.
    """
    last: dict[bytes, Any] = {}
    actors: dict[bytes, Mapping[str, float]] = {}  # resources of each actor
    for event in events:
        if event.task_info.type == _CREATION:
            actors[event.task_info.actor_id] = dict(event.task_info.required_resources)
        if event.task_id not in last or last[event.task_id].attempt_number <= event.attempt_number:
            last[event.task_id] = event
    ids = set(tasks)
    others = sum(
        _status(event, actors, alive, _RUNS).state == "running" and bool(_needs(event, actors))
        for task, event in last.items()
        if task not in ids
    )
    statuses = [
        _status(last[task], actors, alive, _RUNS | _BLOCKED)
        if task in last
        else TaskStatus("unknown")
        for task in tasks
    ]
    return Activity(statuses, others, alive)


def _needs(event: Any, actors: Mapping[bytes, Mapping[str, float]]) -> Mapping[str, float]:
    return dict(event.task_info.required_resources) or actors.get(event.task_info.actor_id, {})


def _status(
    event: Any,
    actors: Mapping[bytes, Mapping[str, float]],
    alive: Collection[str],
    running: set[int],
) -> TaskStatus:
    times, needs = event.state_updates.state_ts_ns, _needs(event, actors)
    node = event.state_updates.node_id.hex()
    if _ENDED & times.keys():
        return TaskStatus("finished", needs, node)
    states = [status for status in times if status in _RUNS | _BLOCKED]
    if states and node in alive and max(states, key=lambda status: times[status]) in running:
        return TaskStatus("running", needs, node)
    return TaskStatus("pending" if times else "unknown", needs)


def _events() -> list[Any]:
    """Return the events of all tasks; empty if this Ray does not provide them."""
    if hasattr(state, "_get_all_task_events"):
        return state._get_all_task_events()
    accessor = getattr(state, "global_state_accessor", None)  # before Ray 2.60
    events = [] if accessor is None else accessor.get_task_events()
    return [gcs_pb2.TaskEvents.FromString(event) for event in events]  # type: ignore[attr-defined]


def death(tasks: Collection[bytes]) -> str:
    """Describe the death of a worker of one of some tasks: attempts, end, node, and what helps."""
    for _ in range(30):  # 3 s; events arrive every second
        time.sleep(0.1)
        events = [event for event in _events() if event.task_id in tasks]
        last = max(events, key=lambda event: event.attempt_number, default=None)
        if last is not None and (said := last.state_updates.error_info.error_message):
            break
    else:
        return DIED
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    node: Any = ray._private.worker._global_node
    pattern = f"worker-{last.state_updates.worker_id.hex()}-*.err"
    logs = Path(node.get_logs_dir_path()).glob(pattern)  # none if it ran on another machine
    log = "".join(path.read_text(errors="replace") for path in logs)
    oom = bool(log) and _oom_kills() > _killed_before
    how = ended(said + log, f" on node {nodes.get(last.state_updates.node_id.hex())}", oom=oom)
    _, fatal, stack = log.partition("\nExtension modules")[0].partition("Fatal Python error")
    attempts = f"its worker died at each of {last.attempt_number + 1} attempts, at last {how}"
    return "\n".join([attempts, *(fatal + stack).splitlines()[:10]])


def _oom_kills() -> int:
    """Return how many processes the kernel of this machine has ended since memory ran out."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path("/proc/vmstat").read_text().partition("\noom_kill ")[2].split()[0])
    return 0


_killed_before = _oom_kills()


def check_submit_options(options: SubmitOptions) -> None:
    """Raise `ConfigError` for options that Ray refuses; warn if no node has the resources.

    An autoscaling cluster may get such a node, so this is not an error.
    """
    try:
        ray.remote(resources_of).options(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Ray refuses a task with {dict(options)}: {error}. Give dask.annotate or "
            f"dask_exo.options values that Ray takes"
        ) from error
    resources = resources_of(options)
    if not any(fits(node["Resources"], resources) for node in ray.nodes() if node["Alive"]):
        warnings.warn(
            f"no node of the cluster has {resources}: tasks that request this wait until one "
            f"joins. Start Ray with it, or request less",
            stacklevel=2,
        )


_BOTH = hasattr(ray.ObjectRefGenerator, "_get_next_ref_n")  # Ray 2.60; before, one at a time
STREAMING = {"num_returns": "streaming", "_generator_backpressure_num_objects": 2 if _BOTH else 1}
"""Options of a generator task, which stops when it is one pair ahead of its reader."""


class RayOutputStream:
    """`dask_exo.cluster.futures.OutputStream` of a streaming generator.

    The metadata of a value is read without taking the pair, so the generator continues only when
    the pair is taken.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._next: list[Any] = []
        self._lost = partial(lost, partial(death, [generator._generator_ref.task_id().binary()]))

    @property
    def next(self) -> Ref:
        """See `OutputStream.next`."""
        if not self._next:
            self._next = self._refs(2 if _BOTH else 1)
        return self._next[-1]

    def read(self) -> Any:
        """See `OutputStream.read`."""
        with self._lost():
            try:
                return self._read()
            except Exception:
                for ref in (*self._next, self._generator._generator_ref):
                    with contextlib.suppress(Exception):  # otherwise Ray prints an error as unread
                        ray.get(ref, timeout=0)
                raise

    def _read(self) -> Any:
        with contextlib.suppress(ray.exceptions.ObjectRefStreamEndOfStreamError):
            if not _BOTH:
                value = next(self._generator, None)  # only now the generator yields the metadata
                if value is None:
                    return None
                if value == self._generator._generator_ref:  # the task has failed
                    ray.get(value)
                self._next = [value, *self._refs(1)]
            return ray.get(self._next[-1])
        with contextlib.suppress(ray.exceptions.ObjectRefStreamEndOfStreamError):
            ray.get(self._next[0])  # the exception of a task that failed before its metadata
        return None

    def take(self) -> Ref:
        """See `OutputStream.take`."""
        with self._lost():
            (value, _), self._next = self._next, []
            if _BOTH:
                self._generator._consume_next_ref_n(2)
            else:
                next(self._generator)
        return value

    def cancel(self) -> None:
        """See `OutputStream.cancel`."""
        with contextlib.suppress(Exception):  # it has ended
            ray.cancel(self._generator)

    def _refs(self, count: int) -> list[Any]:
        """Return the next refs without taking them."""
        if _BOTH:
            return self._generator._get_next_ref_n(count)
        core = self._generator.worker.core_worker
        return [core.peek_object_ref_stream(self._generator._generator_ref)[0]]
