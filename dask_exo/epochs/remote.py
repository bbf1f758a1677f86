"""Shares for consumers in other processes: they ask by a queue, and get refs by another one.

A thread in the driver, which has the shuffles, answers. Refs travel as futures, never inside a
pickle.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import Any

from dask_exo.client.future import Future
from dask_exo.client.shared import Queue
from dask_exo.dask_adapter import Task
from dask_exo.epochs.deal import Span
from dask_exo.epochs.shuffles import Piece, Shuffles
from dask_exo.errors import ClusterError, ExoError
from dask_exo.failure import Failure
from dask_exo.graph.background import stop_with_all
from dask_exo.graph.promise import Local, Promise, Remote, fetch, promised

LOOK = 1.0  # seconds between two looks whether the program ends
PATIENCE = 60.0  # seconds in which the driver takes a question, if it is there

Question = tuple[int, int | None, str]
"""Consumer, epoch (None: it has come to its end), and the name of the queue for the answer."""


class Desk:
    """Answers the consumers of an object `Shuffles` until all have come to their end.

    Parameters
    ----------
    shuffles : Shuffles
    consumers : int

    Raises
    ------
    ClusterError
        This process is not connected to Ray.
    """

    def __init__(self, shuffles: Shuffles, consumers: int) -> None:
        self._shuffles, self._left = shuffles, set(range(consumers))
        self._stopped = False
        self.questions = Queue(f"epochs-{uuid.uuid4().hex}")
        self.questions.qsize()  # there must be somebody to ask
        self._thread = threading.Thread(target=self._main, name="dask_exo-epochs", daemon=True)
        stop_with_all(self)
        self._thread.start()

    @property
    def open(self) -> bool:
        """Whether it answers."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Answer no more."""
        self._stopped = True
        self._thread.join(timeout=10)

    def _main(self) -> None:
        with contextlib.suppress(ExoError):  # the connection has ended
            while self._left and not self._stopped:
                with contextlib.suppress(TimeoutError):
                    consumer, epoch, answer = self.questions.get(timeout=LOOK)
                    if epoch is None:
                        self._left.discard(consumer)
                        self._shuffles.leave(consumer)
                    else:
                        self._left.add(consumer)
                        args = (consumer, epoch, answer)
                        threading.Thread(target=self._answer, args=args, daemon=True).start()
            self.questions.close()

    def _answer(self, consumer: int, epoch: int, answer: str) -> None:
        with contextlib.suppress(ExoError):  # the connection has ended
            queue = Queue(answer)
            try:
                pieces = self._shuffles.share(consumer, epoch)
                values, futures = _packed(answer, pieces)
            except Exception as error:  # noqa: BLE001  raised where the rows are asked for
                self._left.discard(consumer)
                queue.put(Failure.of(f"epoch {epoch}", error))
                return
            queue.put(values)
            queue.put(futures)


class Reachable(Shuffles):
    """Shuffles whose consumers may be in other processes."""

    _desk: Desk | None = None

    def away(self) -> Away:
        """The same, for another process."""
        if self._desk is None or not self._desk.open:
            self._desk = Desk(self, len(self._reached))
        return Away(self._desk.questions.name)


class Away:
    """The shuffles, seen from another process.

    Parameters
    ----------
    name : str
        Of the queue of questions.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def share(self, consumer: int, epoch: int) -> list[Piece]:
        """See `Shuffles.share`.

        Raises
        ------
        ClusterError
            Nobody answers.
        """
        questions, answer = Queue(self._name), Queue()
        questions.put((consumer, epoch, answer.name))
        try:
            values = self._patiently(answer, questions)
            if isinstance(values, Failure):
                values.reraise()
            return _unpacked(values, answer.get())
        finally:
            answer.close()

    def leave(self, consumer: int) -> None:
        """See `Shuffles.leave`."""
        Queue(self._name).put((consumer, None, ""))

    @staticmethod
    def _patiently(answer: Queue, questions: Queue) -> Any:
        while True:
            try:
                return answer.get(timeout=PATIENCE)
            except TimeoutError:
                if questions.qsize():
                    raise ClusterError(
                        "nobody answers for the next epoch: its driver has ended, or all of its "
                        "consumers had come to their end. Pickle it anew in the driver"
                    ) from None


def _packed(name: str, pieces: list[Piece]) -> tuple[list[Any], list[Future]]:
    """What is sent of pieces: rows with their value, or None and a future of it."""
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


def _unpacked(values: list[Any], futures: list[Future]) -> list[Piece]:
    coming = iter(futures)
    pieces: list[Piece] = []
    for i, (start, stop, value) in enumerate(values):
        promise = next(coming).promise if value is None else Promise(held=Local(value))
        pieces.append(Span(Task(i, fetch, promise), start, stop))
    return pieces
