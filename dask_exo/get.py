"""The front door: the scheduler that Dask calls, and the switch that makes it the default."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import dask
import dask.config
import dask.threaded
from dask.utils import key_split

from dask_exo import on_ray
from dask_exo.config import Config
from dask_exo.dask_adapter import (
    CoreExpr,
    FromPandas,
    get_default_shuffle_method,
    named_schedulers,
    nested_get,
)
from dask_exo.errors import ConfigError, NotEnabledError, ShuffleMethodError
from dask_exo.frame import host
from dask_exo.futures import Futures
from dask_exo.graph.normalize import normalize
from dask_exo.graph.plan import Plan, plan
from dask_exo.graph.run import Run
from dask_exo.graph.values import Local, Remote
from dask_exo.report import events

SHUFFLE_METHODS = ("tasks", "disk", "p2p")


class Scheduler:
    """The scheduler: ``dask.config.set(scheduler=dask_exo.get)``.

    An instance is callable as Dask calls a scheduler, from any number of threads at once.

    Parameters
    ----------
    futures : Futures, optional
        Where to run. By default on Ray: on the cluster that this process is connected to, else
        on the one that ``exo.address`` names, else on a private one that is started.

    Examples
    --------
    >>> import dask
    >>> from dask_exo.testing import InlineFutures
    >>> dask.delayed(sum)([1, 2]).compute(scheduler=Scheduler(InlineFutures()))
    3
    """

    def __init__(self, futures: Futures | None = None) -> None:
        self._futures = futures

    def __call__(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        """Compute ``keys`` of a graph.

        Parameters
        ----------
        dsk : Expr or mapping
            What Dask hands a scheduler: an optimized expression, or a graph.
        keys : key or nested list of keys
        **kwargs
            Keywords of ``.compute()`` that other schedulers know; they have no meaning here.

        Returns
        -------
        object
            Values in the shape of ``keys``, in memory of this process.

        Raises
        ------
        ExoError
            See `dask_exo.errors`.
        Exception
            Whatever a task raised, with its own type and traceback.
        """
        config = Config.current()
        check_shuffle_method()
        if self._futures is None and _in_process(dsk, config):
            return dask.threaded.get(dsk, keys)
        graph, names = normalize(dsk, keys)
        work = plan(graph, set(names.values()), small=config.small_result)
        values = work.literals
        if work.bundles or work.stages:
            values = _run(work, self._futures or _on_ray(config), config)
        found = {key: values[work.results[name]] for key, name in names.items()}
        return nested_get(keys, found)

    def __repr__(self) -> str:
        """Where it runs."""
        return "dask_exo.get" if self._futures is None else f"Scheduler({self._futures!r})"

    def __reduce__(self) -> tuple[type[Scheduler], tuple[()]]:
        """Whatever it ran on here, elsewhere it runs on Ray."""
        return Scheduler, ()


get = Scheduler()


def check_shuffle_method() -> None:
    """Raise `ShuffleMethodError` if Dask is set to a shuffle that does not exist."""
    method = dask.config.get("dataframe.shuffle.method", None)
    if method is not None and method not in (*SHUFFLE_METHODS, "simple"):
        raise ShuffleMethodError(
            f"dataframe.shuffle.method={method!r} is no shuffle method: with dask_exo leave it at "
            f"'tasks' (every method becomes an Exoshuffle; exo.shuffle.algorithm picks which)"
        )


def _in_process(dsk: Any, config: Config) -> bool:
    """Whether a computation is so small that no Ray need be started for it."""
    if config.inline is True:
        return True
    if config.inline is False or on_ray.running() or not isinstance(dsk, CoreExpr):
        return False
    nodes = list(dsk.walk())
    leaves = [node for node in nodes if not node.dependencies()]
    if not leaves or not all(isinstance(leaf, FromPandas) for leaf in leaves):
        return False
    nbytes = sum(int(leaf.frame.memory_usage(deep=False).sum()) for leaf in leaves)
    return nbytes <= config.inline_limit


def _on_ray(config: Config) -> Futures:
    connect(config)
    return on_ray.RayFutures()


def _run(work: Plan, futures: Futures, config: Config) -> dict[Any, Any]:
    """Run a plan; return the value of each result's source."""
    with _observed(work, futures):
        held = Run(work, futures, config).results()
        refs = [h.ref for h in held.values() if isinstance(h, Remote)]
        fetched = dict(zip(refs, futures.get(refs), strict=True))
        return {
            work.results[key]: host.own(h.value if isinstance(h, Local) else fetched[h.ref])
            for key, h in held.items()
        }


@contextlib.contextmanager
def _observed(work: Plan, futures: Futures) -> Iterator[None]:
    """Tell observers of a run and of what it took; without any, it is not even asked for."""
    if not events.listening():
        yield
        return
    groups = Counter(key_split(bundle.key) for bundle in work.bundles)
    groups.update({stage.name: len(stage.parts) for stage in work.stages})
    events.emit(events.RunStarted(dict(groups)))
    started, before = time.perf_counter(), futures.store()
    calls, objects = futures.calls, futures.objects
    failed = True
    try:
        yield
        failed = False
    finally:
        after = futures.store()
        events.emit(
            events.RunFinished(
                time.perf_counter() - started,
                futures.calls - calls,
                futures.objects - objects,
                after.spilled - before.spilled,
                after.restored - before.restored,
                failed,
            )
        )


def connect(config: Config) -> on_ray.Cluster:
    """Make sure that there is a cluster; say so in one line where one had to be started."""
    started = time.perf_counter()
    cluster, new = on_ray.connect(config)
    if new and cluster.private:
        nodes = on_ray.RayFutures().nodes()
        slots, store = sum(n.slots for n in nodes), sum(n.store for n in nodes)
        sys.stderr.write(
            f"dask_exo: started a private Ray ({slots} slots, {store / 1e9:.1f} GB object store) "
            f"in {time.perf_counter() - started:.1f} s\n"
        )
    return cluster


class enable(contextlib.AbstractContextManager["enable"]):  # noqa: N801  used like a function
    """Run all Dask code of this process on dask_exo; a call, or a ``with`` block.

    Parameters
    ----------
    address : str, optional
        Ray cluster to join; by default a private one is started on this machine.
    num_cpus, num_gpus : int, optional
        Slots of the private Ray.
    object_store_memory : int or str, optional
        Bytes of its object store (``"2GB"``).
    spill_directory : str, optional
        Where it writes what does not fit.
    **config
        Further ``exo.*`` keys, dots as in ``**{"shuffle.algorithm": "push"}``.

    Raises
    ------
    ConfigError
        A key is unknown.
    ClusterError
        No cluster can be reached or started, or one is connected already that is not the one
        asked for.
    NotEnabledError
        Dask would still use another scheduler or shuffle.

    Examples
    --------
    >>> import dask_exo
    >>> dask_exo.enable(num_cpus=2)  # doctest: +SKIP
    >>> with dask_exo.enable():  # doctest: +SKIP
    ...     df.set_index("user").to_parquet("out/")
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        object_store_memory: int | str | None = None,
        spill_directory: str | None = None,
        **config: Any,
    ) -> None:
        named = {
            "address": address,
            "num-cpus": num_cpus,
            "num-gpus": num_gpus,
            "object-store-memory": object_store_memory,
            "spill-directory": spill_directory,
            "scheduler.inline": False,  # whoever starts a cluster wants it used
        }
        settings = {f"exo.{k}": v for k, v in named.items() if v is not None}
        settings.update({f"exo.{k}": v for k, v in config.items()})
        self._settings = dask.config.set(
            {**settings, "scheduler": get, "dataframe.shuffle.method": "tasks"}
        )
        self._was_running = on_ray.running()
        _enabled.append(self)
        try:
            current = Config.current()
            if self._was_running:
                sizes = (num_cpus, num_gpus, object_store_memory, spill_directory)
                _refuse_settings_without_effect(address, *sizes)
            self.cluster = connect(current)
            _check_effective()
        except BaseException:
            self._leave()
            raise

    def __repr__(self) -> str:
        """Say where Dask runs."""
        return f"<dask_exo on Ray at {self.cluster.address}>"

    def _leave(self) -> None:
        if self in _enabled:
            _enabled.remove(self)
            self._settings.__exit__(None, None, None)
            if not self._was_running:
                on_ray.disconnect()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore Dask's settings; stop the private Ray."""
        self._leave()


_enabled: list[enable] = []


def disable() -> None:
    """Undo every `enable`; stop the private Ray."""
    while _enabled:
        _enabled[-1]._leave()
    on_ray.disconnect()


def _refuse_settings_without_effect(*settings: Any) -> None:
    if any(value is not None for value in settings):
        raise ConfigError(
            "this process is connected to a Ray cluster already, so address, num_cpus, num_gpus, "
            "object_store_memory and spill_directory have no effect: call dask_exo.disable() or "
            "ray.shutdown() first, or leave them out"
        )


def _check_effective() -> None:
    """Read back what Dask will use, since a key that Dask renames is set without effect."""
    scheduler = dask.base.get_scheduler()
    method = get_default_shuffle_method()
    if scheduler is not get:
        raise NotEnabledError(f"Dask would run on {scheduler!r} and not on dask_exo")
    if method != "tasks":
        raise NotEnabledError(f"Dask would shuffle by {method!r} and not by 'tasks'")


def register() -> None:
    """Let Dask know the scheduler by its name, ``scheduler="exo"``."""
    named_schedulers["exo"] = get
