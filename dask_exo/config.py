"""Configuration: one frozen `Config`, read once from ``dask.config`` and checked.

Keys, units and defaults are in ``exo.yaml``, types in ``exo-schema.yaml``. Below the scheduler
nothing reads ``dask.config``.
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

CLUSTER = ("address", "num-cpus", "num-gpus", "object-store-memory", "spill-directory")
"""Keys that are read only when this process connects to Ray."""

EFFECT = (
    (CLUSTER[1:], "address", None),
    (("shuffle.late-factor", "shuffle.late-floor"), "shuffle.speculation", True),
)
"""Keys; another key; the value that it needs for the first ones to have an effect."""


@functools.cache
def _document(name: str) -> dict[str, Any]:
    text = resources.files("dask_exo").joinpath(name).read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


def register_defaults() -> None:
    """Register keys and their defaults with Dask."""
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
    progress: str
    node_price: float | None
    live: bool
    prometheus: bool
    gpu_per_task: float
    cluster: Mapping[str, Any]
    """Keys of `CLUSTER` that are set, as they were written."""
    checkpoint_path: str | None
    checkpoint_keep: str
    checkpoint_overhead: float
    nondeterminism: str
    gpu_memory: int | None
    settings: Mapping[str, Any]
    """Configuration that tasks see: values that differ from Dask's defaults."""

    @property
    def compares(self) -> bool:
        """True if recomputed values are compared with those computed before."""
        return self.nondeterminism != "ignore"

    @classmethod
    def current(cls) -> Config:
        """Read and check ``exo.*`` of ``dask.config``.

        Raises
        ------
        ConfigError
            A key is unknown, its value is out of range, or it has no effect because of the value
            of another key.

        Examples
        --------
        >>> with dask.config.set({"exo.object-store-memory": "2GB"}):
        ...     Config.current().object_store_memory
        2000000000
        """
        keys = _canonical(dask.config.get("exo"))
        text = repr(keys)  # 1 and True are equal, and not the same to the schema
        if text not in _valid:
            check(keys)
            _valid[:] = [text]
        scheduler, shuffle = keys["scheduler"], keys["shuffle"]
        store, limit = keys["object-store-memory"], shuffle["merge-limit"]
        stall = keys["fault"]["stall-timeout"]
        gpus, memory = keys["num-gpus"], keys["gpu"]["memory"]
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
            progress={True: "on", False: "off"}.get(keys["progress"], keys["progress"]),
            node_price=keys["report"]["node-price"],
            live=keys["report"]["live"],
            prometheus=keys["report"]["prometheus"],
            gpu_per_task=keys["gpu"]["per-task"],
            cluster=_cluster(keys),
            checkpoint_path=keys["checkpoint"]["path"],
            checkpoint_keep=keys["checkpoint"]["keep"],
            checkpoint_overhead=keys["checkpoint"]["overhead"],
            nondeterminism=keys["fault"]["nondeterminism"],
            gpu_memory=None if memory is None else _bytes("gpu.memory", memory),
            settings=_settings(),
        )


_valid: list[str] = []
"""The last valid configuration: validation takes a millisecond, and waiting reads it often."""


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
        raise ConfigError(
            f"configuration key 'exo.{where}': {error.message}. docs/configuration.md has every "
            f"key with its unit and its default"
        )
    _check_effect(dict(_leaves(keys)))


def _check_effect(values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a key that has no effect because of another one."""
    defaults = dict(_leaves(_document("exo.yaml")["exo"]))
    for keys, other, needed in EFFECT:
        idle = [key for key in keys if values[key] != defaults[key]]
        if idle and values[other] != needed:
            have, need = yaml_text(values[other]), yaml_text(needed)
            raise ConfigError(
                f"{_named(idle)} has no effect while exo.{other} is {have}: leave it out, or set "
                f"exo.{other}: {need}"
            )


def without_effect(
    asked: Mapping[str, Any] | None, now: Mapping[str, Any], given: Mapping[str, Any]
) -> list[str]:
    """Return keys of `CLUSTER` that differ from those of the connected cluster.

    Parameters
    ----------
    asked : mapping, optional
        Keys that were set when this process connected; None if other code connected.
    now : mapping
        Keys that are set now.
    given : mapping
        Keys that files and the environment set. An argument may have overridden one of them
        when this process connected.

    Examples
    --------
    >>> without_effect({"num-cpus": 2}, {"num-cpus": 3}, {})
    ['num-cpus']
    >>> without_effect({"num-cpus": 2}, {"num-cpus": 3}, {"num-cpus": 3})
    []
    >>> without_effect(None, {"num-cpus": 3}, {"num-cpus": 3})
    ['num-cpus']
    """
    if asked is None:
        return list(now)
    return [key for key, value in now.items() if value not in (asked.get(key), given.get(key))]


def given() -> dict[str, Any]:
    """Return keys of `CLUSTER` that files and the environment set."""
    return _cluster(_canonical(dask.config.collect().get("exo") or {}))


def settings() -> dict[str, Any]:
    """Return every ``exo.*`` key that is not at its default.

    Examples
    --------
    >>> with dask.config.set({"exo.shuffle.algorithm": "push"}):
    ...     settings()["exo.shuffle.algorithm"]
    'push'
    """
    defaults = dict(_leaves(_document("exo.yaml")["exo"]))
    found = dict(_leaves(_canonical(dask.config.get("exo"))))
    return {f"exo.{k}": v for k, v in found.items() if k not in defaults or v != defaults[k]}


def yaml_text(value: Any) -> str:
    """Return a value as it is written in a configuration file: ``null``, ``true``."""
    return str(yaml.safe_dump(value)).split("\n", 1)[0]


def _cluster(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: keys[key] for key in CLUSTER if keys.get(key) is not None}


def _named(keys: list[str]) -> str:
    return ", ".join(f"exo.{key}" for key in keys)


def _settings() -> dict[str, Any]:
    """Return Dask's settings for tasks: all plain values that are not the defaults.

    A computation inside a task also runs on dask_exo, so the scheduler is always ``exo``.
    """
    defaults = dict(_leaves(dask.config.merge(*dask.config.defaults)))
    mine = {k: v for k, v in _leaves(dask.config.config) if k not in defaults or defaults[k] != v}
    plain = (bool, int, float, str, list, tuple, type(None))
    return {**{k: v for k, v in mine.items() if isinstance(v, plain)}, "scheduler": "exo"}


def _canonical(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Replace underscores by hyphens, as in ``exo.yaml``; Dask treats both alike."""
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
        raise ConfigError(
            f"configuration key 'exo.{key}': {value!r} is not a size: write a number of bytes, or "
            f"for example '2GB' or '64MiB'"
        ) from error


def _seconds(key: str, value: float | str) -> float:
    try:
        return float(parse_timedelta(value))
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"configuration key 'exo.{key}': {value!r} is not a time: write a number of seconds, "
            f"or for example '50ms' or '2s'"
        ) from error
