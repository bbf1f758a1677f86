"""Configuration: one frozen `Config`, read once from ``dask.config`` and checked.

The keys, their units and defaults stand in ``exo.yaml``, their types in
``exo-schema.yaml``. Below the scheduler's front door nothing reads ``dask.config``.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import dask.config
import yaml
from dask.utils import parse_bytes, parse_timedelta

from dask_exo.errors import ConfigError


@functools.cache
def _document(name: str) -> dict[str, Any]:
    text = resources.files("dask_exo").joinpath(name).read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


def register_defaults() -> None:
    """Tell Dask our keys and their defaults."""
    dask.config.update_defaults(_document("exo.yaml"))


@dataclass(frozen=True)
class Config:
    """The configuration of one run. Sizes in bytes, times in seconds; see ``exo.yaml``."""

    address: str | None
    num_cpus: int | None
    num_gpus: int | None
    object_store_memory: int | None
    spill_directory: str | None
    inline: bool | str
    inline_limit: int
    bundle_target: float
    tasks_per_slot: int
    memory_fraction: float
    small_result: int
    shuffle_algorithm: str
    shuffle_memory_fraction: float
    shuffle_round_fraction: float
    shuffle_most_objects: int
    shuffle_merge_limit: int | None
    shuffle_integrity: bool
    shuffle_speculation: bool
    late_factor: float
    late_floor: float
    stream_policy: str
    stream_memory_fraction: float
    stream_target: int
    stall_timeout: float | None
    gpu_simulate: bool
    settings: Mapping[str, Any]
    """What tasks find in ``dask.config``: what differs here from Dask's defaults."""

    @classmethod
    def current(cls) -> Config:
        """Read and check ``exo.*`` of ``dask.config``.

        Raises
        ------
        ConfigError
            For an unknown key (with the nearest known one), or a value out of range.

        Examples
        --------
        >>> with dask.config.set({"exo.object-store-memory": "2GB"}):
        ...     Config.current().object_store_memory
        2000000000
        """
        keys = _canonical(dask.config.get("exo"))
        check(keys)
        scheduler, shuffle = keys["scheduler"], keys["shuffle"]
        store, limit = keys["object-store-memory"], shuffle["merge-limit"]
        gpus, stall = keys["num-gpus"], keys["fault"]["stall-timeout"]
        if gpus is None and keys["gpu"]["simulate"]:
            gpus = 1
        return cls(
            address=keys["address"],
            num_cpus=keys["num-cpus"],
            num_gpus=gpus,
            object_store_memory=None if store is None else _bytes("object-store-memory", store),
            spill_directory=keys["spill-directory"],
            inline=scheduler["inline"],
            inline_limit=_bytes("scheduler.inline-limit", scheduler["inline-limit"]),
            bundle_target=_seconds("scheduler.bundle-target", scheduler["bundle-target"]),
            tasks_per_slot=scheduler["tasks-per-slot"],
            memory_fraction=scheduler["memory-fraction"],
            small_result=_bytes("scheduler.small-result", scheduler["small-result"]),
            shuffle_algorithm=shuffle["algorithm"],
            shuffle_memory_fraction=shuffle["memory-fraction"],
            shuffle_round_fraction=shuffle["round-fraction"],
            shuffle_most_objects=shuffle["most-objects"],
            shuffle_merge_limit=None if limit is None else _bytes("shuffle.merge-limit", limit),
            shuffle_integrity=shuffle["integrity"],
            shuffle_speculation=shuffle["speculation"],
            late_factor=shuffle["late-factor"],
            late_floor=_seconds("shuffle.late-floor", shuffle["late-floor"]),
            stream_policy=keys["stream"]["policy"],
            stream_memory_fraction=keys["stream"]["memory-fraction"],
            stream_target=_bytes(
                "stream.target-partition-size", keys["stream"]["target-partition-size"]
            ),
            stall_timeout=None if stall is None else _seconds("fault.stall-timeout", stall),
            gpu_simulate=keys["gpu"]["simulate"],
            settings=_settings(),
        )


def check(keys: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless every key under ``exo`` is known and its value allowed."""
    import jsonschema

    schema = _document("exo-schema.yaml")
    known = sorted(key for key, _ in _leaves(_document("exo.yaml")["exo"]))
    for key in sorted(key for key, _ in _leaves(keys)):
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = (
                f"did you mean 'exo.{near[0]}'?" if near else f"known: exo.{', exo.'.join(known)}"
            )
            raise ConfigError(f"unknown configuration key 'exo.{key}': {hint}")
    for error in jsonschema.Draft7Validator(schema).iter_errors(keys):
        where = ".".join(str(p) for p in error.path)
        raise ConfigError(f"configuration key 'exo.{where}': {error.message}")


def _settings() -> dict[str, Any]:
    """Dask's settings as they go with tasks: all plain values that are not the defaults.

    A computation inside a task runs here too, so the scheduler is always ours.
    """
    defaults = dict(_leaves(dask.config.merge(*dask.config.defaults)))
    mine = {k: v for k, v in _leaves(dask.config.config) if k not in defaults or defaults[k] != v}
    plain = (bool, int, float, str, list, tuple, type(None))
    return {**{k: v for k, v in mine.items() if isinstance(v, plain)}, "scheduler": "exo"}


def _canonical(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys with hyphens, as ``exo.yaml`` has them; Dask treats both spellings as one."""
    return {
        k.replace("_", "-"): _canonical(v) if isinstance(v, Mapping) else v for k, v in keys.items()
    }


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _bytes(key: str, value: int | str) -> int:
    try:
        return int(parse_bytes(value))
    except ValueError as error:
        raise ConfigError(f"configuration key 'exo.{key}': {value!r} is not a size") from error


def _seconds(key: str, value: float | str) -> float:
    try:
        return float(parse_timedelta(value))
    except (ValueError, KeyError) as error:
        raise ConfigError(f"configuration key 'exo.{key}': {value!r} is not a time") from error
