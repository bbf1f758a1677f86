"""One run of a pipeline for several consumers, in this process or in others."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from dask_exo.dask_adapter import Task
from dask_exo.errors import Failure, PipelineError
from dask_exo.execution.persisted import Promise, Remote, fetch
from dask_exo.partitions.batching import RowSpan, rebatch
from dask_exo.pipeline.run import PipelineRun
from dask_exo.pipeline.shard_server import LocalShards, NextRows, ShardSource, fetch_rows
from dask_exo.pipeline.streaming.blocks import Block
from dask_exo.pipeline.streaming.transforms import FORMATS

CHECK_INTERVAL = 1.0  # seconds between two checks for consumers that left
AHEAD = 2  # blocks for each consumer that may wait, so that few have to be cut


class Sharder:
    """Assignment of blocks to consumers that request them, each row to one consumer.

    With ``equal`` all get the same number of rows. None ever gets more than an equal share of the
    known rows, which only grows. Blocks are cut where necessary. Fewer rows than there are
    consumers are left over, and a consumer that is ahead of the others waits.

    Examples
    --------
    >>> sharder = Sharder(2, equal=True)
    >>> sharder.add("a", 3)
    >>> sharder.add("b", 4)
    >>> sharder.end()
    >>> sharder.assign(0), sharder.assign(1), sharder.assign(1)
    (RowSpan(part='a', start=0, stop=3), RowSpan(part='b', start=0, stop=3), None)
    >>> sharder.over(1)
    True
    """

    def __init__(self, consumers: int, *, equal: bool) -> None:
        self._equal = equal
        self._assigned_rows = dict.fromkeys(range(consumers), 0)
        self._waiting_limit = AHEAD * consumers
        self._waiting: deque[RowSpan[Any]] = deque()
        self._rows = 0  # of those that wait
        self._ended = False
        self._share: int | None = None  # of each, where it may not grow any more

    def add(self, part: Any, rows: int) -> None:
        """Add a block."""
        if rows:
            self._waiting.append(RowSpan(part, 0, rows))
            self._rows += rows

    def end(self) -> None:
        """Record that no block will follow."""
        self._ended = True

    def leave(self, consumer: int) -> None:
        """Remove a consumer: the others share the rest."""
        if self.over(consumer):
            return
        if self._equal and any(map(self.over, self._assigned_rows)):
            self._share = self._level  # the share with which another consumer ended
        del self._assigned_rows[consumer]

    @property
    def abandoned(self) -> bool:
        """True if no consumer wants any more rows."""
        return all(map(self.over, list(self._assigned_rows)))

    def over(self, consumer: int) -> bool:
        """Return whether a consumer has all rows that it will get."""
        if consumer not in self._assigned_rows:
            return True
        if not self._ended:
            return False
        return not (self._room(consumer) if self._equal else self._waiting)

    def wants(self, consumer: int) -> bool:
        """Return whether another block has to arrive before this consumer gets rows."""
        if self._ended or consumer not in self._assigned_rows:
            return False
        if not self._waiting:
            return True
        if not self._equal or len(self._waiting) >= self._waiting_limit:
            return False
        _, start, stop = self._waiting[0]
        return self._room(consumer) < stop - start

    def assign(self, consumer: int) -> RowSpan[Any] | None:
        """Return rows for a consumer; None if there are none for it now."""
        if not self._waiting or self.over(consumer) or self.wants(consumer):
            return None
        part, start, stop = self._waiting.popleft()
        rows = min(stop - start, self._room(consumer)) if self._equal else stop - start
        if start + rows < stop:
            self._waiting.appendleft(RowSpan(part, start + rows, stop))
        if not rows:
            return None
        self._assigned_rows[consumer] += rows
        self._rows -= rows
        return RowSpan(part, start, start + rows)

    @property
    def _level(self) -> int:
        """Rows that each consumer can have, of those that are known."""
        if self._share is not None:
            return self._share
        return (sum(self._assigned_rows.values()) + self._rows) // len(self._assigned_rows)

    def _room(self, consumer: int) -> int:
        return self._level - self._assigned_rows[consumer]


class SharedRun(LocalShards):
    """A run whose blocks go to several consumers; ``start`` begins it with the first request."""

    def __init__(self, start: Callable[[], PipelineRun], consumers: int, *, equal: bool) -> None:
        super().__init__(consumers)
        self._start = start
        self._running: PipelineRun | None = None
        self._sharder = Sharder(consumers, equal=equal)
        self._requests = [0] * consumers
        self._changed = threading.Condition()
        self._is_pulling = False
        self._failure: Failure | None = None  # an exception would reference frames

    def share(self, consumer: int, request: int) -> NextRows:
        """Wait for rows for a consumer; return none at its end. Raise the error of the pipeline.

        ``request`` is the number of its requests before. If it did not get the rows of the last
        one, raise `PipelineError`.
        """
        with self._changed:
            if request != self._requests[consumer]:
                raise PipelineError(
                    f"consumer {consumer} of iter_split has restarted, and the rows that it got "
                    f"before would be missing: each is used once. Start the pipeline again, or "
                    f"consume it in tasks that are not retried"
                )
            self._requests[consumer] += 1
            while self._failure is None and not self._sharder.over(consumer):
                span = self._sharder.assign(consumer)
                if span is not None:
                    self._changed.notify_all()
                    return NextRows(span)
                if self._sharder.wants(consumer) and not self._is_pulling:
                    self._pull()
                else:
                    self._changed.wait(CHECK_INTERVAL)
            if self._failure is not None:
                self._failure.reraise()
            return NextRows()

    def leave(self, consumer: int) -> None:
        """Remove a consumer; the run ends with the last one."""
        super().leave(consumer)
        with self._changed:
            self._sharder.leave(consumer)
            self._changed.notify_all()
            running = self._running if self._sharder.abandoned else None
        if running is not None:
            running.stop()

    def _pull(self) -> None:
        """Wait for the next block, without the lock, which the caller holds."""
        self._is_pulling = True
        self._changed.release()
        block, left, failure = None, None, None
        try:
            if self._running is None:
                self._running = self._start()
            left = self._running.left
            block = next(self._running, None)
        except Exception as error:  # noqa: BLE001  raised where rows are requested
            failure = Failure.of("iter_split", error)
        finally:
            self._changed.acquire()
            self._is_pulling, self._failure = False, failure
            self._changed.notify_all()
        if block is None:
            self._sharder.end()
        else:
            rows = block.rows if left is None else min(block.rows, left)
            self._sharder.add(self._node(block), rows)
        if self._sharder.abandoned and self._running is not None:  # all have left meanwhile
            self._running.stop()

    def _node(self, block: Block) -> Task:
        assert self._running is not None
        promise = Promise(self._running.futures, Remote(block.value, block.nbytes))
        return Task(("block", *block.place), fetch, promise)


class Split(Iterator[Any]):
    """Batches for one of several consumers of a pipeline; see `Pipeline.iter_split`.

    Before its first batch it can be sent to a task or an actor of the same Ray program. The process
    that created it drives the pipeline, and must live.
    """

    def __init__(self, source: ShardSource, consumer: int, size: int | None, format: str) -> None:  # noqa: A002
        self._source, self._consumer, self._size, self._format = source, consumer, size, format
        self._batches: Iterator[Any] | None = None
        self._finalizer = weakref.finalize(self, _leave_in_thread, source, consumer)
        self._finalizer.atexit = False

    def __next__(self) -> Any:
        """Return the next batch."""
        if self._batches is None:
            frames = _frames(self._source, self._consumer)
            batches = frames if self._size is None else rebatch(frames, self._size)
            self._batches = map(FORMATS[self._format], batches)
        try:
            return next(self._batches)
        except StopIteration:
            self.close()
            raise

    def close(self) -> None:
        """End before the last batch: the other consumers get the rest."""
        self._batches = iter(())
        if self._finalizer.detach():
            self._source.leave(self._consumer)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._batches is not None:
            raise PipelineError(
                f"consumer {self._consumer} of iter_split has begun: send it to another process "
                f"before its first batch"
            )
        source = self._source.remote()
        self._finalizer.detach()  # its new process reports its end
        return Split, (source, self._consumer, self._size, self._format)


def _leave_in_thread(source: ShardSource, consumer: int) -> None:
    threading.Thread(target=source.leave, args=(consumer,), daemon=True).start()


def _frames(source: ShardSource, consumer: int) -> Iterator[pd.DataFrame]:
    """Yield rows of a consumer, as they arrive."""
    count = 0
    while (span := source.share(consumer, count).span) is not None:
        count += 1
        frame = fetch_rows(span)
        del span  # it keeps the partition
        yield frame
        del frame
