"""The scheduler ready to use (`get`), and the switch that makes it the default (`enable`)."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from concurrent.futures import Future
from html import escape
from typing import Any

import dask
import dask.config

from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import provide
from dask_exo.cluster.spilling import usable
from dask_exo.config import Config
from dask_exo.dask_adapter import get_default_shuffle_method, named_schedulers
from dask_exo.errors import ConfigError, NotEnabledError
from dask_exo.execution.background import stop_all
from dask_exo.report.live import Live
from dask_exo.scheduler import Scheduler, connect, start

get: Scheduler = Scheduler()


class enable(contextlib.AbstractContextManager["enable"]):  # noqa: N801  used like a function
    """Run all Dask code of this process on dask_exo; a call, or a ``with`` block.

    A private Ray starts in the background: the first computation waits for it, as `cluster` does.
    They raise a `ClusterError` if it cannot be started.

    Parameters
    ----------
    address : str, optional
        Ray cluster to join; by default a private one is started on this machine.
    num_cpus, num_gpus, object_store_memory, spill_directory : optional
        Slots of the private Ray, bytes of its object store (``"2GB"``), and its spill directory.
    **config
        Further ``exo.*`` keys; with dots as in ``**{"shuffle.algorithm": "push"}``.

    Raises
    ------
    ConfigError
        A key is unknown.
    ClusterError
        No cluster can be reached, or this process is connected to another one.
    SpillError
        The spill directory cannot be written.
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
        self._was_running = on_ray.running()
        sizes = (num_cpus, num_gpus, object_store_memory, spill_directory)
        if self._was_running and (address, *sizes) != (None,) * 5:
            raise ConfigError(
                "this process is connected to a Ray cluster already, so address, num_cpus, "
                "num_gpus, object_store_memory and spill_directory have no effect: call "
                "dask_exo.disable() or ray.shutdown() first, or leave them out"
            )
        arguments = {
            "address": address,
            "num-cpus": num_cpus,
            "num-gpus": num_gpus,
            "object-store-memory": object_store_memory,
            "spill-directory": spill_directory,
            "engine": "ray",  # a cluster that is started explicitly is used
        }
        settings = {f"exo.{k}": v for k, v in arguments.items() if v is not None}
        settings.update({f"exo.{k}": v for k, v in config.items()})
        self._settings = dask.config.set(
            {**settings, "scheduler": get, "dataframe.shuffle.method": "tasks"}
        )
        self._live: Live | None = None
        _enabled.append(self)
        try:
            current = Config.current()
            _check_effective()
            self._connected = self._connect(current)
            if current.live and not any(e._live for e in _enabled):
                joined = self._was_running or current.address is not None
                self._live = Live(self.cluster.dashboard if joined else "")
        except BaseException:
            self._leave()
            raise

    def _connect(self, config: Config) -> Future[on_ray.Cluster]:
        if not self._was_running and config.address is None:
            if config.spill_directory is not None:
                usable(config.spill_directory)
            _exit_on_sigterm()
            return start(config)
        connected: Future[on_ray.Cluster] = Future()
        connected.set_result(connect(config))
        return connected

    @property
    def cluster(self) -> on_ray.Cluster:
        """The connection to Ray; waits while a private Ray starts."""
        return self._connected.result()

    def __repr__(self) -> str:
        """Return the cluster's address and that of the live page."""
        url = self.live
        suffix = "" if url is None else f", live at {url}"
        return f"<dask_exo on Ray at {self.cluster.address}{suffix}>"

    def _repr_html_(self) -> str:
        url = self.live
        link = "" if url is None else f", <a href='{escape(url)}' target='_blank'>live</a>"
        return f"dask_exo on Ray at {escape(self.cluster.address)}{link}"

    @property
    def live(self) -> str | None:
        """Address of the page that shows what runs; None with ``exo.report.live: false``."""
        return next((e._live.url for e in _enabled if e._live is not None), None)

    def _leave(self) -> None:
        if self in _enabled:
            _enabled.remove(self)
            self._settings.__exit__(None, None, None)
            if self._live is not None:
                self._live.stop()
            if not self._was_running:
                stop_all()
                on_ray.disconnect()

    def __exit__(self, *_: object) -> None:
        """Restore Dask's settings; stop the private Ray."""
        self._leave()


_enabled: list[enable] = []


def disable() -> None:
    """Undo every `enable`; stop the private Ray."""
    while _enabled:
        _enabled[-1]._leave()
    stop_all()
    on_ray.disconnect()


def _exit_on_sigterm() -> None:
    """Make SIGTERM end this program as an exception does, so that its private Ray is removed.

    Ray does so itself, but only if it is started by the main thread.
    """
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))


def _check_effective() -> None:
    """Check the scheduler and shuffle that Dask will use."""
    scheduler = dask.base.get_scheduler()
    method = get_default_shuffle_method()
    if scheduler is not get:
        raise NotEnabledError(
            f"Dask would run on {scheduler!r} and not on dask_exo: call dask_exo.enable() after "
            f"the code that sets it"
        )
    if method != "tasks":
        raise NotEnabledError(
            f"Dask would shuffle by {method!r} and not by 'tasks': leave "
            f"dataframe.shuffle.method out of the configuration"
        )


def register() -> None:
    """Register the scheduler as ``scheduler="exo"``, and its cluster for shuffles."""
    named_schedulers["exo"] = get
    provide(get.cluster)
