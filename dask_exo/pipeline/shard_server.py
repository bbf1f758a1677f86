"""Rows for several consumers, in the driver and in other processes.

Consumers in other processes send their requests to a thread in the driver through a queue. Refs
come back through another one, beside pickles and never inside. The thread answers until all
consumers have finished or died: each has a lease, which its process renews.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from typing import Any, NamedTuple

import pandas as pd

from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import Ref
from dask_exo.dask_adapter import GraphNode, Task
from dask_exo.errors import ClusterError, ExoError, Failure
from dask_exo.execution.background import stop_with_all
from dask_exo.execution.persisted import Local, Promise, Remote, fetch, promised
from dask_exo.partitions.batching import RowSpan
from dask_exo.pipeline.mailbox import REFRESH, Lease, Queue

LOOK = 1.0  # seconds between two checks of whether the program ends
PATIENCE = 60.0  # seconds in which a live driver must take a request

ShardRows = RowSpan[GraphNode]
"""Rows of a partition that a task without dependencies returns."""


class NextRows(NamedTuple):
    """The next rows of a consumer, None at its end, and their number in all, if it is known."""

    span: ShardRows | None = None
    rows: int | None = None


class LocalShards:
    """Base of sources in the driver, with a server for consumers in other processes."""

    def __init__(self, consumers: int) -> None:
        self._server: ShardServer | None = None
        self._consumers = consumers
        self._starting = threading.Lock()

    def share(self, consumer: int, request: Any) -> NextRows:
        """Wait for the next rows of a consumer."""
        raise NotImplementedError

    def leave(self, consumer: int) -> None:
        """Release the rows of a consumer."""
        if self._server is not None:
            self._server.remove(consumer)

    def remote(self) -> RemoteShards:
        """Return a proxy of this source for another process."""
        with self._starting:
            if self._server is None or not self._server.open:
                self._server = ShardServer(self, self._consumers)
            return RemoteShards(self._server.name)


class ShardServer:
    """Answers the requests of consumers in other processes; ``name`` is that of their queue.

    Raises `ClusterError` if this process is not connected to Ray.
    """

    def __init__(self, source: LocalShards, consumers: int) -> None:
        self._source, self._open_consumers = source, set(range(consumers))
        self._remote: set[int] = set()
        self._stopped = False
        self._requests = Queue(f"shards-{uuid.uuid4().hex}")
        self.name: str = self._requests.name
        self._requests.qsize()  # fails without a connection
        self._thread = threading.Thread(target=self._main, name="dask_exo-shards", daemon=True)
        stop_with_all(self)
        self._thread.start()

    @property
    def open(self) -> bool:
        """True while requests are answered."""
        return self._thread.is_alive()

    def remove(self, consumer: int) -> None:
        """Record that a consumer has finished or died."""
        self._open_consumers.discard(consumer)
        self._remote.discard(consumer)

    def stop(self) -> None:
        """Stop answering requests."""
        self._stopped = True
        self._thread.join(timeout=10)

    def _main(self) -> None:
        checked = time.monotonic()
        with contextlib.suppress(ExoError):  # the connection has ended
            while self._open_consumers and not self._stopped:
                with contextlib.suppress(TimeoutError):
                    self._receive(*self._requests.get(timeout=LOOK)[0])
                if time.monotonic() - checked > REFRESH:
                    for consumer in list(self._remote):
                        if not lease_of(self.name, consumer).count():  # it has expired
                            self._source.leave(consumer)
                    checked = time.monotonic()
            self._requests.close()

    def _receive(self, consumer: int, request: Any, answer: str) -> None:
        if request is None:
            self._source.leave(consumer)
            return
        self._open_consumers.add(consumer)
        self._remote.add(consumer)
        args = (consumer, request, answer)
        threading.Thread(target=self._answer, args=args, daemon=True).start()

    def _answer(self, consumer: int, request: Any, answer: str) -> None:
        with contextlib.suppress(ExoError):  # the connection has ended
            queue = Queue(answer)
            try:
                span, rows = self._source.share(consumer, request)
                value, refs = _encode(span)
            except Exception as error:  # noqa: BLE001  raised where the rows are requested
                self.remove(consumer)
                queue.put(Failure.of(f"consumer {consumer}", error))
                return
            queue.put((value, rows), refs)


class RemoteShards:
    """Proxy of a source in the driver; ``name`` is that of the queue of its server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._leases: dict[int, Lease] = {}

    def share(self, consumer: int, request: Any) -> NextRows:
        """See `LocalShards.share`; raise `ClusterError` if the driver does not answer."""
        lease = self._leases.get(consumer)
        if lease is None or not lease.count():  # it expires while a process is suspended
            lease = self._leases[consumer] = lease_of(self.name, consumer)
            lease.acquire()
        requests, answer = Queue(self.name), Queue()
        requests.put((consumer, request, answer.name))
        try:
            found, refs = _wait_for_answer(answer, requests)
            if isinstance(found, Failure):
                found.reraise()
            value, rows = found
            return NextRows(_decode(value, refs), rows)
        finally:
            answer.close()

    def leave(self, consumer: int) -> None:
        """See `LocalShards.leave`."""
        Queue(self.name).put((consumer, None, ""))
        lease = self._leases.pop(consumer, None)
        if lease is not None:
            lease.release()

    def remote(self) -> RemoteShards:
        """Return itself."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)


ShardSource = LocalShards | RemoteShards


def _wait_for_answer(answer: Queue, requests: Queue) -> Any:
    while True:
        try:
            return answer.get(timeout=PATIENCE)
        except TimeoutError:
            if requests.qsize():
                raise ClusterError(
                    "the driver does not answer requests for rows: it has ended, or all of "
                    "its consumers had finished. Pickle the iterator again in the driver"
                ) from None


def fetch_rows(span: ShardRows) -> pd.DataFrame:
    """Fetch rows; until the span is dropped, their partition stays in the store."""
    frame: pd.DataFrame = span.part({}).iloc[span.start : span.stop]
    return frame


def lease_of(name: str, consumer: int) -> Lease:
    """Return a lease of a consumer: there is one in each process that it is sent to."""
    return Lease(f"{name}-{consumer}")


def _encode(span: ShardRows | None) -> tuple[Any, list[Ref]]:
    """Return positions with the value, or with None if the value is sent as a ref."""
    if span is None:
        return None, []
    node, start, stop = span
    promise = promised(node)
    location = None if promise is None else promise.location()
    if isinstance(location, Remote):
        return (start, stop, None), [location.ref]
    return (start, stop, node({})), []


def _decode(found: Any, refs: list[Ref]) -> ShardRows | None:
    if found is None:
        return None
    start, stop, value = found
    location = Remote(refs[0], 0) if value is None else Local(value)
    return RowSpan(Task(0, fetch, Promise(on_ray.RayFutures(), location)), start, stop)
