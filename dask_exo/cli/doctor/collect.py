"""Find the facts of this process and of its cluster."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import dask.config
from packaging.requirements import Requirement

from dask_exo.cli.doctor import machine
from dask_exo.cli.doctor.facts import Facts, Machine, ProgramFacts
from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import Futures, default
from dask_exo.config import Config, settings
from dask_exo.errors import ConfigError, ExoError
from dask_exo.shuffle import registry

ASKED = 3  # times for a clock: the quickest answer tells most
NO_SLOT = {"num_cpus": 0}  # a cluster that is busy is looked at all the same
BIT = {"num_cpus": 0, "num_gpus": 0.01}  # Ray shows a device to who asks for some of it
FREE = 30.0  # seconds for a GPU to have that bit left, and for the probe


def gather(futures: Futures | None = None) -> Facts:
    """Find what there is.

    Parameters
    ----------
    futures : Futures, optional
        The cluster; by default the one that Dask's code would run on, which is started if need be.

    Returns
    -------
    Facts
        Of this machine alone, where there is no cluster.
    """
    here, token = program(), on_ray.token()
    address, private, unreachable = "", True, ""
    spill: str | None = None
    packages = ("dask-exo", *(name for name in here.required if name != "python"))
    try:
        config = Config.current()
        spill = config.spill_directory if config.address is None else None
        if futures is None:
            futures = default()
            joined, _ = on_ray.connect(config)
            address, private = joined.address, joined.private
        machines = tuple(_machines(futures, packages))
    except ConfigError as error:
        here = replace(here, errors=(str(error),))
        unreachable, machines = (
            "not tried with this configuration",
            (machine.look(spill, packages),),
        )
    except ExoError as error:
        unreachable, machines = str(error), (machine.look(spill, packages),)
    return Facts(here, machines, address, private, token, unreachable)


def program() -> ProgramFacts:
    """Collect the facts of this process."""
    required = _required()
    return ProgramFacts(
        required,
        machine.versions(("dask-exo", *(name for name in required if name != "python"))),
        scheduler=_scheduler(dask.config.get("scheduler", None)),
        method=str(dask.config.get("dataframe.shuffle.method", None) or ""),
        algorithm=str(dask.config.get("exo.shuffle.algorithm")),
        algorithms=tuple(registry.names()),
        settings=settings(),
    )


def _required() -> dict[str, str]:
    """Versions that the package itself says it needs."""
    about = importlib.metadata.metadata("dask-exo")
    needs = [Requirement(text) for text in about.get_all("Requires-Dist") or []]
    found = {need.name: str(need.specifier) for need in needs if need.marker is None}
    return {"python": about["Requires-Python"], **found}


def _scheduler(value: object) -> str:
    """Name of a scheduler: one that Dask knows, something that is called, or a client."""
    if value is None or isinstance(value, str):
        return value or ""
    return "exo" if type(value).__module__.startswith("dask_exo.") else repr(value)


def _machines(futures: Futures, packages: Sequence[str]) -> Iterator[Machine]:
    """Look around on each machine of the cluster."""
    disks = futures.disks()
    spill = disks[0].path if disks else None
    for node in futures.nodes():
        ref = futures.submit(machine.look, spill, packages, node=node.id, needs=NO_SLOT)
        (found,) = futures.get([ref])
        skew, doubt = _skew(futures, node.id)
        gpus = int((node.resources or {}).get("GPU", 0))
        if gpus and found.devices < 0:
            found = replace(found, ipc=_shared(futures, node.id))
        yield replace(
            found,
            slots=node.slots,
            store=node.store,
            gpus=gpus,
            skew=skew,
            doubt=doubt,
        )


def _shared(futures: Futures, node: str) -> str | None:
    """Why processes of a node cannot share memory of its GPU; None where all GPUs are taken."""
    ref = futures.submit(machine.shared, node=node, needs=BIT)
    done, _ = futures.wait([ref], FREE)
    if not done:
        futures.cancel([ref])
        return None
    (why,) = futures.get([ref])
    return str(why)


def _skew(futures: Futures, node: str) -> tuple[float, float]:
    """Seconds by which a node's clock is ahead, and by which that may be wrong."""
    best = 0.0, math.inf
    for _ in range(ASKED):
        before = machine.clock()
        (there,) = futures.get([futures.submit(machine.clock, node=node, needs=NO_SLOT)])
        after = machine.clock()
        if (after - before) / 2 < best[1]:
            best = there - (before + after) / 2, (after - before) / 2
    return best
