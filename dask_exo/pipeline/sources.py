"""Sources of a pipeline: Dask collections, partitions that a user has, and files."""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import dask.bag as db
import dask.dataframe as dd
import fsspec
import pandas as pd
import pyarrow as pa
from dask.core import flatten
from dask.delayed import delayed
from fsspec.core import url_to_fs
from tlz import identity

from dask_exo.cluster.futures import LARGE
from dask_exo.config import Config
from dask_exo.dask_adapter import (
    ReadParquetFSSpec,
    TaskRef,
    collections_to_expr,
    elementwise,
    new_collection,
)
from dask_exo.errors import InputError, PipelineError
from dask_exo.execution.persisted import Local, Promise, Remote, promise_of
from dask_exo.partitions import protocol
from dask_exo.pipeline.streaming.blocks import Block
from dask_exo.pipeline.streaming.task import size
from dask_exo.planning.annotations import NO_OPTIONS
from dask_exo.planning.placement import parquet_bytes
from dask_exo.planning.plan import Bundle
from dask_exo.scheduler import Scheduler, plan_of, slots

AHEAD = 2  # partitions that an iterator is ahead of the tasks
POLL_TIMEOUT = 0.002  # seconds to wait for a partition before None is returned
PER_SLOT = 4  # input partitions, so that slots end at about the same time
ITEM = "item"  # column of the elements of a bag that are no dicts
MANY = 10**9  # numbers reserved for the partitions of a source of unknown length

ROWWISE = frozenset(vars(elementwise).values())

BlockIterator = Iterator[Block | None]
"""Inputs of a pipeline; None if the next one has not arrived yet."""

Put = Callable[[Any], Any]
"""Stores a value in the cluster; returns its ref."""


class PipelineSource:
    """Source of the partitions of a pipeline."""

    count: int | None  # number of partitions, if known

    def start(self, config: Config, put: Put) -> tuple[BlockIterator, bool]:
        """Return partitions, and whether a stage has to make them; see `collection_blocks`."""
        raise NotImplementedError


class DataFrameSource(PipelineSource):
    """A Dask dataframe; if it only reads Parquet files, in partitions for all slots."""

    def __init__(self, frame: dd.DataFrame) -> None:
        self.frame: Any = new_collection(_planned_reads(frame.expr))
        self.count: int | None = int(self.frame.npartitions)

    def start(self, config: Config, put: Put) -> tuple[BlockIterator, bool]:
        """Start; see `PipelineSource.start`."""
        return collection_blocks(self.frame.expr.optimize(), config, put)


class BagSource(PipelineSource):
    """A Dask bag: a row for each element."""

    count: int | None

    def __init__(self, bag: db.Bag) -> None:
        self._bag, self.count = bag, int(bag.npartitions)

    def start(self, config: Config, put: Put) -> tuple[BlockIterator, bool]:
        """Start; see `PipelineSource.start`."""
        frames = [delayed(records)(part) for part in self._bag.to_delayed()]
        return collection_blocks(collections_to_expr(frames).optimize(), config, put)


class IterableSource(PipelineSource):
    """Partitions of a user: frames, dicts of columns, Arrow tables, or refs or futures of those."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self._used = False
        self.count: int | None = len(items) if isinstance(items, Sized) else None

    def start(self, config: Config, put: Put) -> tuple[BlockIterator, bool]:  # noqa: ARG002
        """Start; raise `PipelineError` if an iterator is used for the second time."""
        items = iter(self._items)
        if items is self._items and self._used:
            raise PipelineError(
                "the source is an iterator, which has been used up by another run: begin the "
                "pipeline with a new one, or with a list"
            )
        self._used = True
        return prefetch(_block_of_item(item, i, put) for i, item in enumerate(items)), False


class ChainedSources(PipelineSource):
    """Sources one after the other."""

    def __init__(self, sources: Sequence[PipelineSource]) -> None:
        self._sources = sources
        self.count: int | None = sum_of([source.count for source in sources])

    def start(self, config: Config, put: Put) -> tuple[BlockIterator, bool]:
        """Start; see `PipelineSource.start`."""
        inputs = [source.start(config, put) for source in self._sources]
        return _chained([blocks for blocks, _ in inputs]), any(makes for _, makes in inputs)


def source_of(data: Any) -> PipelineSource:
    """Return the source of a user's data; raise `PipelineError` if they cannot be a source."""
    if isinstance(data, dd.Series):
        data = data.to_frame()
    if isinstance(data, dd.DataFrame):
        # tasks with GPUs copy frames on GPUs to the host; stages copy them back if they need to
        on_device = protocol.on_device(data._meta)
        return DataFrameSource(data.to_backend("pandas") if on_device else data)
    if isinstance(data, db.Bag):
        return BagSource(data)
    single = isinstance(data, (str, bytes, Mapping, pd.DataFrame))
    if single or hasattr(data, "__dask_graph__") or not isinstance(data, Iterable):
        raise PipelineError(
            f"a pipeline cannot begin with a {type(data).__name__}: need a Dask dataframe or bag, "
            f"or an iterable of frames or refs; of files, see dask_exo.pipeline.from_files"
        )
    return IterableSource(data)


def start_sources(
    sources: Sequence[PipelineSource], config: Config, put: Put
) -> dict[int, tuple[BlockIterator, bool]]:
    """Start all sources; return their partitions by id, with numbers that are unique."""
    inputs, first = {}, 0
    for source in sources:
        blocks, makes = source.start(config, put)
        inputs[id(source)] = (_renumbered(blocks, first), makes)
        first += MANY if source.count is None else source.count
    return inputs


def sum_of(counts: Sequence[int | None]) -> int | None:
    """Return the sum of counts; None if one is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def records(elements: Iterable[Any]) -> pd.DataFrame:
    """Return elements of a bag as rows: items of a dict are columns, others are in column "item".

    Examples
    --------
    >>> records([{"a": 1, "b": 2}, {"a": 3}]).to_dict("list")
    {'a': [1, 3], 'b': [2.0, nan]}
    >>> records(iter("xy")).to_dict("list")
    {'item': ['x', 'y']}
    """
    return pd.DataFrame([row if isinstance(row, Mapping) else {ITEM: row} for row in elements])


def collection_blocks(expr: Any, config: Config, put: Put) -> tuple[BlockIterator, bool]:
    """Return the partitions of an optimized expression, and whether a stage has to make them.

    A stage makes them when they are needed, if each can be made by itself. Others, such as outputs
    of a shuffle, are computed in the background, and come in the order in which they are ready.
    """
    work = plan_of(expr, config)
    bundles = {bundle.key: bundle for bundle in work.bundles}
    keys = list(flatten(expr.__dask_keys__()))
    names = [work.results.get(key, key) for key in keys]
    if work.stages or work.promises or not all(_is_independent(bundles.get(n)) for n in names):
        return as_completed(list(Scheduler().start(expr, keys).values())), False
    recipes = (_recipe(bundles[name], put) for name in names)
    return (Block(recipe, 0, 0, (i,), small=True) for i, recipe in enumerate(recipes)), True


def _is_independent(bundle: Bundle | None) -> bool:
    """Return whether a task needs neither an input nor a resource request of its own."""
    return bundle is not None and not bundle.inputs and bundle.options == NO_OPTIONS


def _recipe(bundle: Bundle, put: Put) -> Any:
    """Return a function that makes a partition: itself if it is short, else a ref of it.

    Arrays in it are not copied to find that out.
    """
    recipe = partial(_run_nodes, bundle.nodes, bundle.literals)
    arrays: list[Any] = []
    data = cloudpickle.dumps(recipe, protocol=5, buffer_callback=arrays.append)
    return put(recipe) if arrays or len(data) > LARGE else partial(_run_pickled, data)


def _run_nodes(nodes: Any, literals: Mapping[Any, Any]) -> Any:
    values = dict(literals)
    for key, node in nodes:
        values[key] = node(values)
    return values[nodes[-1][0]]


def _run_pickled(data: bytes) -> Any:
    return pickle.loads(data)()  # noqa: S301  our own driver's bytes


def as_completed(promises: Sequence[Promise]) -> BlockIterator:
    """Yield blocks of a computation in the background, in the order in which they are ready.

    A promise is dropped with its block, so that the consumer of that can release its value.
    """
    pending = dict(enumerate(promises))
    del promises
    while pending:
        ready = [i for i, promise in pending.items() if promise.known]
        for i in ready:
            yield _block_of_value(pending.pop(i).location(), i)
        if pending and not ready:
            yield None


def _block_of_value(location: Local | Remote, number: int) -> Block:
    if isinstance(location, Remote):
        return Block(location.ref, location.nbytes, 0, (number,))
    return Block(partial(identity, location.value), 0, 0, (number,), small=True)


def _block_of_item(item: Any, number: int, put: Put) -> Block:
    nbytes = 0
    promise = promise_of(item.key) if isinstance(item, TaskRef) else None
    if promise is not None:
        location = promise.location()
        item = location.value if isinstance(location, Local) else location.ref
    if isinstance(item, pd.DataFrame):
        nbytes = size(item)
    return Block(put(item), nbytes, 0, (number,), small=0 < nbytes <= LARGE)


def _chained(sources: Sequence[BlockIterator]) -> BlockIterator:
    """Yield blocks of one source after the other, numbered in the order of all."""
    first = 0
    for blocks in sources:
        count = 0
        for block in _renumbered(blocks, first):
            count += block is not None
            yield block
        first += count


def _renumbered(blocks: BlockIterator, first: int) -> BlockIterator:
    """Return blocks with numbers from ``first`` on."""
    return map(partial(_shifted, first=first), blocks) if first else blocks  # holds no block


def _shifted(block: Block | None, first: int) -> Block | None:
    return block and block._replace(place=(first + block.place[0],))


def prefetch(items: Iterator[Block]) -> BlockIterator:
    """Iterate in a thread, at most a few items ahead; yield None while there is none."""
    requests, stop = threading.Semaphore(AHEAD), threading.Event()
    out: queue.SimpleQueue[Block | BaseException | None] = queue.SimpleQueue()
    args = (items, requests, stop, out)
    threading.Thread(target=_pull, args=args, name="dask_exo-source", daemon=True).start()
    try:
        while True:
            try:
                item = out.get(timeout=POLL_TIMEOUT)
            except queue.Empty:
                yield None
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            requests.release()
            yield item
    finally:
        stop.set()
        requests.release()


def _pull(
    items: Iterator[Block],
    requests: threading.Semaphore,
    stop: threading.Event,
    out: queue.SimpleQueue[Block | BaseException | None],
) -> None:
    last: BaseException | None = None
    try:
        while requests.acquire() and not stop.is_set():
            block = next(items, None)
            if block is None:
                break
            out.put(block)
            del block
    except BaseException as error:  # noqa: BLE001  raised where the next one is requested
        last = error
    out.put(last)


def list_files(paths: str | Path | Iterable[str | Path], options: Any) -> list[tuple[str, int]]:
    """Return names and sizes of files; see `dask_exo.pipeline.from_files`."""
    files: list[tuple[str, int]] = []
    for path in [paths] if isinstance(paths, (str, Path)) else paths:
        system, root = url_to_fs(str(path), **options)
        search = system.glob if fsspec.core.has_magic(root) else system.find
        entries = search(root, detail=True)
        sizes = {name: info["size"] for name, info in entries.items() if info["type"] == "file"}
        if not sizes:
            raise InputError(
                f"{path}: there is no such file, and none that the pattern matches: give another "
                f"path"
            )
        local = "file" in system.protocol
        for name in sorted(sizes):
            url = name if local else system.unstrip_protocol(name)
            files.append((url, int(sizes[name] or 0)))
    return files


def partition_bytes(nbytes: int, slots: int, most: int, least: int = 1_000_000) -> int:
    """Return the bytes of input partitions: four for each slot, but of ``least`` to ``most``.

    Examples
    --------
    >>> partition_bytes(10**8, 8, 128_000_000), partition_bytes(10**12, 8, 128_000_000)
    (3125000, 128000000)
    """
    return min(max(nbytes // (PER_SLOT * slots), least), most)


def _planned_reads(expr: Any) -> Any:
    """Return an expression that reads Parquet files in smaller partitions, if slots had none.

    Other expressions than rows and columns of one set of files stay as they are, as do partitions
    of a size that the user has given.
    """
    nodes = {node._name: node for node in expr.walk()}.values()
    readers = [node for node in nodes if type(node) is ReadParquetFSSpec]
    if len(readers) != 1 or any(n.dependencies() and type(n) not in ROWWISE for n in nodes):
        return expr
    (reader,), config = readers, Config.current()
    sizes = reader.blocksize, reader.split_row_groups
    if sizes != ("default", "infer") or reader.npartitions >= 2 * (count := slots(config)):
        return expr
    with contextlib.suppress(OSError, pa.ArrowException):  # raised by the task that reads it
        if (nbytes := parquet_bytes(reader)) is not None:
            size = partition_bytes(nbytes, count, config.stream_target)
            new = {"blocksize": size, "split_row_groups": "adaptive", "_dataset_info_cache": None}
            smaller = reader.substitute_parameters(new)
            if smaller.npartitions > reader.npartitions:
                return expr.substitute(reader, smaller)
    return expr


def group_by_bytes(sizes: Sequence[int], target: int) -> Iterator[range]:
    """Yield groups of neighbouring files of about ``target`` bytes, or of one larger file.

    Examples
    --------
    >>> list(group_by_bytes([4, 4, 4, 20, 1, 0], 10))
    [range(0, 2), range(2, 3), range(3, 4), range(4, 6)]
    """
    first = total = 0
    for i, nbytes in enumerate(sizes):
        if i > first and total + nbytes > target:
            yield range(first, i)
            first, total = i, 0
        total += nbytes
    if sizes:
        yield range(first, len(sizes))


def paths_of(files: Sequence[tuple[str, int]], target: int) -> list[pd.DataFrame]:
    """Return frames of file names, one for each partition."""
    groups = group_by_bytes([nbytes for _, nbytes in files], target)
    return [pd.DataFrame({"path": [files[i][0] for i in group]}) for group in groups]


def read(row: dict[str, Any], options: Any) -> list[dict[str, Any]]:
    """Read a file."""
    with fsspec.open(row["path"], "rb", **options) as file:
        return [{"path": row["path"], "bytes": file.read()}]
