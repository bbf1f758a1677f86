"""Published values: they stay in the store of a joined cluster after their program has ended.

Ray frees a value with the process that owns it, which is the one that submitted its task. So an
actor on the head node, which outlives the program, submits tasks that copy the values. The copies
stay on the nodes of the values. The key-value store of the cluster has the name of each publication
and the actor that owns its values. An actor whose publication was replaced or deleted ends with its
last reader, since Ray ends an actor without regard to those who read what it owns.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import ray
import ray.exceptions
from ray.experimental import internal_kv
from ray.util import list_named_actors

from dask_exo.cluster.futures import Ref
from dask_exo.cluster.on_ray.connection import private
from dask_exo.cluster.on_ray.services import on_head
from dask_exo.cluster.on_ray.tasks import ended_programs, entries
from dask_exo.cluster.on_ray.translation import check_connection, first_line, lost, sealed
from dask_exo.errors import ClusterError, InputError, OutputExistsError
from dask_exo.events import wall_time

ANSWER = 30.0  # seconds in which an owner must answer
ENDING = 3.0  # seconds for one that may be ending, which does not answer
_PLACE = "dask_exo-published"  # namespace of the owners, and of the names in the key-value store


@dataclass(frozen=True)
class Publication:
    """Facts about a published collection; ``time`` is when it was published, in seconds since 1970.

    ``kind`` is the name of its type. ``rows`` is None if they are not known.
    """

    name: str
    kind: str
    partitions: int
    rows: int | None
    nbytes: int
    time: float = 0.0
    owner: str = ""


def _copy(value: Any) -> tuple[Any, None]:
    return sealed(value), None


class ValueOwner:
    """Owner of copies of values; an actor that outlives its program."""

    def __init__(self) -> None:
        self._refs: list[Ref] = []
        self._dropped: set[bytes] | None = None  # ids as Ray counts them

    def copy(self, sources: Sequence[Ref]) -> None:
        """Copy values, each on its node."""
        copies = [_remote_copy.remote(source) for source in sources]
        ray.get([done for _, done in copies])
        self._refs += [ref for ref, _ in copies]

    def read(self) -> list[Ref]:
        """Return the refs of all values."""
        if self._dropped is not None:
            raise ValueError("its values were replaced or deleted meanwhile")
        return self._refs

    def drop(self) -> None:
        """Drop the refs: values are freed, and the actor ends, when no other process reads them."""
        if self._dropped is None:
            self._dropped = {ref.hex().encode() for ref in self._refs}
            self._refs = []
            ray.get_runtime_context().current_actor.end.remote()

    def end(self) -> None:
        """End when no other process holds a ref that was dropped."""
        worker: Any = ray._private.worker.global_worker
        while self._dropped and self._dropped & set(worker.core_worker.get_all_reference_counts()):
            time.sleep(0.2)
        ray.actor.exit_actor()


_remote_copy: Any = ray.remote(_copy).options(num_returns=2, name="publish")
_remote_owner: Any = ray.remote(ValueOwner)


def check_publication(name: str, *, overwrite: bool) -> None:
    """Check, before anything is computed, that a name can be published.

    Raises
    ------
    ClusterError
        The cluster ends with this program.
    OutputExistsError
        The name is taken, and ``overwrite`` is not set.
    """
    check_connection()
    if private():
        raise ClusterError(
            "the private Ray of this program ends with it, and all values, too: publish on a "
            "cluster that exo.address names, or write files with to_parquet"
        )
    if not overwrite and _entry(name) is not None:
        raise _taken(name)


def publish_values(what: Publication, refs: Sequence[Ref], *, overwrite: bool) -> None:
    """Copy values, which exist, and publish them; with ``overwrite``, replace a publication.

    Raises
    ------
    OutputExistsError
        Another program has published the name meanwhile.
    """
    _remove_strays()
    before = _entry(what.name)
    owner = f"{ray.get_runtime_context().get_job_id()} {uuid.uuid4().hex}"
    with lost():
        actor = _remote_owner.options(**on_head(owner, _PLACE), max_concurrency=2).remote()
        try:
            ray.get(actor.copy.remote(list(refs)))
            _enter(replace(what, time=wall_time(), owner=owner), overwrite=overwrite)
        except BaseException:
            ray.kill(actor)
            raise
    if before is not None:
        _stop(before.owner)


def published_values(name: str) -> list[Ref]:
    """Return the refs of the values of a publication.

    Raises
    ------
    InputError
        There is none of this name.
    """
    found = _existing(name)
    try:
        with lost():
            actor = ray.get_actor(found.owner, namespace=_PLACE)
            return list(ray.get(actor.read.remote(), timeout=ANSWER))
    except (ValueError, ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError) as error:
        raise ClusterError(
            f"the owner of {name!r} does not answer ({first_line(error)}): its node may be lost. "
            f"Set overwrite=True to publish it again"
        ) from error


def publications() -> list[Publication]:
    """Return all publications of the cluster, by name."""
    check_connection()
    _remove_strays()
    found = map(_entry, sorted(entries(_PLACE)))
    return [entry for entry in found if entry is not None]


def delete_publication(name: str) -> Publication:
    """Delete a publication; programs that read it keep its values until they drop them.

    Raises
    ------
    InputError
        There is none of this name.
    """
    found = _existing(name)
    internal_kv._internal_kv_del(name, namespace=_PLACE)
    _stop(found.owner)
    return found


def _taken(name: str) -> OutputExistsError:
    return OutputExistsError(
        f"{name!r} is published already: choose another name, or replace it with overwrite=True"
    )


def _enter(what: Publication, *, overwrite: bool) -> None:
    text = json.dumps(asdict(what))
    # without `overwrite`, an entry of another program stays
    taken = internal_kv._internal_kv_put(what.name, text, overwrite=overwrite, namespace=_PLACE)
    if taken and not overwrite:
        raise _taken(what.name)


def _entry(name: str) -> Publication | None:
    text = internal_kv._internal_kv_get(name, namespace=_PLACE)
    return None if text is None else Publication(**json.loads(text))


def _existing(name: str) -> Publication:
    check_connection()
    found = _entry(name)
    if found is None:
        known = ", ".join(sorted(entries(_PLACE))) or "nothing"
        raise InputError(
            f"nothing is published as {name!r} on this cluster; there is {known}: look at "
            f"`dask exo published list`"
        )
    return found


def _stop(owner: str, timeout: float = ANSWER) -> None:
    """Let an owner end as soon as no process reads its values."""
    with _if_alive():
        actor = ray.get_actor(owner, namespace=_PLACE)
        ray.get(actor.drop.remote(), timeout=timeout)


def _remove_strays() -> None:
    """Stop owners without a publication whose program has ended.

    It may have died before it could publish their values. If they were published, and replaced
    since, a program may still read them, and the owner ends after that.
    """
    ended = ended_programs()
    used = {entry.owner for entry in map(_entry, entries(_PLACE)) if entry is not None}
    for actor in list_named_actors(all_namespaces=True):
        if actor["namespace"] == _PLACE and actor["name"] not in used:
            program, _, _ = actor["name"].partition(" ")
            if program in ended:
                _stop(actor["name"], ENDING)


@contextlib.contextmanager
def _if_alive() -> Iterator[None]:
    """Ignore that an actor has ended."""
    with contextlib.suppress(
        ValueError, ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError
    ):
        yield
