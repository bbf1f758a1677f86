"""The scheduler that Dask calls: from an expression to values, or to promises of values."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import dask
import dask.config
from dask.callbacks import local_callbacks
from dask.core import flatten
from dask.system import CPU_COUNT
from dask.utils import format_bytes

from dask_exo.checkpoint import CheckpointStore
from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import Futures
from dask_exo.cluster.handover import HandoverFutures
from dask_exo.cluster.local import LocalFutures, local_futures
from dask_exo.cluster.ownership import owned
from dask_exo.cluster.spilling import memory_limit
from dask_exo.cluster.waiting import fetch_values
from dask_exo.config import Config
from dask_exo.dask_adapter import (
    Task,
    collections_to_expr,
    convert_legacy_graph,
    get_annotations,
    is_composite,
    nested_get,
    rebuild_composite,
)
from dask_exo.errors import Failure, NonDeterminismError, ShuffleMethodError
from dask_exo.execution.accounting import RunObserver, observed
from dask_exo.execution.background import BackgroundRun
from dask_exo.execution.loop import Run
from dask_exo.execution.messages import paused_gc
from dask_exo.execution.persisted import Local, Promise, Remote, checked, fetch
from dask_exo.planning.annotations import annotations_of, options_of, semantics_of
from dask_exo.planning.normalize import Graph, Key, compilation, cull, normalize
from dask_exo.planning.placement import ANY_ENGINE, EngineChoice, choose_engine
from dask_exo.planning.plan import Plan
from dask_exo.planning.plan_passes import PassContext, run_passes
from dask_exo.planning.planner import plan
from dask_exo.planning.resume import Checkpoints, resume
from dask_exo.planning.workflow import Workflow, commit
from dask_exo.report.progress import Callbacks, showing
from dask_exo.shuffle import algorithms

SHUFFLE_METHODS = ("tasks", "disk", "p2p")
MEMORY = 0.3  # of this machine, for values of the local engine; Ray's default for its store
ATTEMPTS = 4  # of a workflow, while tasks that run again return other values
KEYWORDS = ("num_cpus", "num_gpus", "priority", "ray_remote_args", "resources", "retries")


class Scheduler:
    """The scheduler: ``dask.config.set(scheduler=dask_exo.get)``.

    An instance is callable as Dask calls a scheduler, from any number of threads at once.

    Parameters
    ----------
    futures : Futures, optional
        Where to run. By default ``exo.engine`` says: on threads of this process, or on Ray. That
        is the cluster that this process is connected to, else the one that ``exo.address`` names,
        else a private one that is started.

    Examples
    --------
    >>> import dask
    >>> from dask_exo.testing import InlineFutures
    >>> dask.delayed(sum)([1, 2]).compute(scheduler=Scheduler(InlineFutures()))
    3
    """

    def __init__(self, futures: Futures | None = None) -> None:
        self._futures = futures

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        """Compute ``keys`` of a graph.

        Parameters
        ----------
        dsk : Expr or mapping
            An optimized expression, or a graph.
        keys : key or nested list of keys
        **kwargs
            ``num_cpus``, ``num_gpus``, ``resources``, ``retries``, ``priority`` and
            ``ray_remote_args`` hold for all tasks. Keywords of other schedulers are
            ignored.

        Returns
        -------
        object
            Values in the shape of ``keys``, in memory of this process.

        Raises
        ------
        ExoError
            See `dask_exo.errors`.
        Exception
            An exception of a task, with its own type and traceback.
        """
        config = _checked_config()
        with local_callbacks(kwargs.get("callbacks")) as active:
            callbacks, failed = Callbacks(list(active)), True
            try:
                prepare = partial(_prepare, dsk, keys, kwargs, config, callbacks)
                results = self._compute(dsk, prepare, callbacks)
                failed = False
            finally:
                callbacks.end(failed=failed)
        return nested_get(keys, results)

    def _compute(
        self, dsk: Any, prepare: Callable[[], _Prepared], callbacks: Callbacks
    ) -> dict[Key, Any]:
        """Return the value of each key; repeat a workflow if that is necessary."""
        attempts = ATTEMPTS
        while True:
            work, context, names = prepare()
            values, attempts = work.literals, attempts - 1
            try:
                if work.bundles or work.stages or work.promises:
                    futures, choice = self.where(dsk, work, context.config)
                    values = _run(work, replace(context, engine=choice), futures, callbacks)
            except NonDeterminismError:
                if not context.repeatable or not attempts:
                    raise
                continue
            return {key: values[work.results[name]] for key, name in names.items()}

    def start(self, dsk: Any, keys: Any, **kwargs: Any) -> dict[Key, Promise]:
        """Compute in the background, and return the promise of each key at once.

        If a task fails, only the promises that need its value fail.
        """
        config = _checked_config()
        work, context, names = _prepare(dsk, keys, kwargs, config, Callbacks(()))
        futures, choice = self.where(dsk, work, config, movable=False)
        promises = BackgroundRun(work, replace(context, engine=choice), futures).start()
        for name, fingerprint in context.checkpoints.fingerprints.items():
            promises[name].fingerprint = fingerprint
        return {key: promises[name] for key, name in names.items()}

    def persist(
        self,
        collections: Sequence[Any],
        optimize_graph: bool = True,  # noqa: FBT001, FBT002  Dask passes it by name
        **kwargs: Any,
    ) -> list[Any]:
        """Compute collections into the object store; ``dask.persist`` calls this.

        Return equal collections at once, while tasks run. The data lives as long as one of them or
        of those derived from them, and any other scheduler can compute them too. Unless
        ``optimize_graph`` is false, Dask optimizes graphs that are not expressions. ``kwargs`` are
        those of `Scheduler.__call__`.
        """
        expr = collections_to_expr(collections, optimize_graph)
        composite = [is_composite(child) for child in expr.operands]
        expr = expr.optimize()
        keys = [list(flatten(group)) for group in expr.__dask_keys__()]
        tasks = self._persisted(expr, list(flatten(keys)), kwargs)
        results = []
        for i, collection in enumerate(collections):
            if composite[i]:
                results.append(rebuild_composite(collection, expr.operands[i], tasks))
            else:
                rebuild, state = collection.__dask_postpersist__()
                results.append(rebuild({key: tasks[key] for key in keys[i]}, *state))
        return results

    def _persisted(self, expr: Any, keys: list[Key], kwargs: Mapping[str, Any]) -> dict[Key, Any]:
        """Return the node of each key in the graph of a persisted collection."""
        promises = self.start(expr, keys, **kwargs)
        return {key: Task(key, fetch, promise) for key, promise in promises.items()}

    def cluster(self) -> Futures:
        """Return the cluster, and start it if necessary."""
        config = Config.current()
        return self._futures or (_local(config) if config.engine == "local" else _on_ray(config))

    def where(
        self, dsk: Any, work: Plan, config: Config, *, movable: bool = True
    ) -> tuple[Futures, EngineChoice]:
        """Return where a computation with some plan would run, and why; start Ray if necessary.

        One that is ``movable`` may start on threads and move to Ray.
        """
        if self._futures is not None:
            return self._futures, ANY_ENGINE
        limit = local_memory(config) // 2  # a shuffle needs twice as much as its input
        running = on_ray.running()
        choice = choose_engine(dsk, config, limit=limit, running=running, movable=movable)
        options = [unit.options for units in (work.bundles, work.stages) for unit in units]
        if config.engine == "auto" and any(one.needs or one.pool for one in options):
            choice = EngineChoice("ray", "its functions request resources")
        if choice.engine == "ray":
            return _on_ray(config), choice
        futures: Futures = _local(config)
        if choice.may_move:
            futures = HandoverFutures(_local(config), partial(_in_background, config))
        return futures, choice

    def __repr__(self) -> str:
        """Return a short description."""
        return "dask_exo.get" if self._futures is None else f"Scheduler({self._futures!r})"

    def __reduce__(self) -> tuple[type[Scheduler], tuple[()]]:
        """Pickle as a scheduler on Ray, whatever it runs on here."""
        return Scheduler, ()


def _checked_config() -> Config:
    """Return the configuration; raise an error if it names an unknown shuffle."""
    config = Config.current()
    algorithms.check(config.shuffle_algorithm)
    method = dask.config.get("dataframe.shuffle.method", None)
    if method is not None and method not in (*SHUFFLE_METHODS, "simple"):
        raise ShuffleMethodError(
            f"dataframe.shuffle.method={method!r} is not a shuffle method: with dask_exo leave it "
            f"at 'tasks' (every method becomes an Exoshuffle; exo.shuffle.algorithm selects which)"
        )
    return config


def plan_of(dsk: Any, config: Config) -> Plan:
    """Plan an expression without a cluster."""
    prepared = _prepare(dsk, dsk.__dask_keys__(), {}, config, Callbacks(()))
    return run_passes(prepared.plan, prepared.context)


class _Prepared(NamedTuple):
    """A computation before its first task runs: its plan before passes, and their context.

    ``names`` maps each key that Dask requested to its key in the plan's results.
    """

    plan: Plan
    context: PassContext
    names: dict[Key, Key]


def _prepare(
    dsk: Any,
    keys: Any,
    kwargs: Mapping[str, Any],
    config: Config,
    callbacks: Callbacks,
) -> _Prepared:
    """Plan the arguments of a scheduler, with garbage collection paused."""
    with paused_gc():
        replacements, queries = compilation(dsk, config.compile)
        graph, names, gpus = normalize(dsk, keys, replacements)
        common, wanted = dict(get_annotations() or {}), dict.fromkeys(names.values())
        common.update((name, kwargs[name]) for name in KEYWORDS if name in kwargs)
        by_task, workflow = annotations_of(dsk), Workflow()
        if semantics := semantics_of(by_task, graph, common):
            graph, workflow = commit(graph, wanted.keys(), semantics, config.checkpoint_path)
            wanted |= dict.fromkeys(workflow.stores)
        if workflow.repeatable:  # values are compared
            config = replace(config, nondeterminism="error")
        graph, checkpoints = _resume(graph, wanted.keys(), config, workflow.identities)
        if callbacks:
            callbacks.begin(graph)
            graph = cull(convert_legacy_graph(graph), wanted)
            callbacks.prepare(graph)
        options = options_of(by_task, graph, common, gpus, config.gpu_per_task)
        options.update(workflow.options)
        fuse = not callbacks.values
        work = plan(graph, wanted, small=config.small_result, options=options, fuse=fuse)
        context = PassContext(
            config, checkpoints, fuse=fuse, queries=queries, repeatable=workflow.repeatable
        )
        return _Prepared(work, context, names)


def _resume(
    graph: Graph, keys: Set[Key], config: Config, identities: Mapping[Key, str]
) -> tuple[Graph, Checkpoints]:
    """Replace tasks by checkpoints of earlier programs, if checkpoints are on."""
    if config.checkpoint_path is None:
        return graph, Checkpoints()
    store = CheckpointStore.open(config.checkpoint_path)
    share = None if config.checkpoint_keep == "all" else config.checkpoint_overhead
    shuffles = config.checkpoint_keep != "marked"
    return resume(graph, keys, store, shuffles=shuffles, share=share, identities=identities)


class _CallbackWatcher(RunObserver):
    """Tells Dask's callbacks what a run does."""

    def __init__(self, callbacks: Callbacks, futures: Futures) -> None:
        self._callbacks, self._futures = callbacks, futures

    def started(self, keys: Iterable[Key]) -> None:
        """See `RunObserver.started`."""
        self._callbacks.started(keys)

    def finished(self, key: Key, inner: Iterable[Key], location: Local | Remote | None) -> None:
        """See `RunObserver.finished`."""
        value = None
        if self._callbacks.values and location is not None:
            value = Promise(self._futures, location).result()
        for name in inner:
            self._callbacks.finished(name, value if name == key else None)
        self._callbacks.finished(key, value)


def _run(
    work: Plan,
    context: PassContext,
    futures: Futures,
    callbacks: Callbacks,
) -> dict[Any, Any]:
    """Run a plan; return the value of each result's source."""
    watcher = _CallbackWatcher(callbacks, futures) if callbacks else None
    config = context.config
    with showing(config.progress), observed(futures) as sampler:
        run = Run.planned(work, context, futures, watcher=watcher, sampler=sampler)
        locations = run.results()
        names = {loc.ref: repr(key) for key, loc in locations.items() if isinstance(loc, Remote)}
        refs = list(names)
        fetched = fetch_values(futures, refs, config.stall_timeout, names.__getitem__)
        values_of = dict(zip(refs, fetched, strict=True))
        if refs:
            run.versions.compare()  # they may have been lost and recomputed just now
        values = {}
        for key, loc in locations.items():
            value = loc.value if isinstance(loc, Local) else checked(values_of[loc.ref], loc.digest)
            value = owned(value, shared=futures.shares_memory)
            if isinstance(value, Failure):  # a promise of a task that failed
                value.reraise()
            values[work.results[key]] = value
        return values


def _local(config: Config) -> LocalFutures:
    """Return the engine on threads of this process."""
    slots = config.num_cpus or CPU_COUNT
    return local_futures(slots, local_memory(config), config.spill_directory)


def slots(config: Config) -> int:
    """Return the tasks that run at the same time on Ray, or would on a private one."""
    if on_ray.running():
        return sum(node.slots for node in on_ray.RayFutures().nodes())
    return config.num_cpus or CPU_COUNT


def local_memory(config: Config) -> int:
    """Return the bytes of values that threads keep in memory."""
    return config.local_memory or int(MEMORY * memory_limit())


def _on_ray(config: Config) -> Futures:
    """Return Ray; connect to it if necessary."""
    connect(config)
    on_ray.check_effect(config)
    return on_ray.RayFutures()


def _in_background(config: Config) -> Future[Futures]:
    """Connect to Ray in a thread of its own."""
    cluster = on_ray.in_background(partial(_on_ray, config))
    cluster.add_done_callback(_report_failure)
    return cluster


def _report_failure(cluster: Future[Futures]) -> None:
    if (error := cluster.exception()) is not None:
        sys.stderr.write(f"dask_exo: continues on threads: {error}\n")


def connect(config: Config) -> on_ray.Cluster:
    """Connect to the cluster; write one line to stderr if it had to be started."""
    on_ray.await_start()
    return _connect(config)


def start(config: Config) -> Future[on_ray.Cluster]:
    """Connect to the cluster in the background; whatever needs it waits."""
    return on_ray.start(partial(_connect, config))


def _connect(config: Config) -> on_ray.Cluster:
    start = time.perf_counter()
    cluster, is_new = on_ray.connect(config)
    on_ray.export(on=config.prometheus)
    if is_new and cluster.private:
        nodes = on_ray.RayFutures().nodes()
        slots, store = sum(n.slots for n in nodes), sum(n.store for n in nodes)
        sys.stderr.write(
            f"dask_exo: started a private Ray ({slots} slots, {format_bytes(store)} object store) "
            f"in {time.perf_counter() - start:.1f} s\n"
        )
    elif is_new:
        on_ray.warn_of_nodes()
    return cluster
