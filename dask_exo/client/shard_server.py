"""A server in the driver that gives consumers in other processes their rows.

Requests come through one queue; refs are returned through another, as futures and never inside a
pickle. A thread in the driver answers until all consumers have finished or died: each has a
lease, which its process renews.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Collection
from typing import Any, Protocol

from dask_exo.client.future import Future
from dask_exo.client.sync_primitives import REFRESH, Queue, Semaphore
from dask_exo.dask_adapter import GraphNode, Task
from dask_exo.errors import ClusterError, ExoError, Failure
from dask_exo.execution.background import stop_with_all
from dask_exo.execution.persisted import Local, Promise, Remote, fetch, promised
from dask_exo.partitions.batching import RowSpan

LOOK = 1.0  # seconds between two looks whether the program ends
PATIENCE = 60.0  # seconds in which a live driver takes a request
MOST = 2**30  # leases of one consumer: as many as processes that it is sent to

ShardRows = RowSpan[GraphNode]
"""Rows of a partition that a task without dependencies gets."""

Question = tuple[int, Any, str]
"""Consumer, its request (None: it has finished), and the queue for the answer."""


class Source(Protocol):
    """Source of the rows of consumers."""

    def share(self, consumer: int, what: Any) -> list[ShardRows]:
        """Wait for rows of a consumer."""
        ...

    def leave(self, consumer: int) -> None:
        """Release the rows of a consumer."""
        ...


class ShardServer:
    """Answers the requests of consumers.

    Parameters
    ----------
    source : Source
    consumers : int

    Attributes
    ----------
    name : str
        Of the queue of questions.

    Raises
    ------
    ClusterError
        This process is not connected to Ray.
    """

    def __init__(self, source: Source, consumers: int) -> None:
        self._source, self._left = source, set(range(consumers))
        self._seen: set[int] = set()
        self._stopped = False
        self._questions = Queue(f"afar-{uuid.uuid4().hex}")
        self.name = self._questions.name
        self._questions.qsize()  # fails without a connection
        self._thread = threading.Thread(target=self._main, name="dask_exo-afar", daemon=True)
        stop_with_all(self)
        self._thread.start()

    @property
    def open(self) -> bool:
        """True while it answers."""
        return self._thread.is_alive()

    def left(self, consumer: int) -> None:
        """Note that a consumer of this process has finished."""
        self._left.discard(consumer)
        self._seen.discard(consumer)

    def stop(self) -> None:
        """Answer no more."""
        self._stopped = True
        self._thread.join(timeout=10)

    def _main(self) -> None:
        looked = time.monotonic()
        with contextlib.suppress(ExoError):  # the connection has ended
            while self._left and not self._stopped:
                with contextlib.suppress(TimeoutError):
                    self._receive(*self._questions.get(timeout=LOOK))
                if time.monotonic() - looked > REFRESH:
                    for consumer in expired_consumers(self.name, list(self._seen)):
                        self._drop(consumer)
                    looked = time.monotonic()
            self._questions.close()

    def _receive(self, consumer: int, what: Any, answer: str) -> None:
        if what is None:
            self._drop(consumer)
            return
        self._left.add(consumer)
        self._seen.add(consumer)
        args = (consumer, what, answer)
        threading.Thread(target=self._answer, args=args, daemon=True).start()

    def _drop(self, consumer: int) -> None:
        """Forget a consumer that has finished or died."""
        self.left(consumer)
        self._source.leave(consumer)

    def _answer(self, consumer: int, what: Any, answer: str) -> None:
        with contextlib.suppress(ExoError):  # the connection has ended
            queue = Queue(answer)
            try:
                values, futures = _encode(answer, self._source.share(consumer, what))
            except Exception as error:  # noqa: BLE001  raised where the rows are asked for
                self.left(consumer)
                queue.put(Failure.of(f"consumer {consumer}", error))
                return
            queue.put(values)
            queue.put(futures)


class RemoteShards:
    """Proxy of a source in another process.

    Parameters
    ----------
    name : str
        Of the queue of questions.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._leases: dict[int, Semaphore] = {}

    def share(self, consumer: int, what: Any) -> list[ShardRows]:
        """See `Source.share`.

        Raises
        ------
        ClusterError
            The driver does not answer.
        """
        held = self._leases.get(consumer)
        if held is None or not held.get_value():  # it ends where a process stands still
            lease = self._leases[consumer] = lease_of(self.name, consumer)
            lease.acquire()
        questions, answer = Queue(self.name), Queue()
        questions.put((consumer, what, answer.name))
        try:
            values = self._wait_for_answer(answer, questions)
            if isinstance(values, Failure):
                values.reraise()
            return _decode(values, answer.get())
        finally:
            answer.close()

    def leave(self, consumer: int) -> None:
        """See `Source.leave`."""
        Queue(self.name).put((consumer, None, ""))
        lease = self._leases.pop(consumer, None)
        if lease is not None:
            lease.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)

    @staticmethod
    def _wait_for_answer(answer: Queue, questions: Queue) -> Any:
        while True:
            try:
                return answer.get(timeout=PATIENCE)
            except TimeoutError:
                if questions.qsize():
                    raise ClusterError(
                        "the driver does not answer requests for rows: it has ended, or all of "
                        "its consumers had finished. Pickle the iterator again in the driver"
                    ) from None


def lease_of(name: str, consumer: int) -> Semaphore:
    """Return the lease of a consumer."""
    return Semaphore(MOST, f"{name}-{consumer}")


def expired_consumers(name: str, consumers: Collection[int]) -> list[int]:
    """Return consumers whose lease has expired."""
    return [i for i in consumers if not lease_of(name, i).get_value()]


def _encode(name: str, pieces: list[ShardRows]) -> tuple[list[Any], list[Future]]:
    """Return positions with values, or with None if the value is sent as a future."""
    values: list[Any] = []
    futures: list[Future] = []
    for i, (node, start, stop) in enumerate(pieces):
        promise = promised(node)
        if promise is not None and isinstance(promise.held(), Remote):
            values.append((start, stop, None))
            futures.append(Future((name, i), promise))
        else:
            values.append((start, stop, node({})))
    return values, futures


def _decode(values: list[Any], futures: list[Future]) -> list[ShardRows]:
    coming = iter(futures)
    pieces: list[ShardRows] = []
    for i, (start, stop, value) in enumerate(values):
        promise = next(coming).promise if value is None else Promise(held=Local(value))
        pieces.append(RowSpan(Task(i, fetch, promise), start, stop))
    return pieces
