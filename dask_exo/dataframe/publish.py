"""Published collections: data in the object store of a cluster that outlives its program."""

from __future__ import annotations

from typing import Any, NamedTuple

import dask
import dask.dataframe as dd

from dask_exo.cluster import on_ray
from dask_exo.config import Config
from dask_exo.dask_adapter import Task
from dask_exo.enable import get
from dask_exo.errors import Failure, InputError
from dask_exo.execution.persisted import Local, Promise, Remote, fetch, wait
from dask_exo.scheduler import connect


class _Partition(NamedTuple):
    nbytes: int
    rows: int | None
    digest: Any  # `OutputDigest` or None


class _Description(NamedTuple):
    """All of a published collection but its values; values of one column are a Series."""

    meta: Any
    divisions: tuple[Any, ...]
    partitions: list[_Partition]


class PublishMethods:
    """Publication of a collection on the cluster."""

    _frame: Any

    def publish(self, name: str, *, overwrite: bool = False) -> None:
        """Compute the collection into the object store of the cluster, where it outlives programs.

        `dask_exo.published` returns it, in any program on the cluster, until `dask exo published
        delete` or a publication with ``overwrite`` frees it. Its values are copied once, on their
        nodes, and spilled like others. A value that is lost with its node is not recomputed: write
        files, or use checkpoints, for data that must not be lost.

        Parameters
        ----------
        name : str
        overwrite : bool
            Replace what is published under the name. Programs that read it keep its values.

        Raises
        ------
        ClusterError
            The cluster is a private Ray, which ends with this program.
        OutputExistsError
            The name is taken.

        Examples
        --------
        >>> ddf.exo.publish("orders")  # doctest: +SKIP
        >>> dask_exo.published("orders").groupby("user").amount.sum().compute()  # doctest: +SKIP
        """
        if not name.strip():
            raise InputError("the name of a published collection is empty: give it one")
        connect(Config.current())
        on_ray.check_publication(name, overwrite=overwrite)
        with dask.config.set({"exo.engine": "ray"}):
            (kept,) = get.persist([self._frame])
        layer, keys = kept.expr.operand("layer"), kept.expr.operand("keys")
        promises: list[Promise] = [layer[key].args[0] for key in keys]
        wait(promises)
        values = list(map(_stored, promises))
        partitions = [_Partition(value.nbytes, value.rows, value.digest) for value in values]
        description = _Description(kept._meta, kept.divisions, partitions)
        rows = [partition.rows for partition in partitions]
        what = on_ray.Publication(
            name,
            type(kept).__name__,
            len(partitions),
            None if None in rows else sum(filter(None, rows)),
            sum(partition.nbytes for partition in partitions),
        )
        first = on_ray.RayFutures().put(description)
        on_ray.publish_values(what, [first, *(v.ref for v in values)], overwrite=overwrite)


def _stored(promise: Promise) -> Remote:
    """Return where a value is in the object store; put it there if the program has it."""
    location = promise.location()
    if isinstance(location, Remote):
        return location
    if isinstance(location.value, Failure):
        location.value.reraise()
    return Remote(on_ray.RayFutures().put(location.value), 0, rows=_length(location.value))


def _length(value: Any) -> int | None:
    return len(value) if hasattr(value, "__len__") else None


def published(name: str) -> Any:
    """Return a collection that a program has published on the cluster; see ``ddf.exo.publish``.

    Its partitions are read where they are. They stay as long as this collection or one derived
    from it, also if the publication is deleted.

    Raises
    ------
    InputError
        Nothing is published under this name.
    ClusterError
        The cluster cannot be reached, or the values were lost with their owner.

    Examples
    --------
    >>> dask_exo.enable(address="auto")  # doctest: +SKIP
    >>> ddf = dask_exo.published("orders")  # doctest: +SKIP
    """
    connect(Config.current())
    first, *refs = on_ray.published_values(name)
    futures = on_ray.RayFutures()
    description: _Description = futures.get([first])[0]
    keys = [(f"published-{name}-{first.hex()}", i) for i in range(len(refs))]
    locations: list[Local | Remote] = [
        Remote(ref, part.nbytes, part.digest, part.rows)
        for ref, part in zip(refs, description.partitions, strict=True)
    ]
    promises = [Promise(futures, location) for location in locations]
    graph = {key: Task(key, fetch, one) for key, one in zip(keys, promises, strict=True)}
    return dd.from_graph(graph, description.meta, description.divisions, keys, f"published-{name}")
