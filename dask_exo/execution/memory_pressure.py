"""Reactions to memory that runs out: fewer tasks before, a wider resource request after."""

from __future__ import annotations

from collections.abc import Sequence

from dask_exo.cluster.futures import Futures, Node, SubmitOptions
from dask_exo.errors import OutOfMemoryError
from dask_exo.execution.admission import next_cpu_request
from dask_exo.planning.normalize import Key

TIGHT = 0.9  # of a machine's memory; Ray kills tasks at 0.95 of it by default
EVERY = 1.0  # seconds between two looks


class MemoryPressure:
    """Look at the memory of all machines, at most once a second.

    Parameters
    ----------
    futures : Futures
    """

    def __init__(self, futures: Futures) -> None:
        self._futures = futures
        self._until, self._tight = futures.now, False

    @property
    def tight(self) -> bool:
        """Return whether the memory of a machine is nearly full, as of at most a second ago."""
        if self._futures.now >= self._until:
            used = self._futures.memory()
            self._tight = used is not None and used >= TIGHT
            self._until = self._futures.now + EVERY
        return self._tight


def widen_request(
    needs: SubmitOptions | None, nodes: Sequence[Node], key: Key, error: OutOfMemoryError
) -> SubmitOptions:
    """Return the request of a task whose node ran out of memory: more slots, so fewer neighbours.

    Parameters
    ----------
    needs : mapping, optional
        Resource request of the last attempt.
    nodes : sequence of Node
    key : Key
        Key of its first output.
    error : OutOfMemoryError
        Error of the last attempt.

    Raises
    ------
    OutOfMemoryError
        The task had a whole node.
    """
    largest = max(nodes, key=lambda node: node.slots)
    had = dict(needs or {})
    slots = next_cpu_request(float(had.get("num_cpus") or 1), largest.slots)
    if slots is None:
        have = (largest.resources or {}).get("memory")
        known = "" if have is None else f" It has {have / 1e9:.1f} GB for tasks."
        raise OutOfMemoryError(
            f"task {key!r} was stopped because its node ran out of memory, at last with no other "
            f"task beside it.{known} Make smaller partitions: npartitions= of the shuffle before "
            f"it, blocksize= where it is read, or .repartition(partition_size=); or take nodes "
            f"with more memory, or a smaller store (exo.object-store-memory). ({error})"
        ) from error
    return {**had, "num_cpus": slots}
