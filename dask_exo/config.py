"""Configuration: one frozen `Config`, read once from ``dask.config`` and checked.

Keys, units and defaults are in ``exo.yaml``, types in ``exo-schema.yaml``. Below the scheduler
nothing reads ``dask.config``.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Any

import dask.config
import yaml
from dask.utils import parse_bytes, parse_timedelta

from dask_exo.errors import ConfigError

CLUSTER = ("address", "log", "num-cpus", "num-gpus", "object-store-memory", "spill-directory")
"""Keys that are read only when this process connects to Ray."""

EFFECT = (
    (CLUSTER[2:], "address", None),
    (("shuffle.late-factor", "shuffle.late-floor"), "shuffle.speculation", True),
)
"""Keys, another key, and the value of that key without which the first ones have no effect."""


@functools.cache
def _document(name: str) -> dict[str, Any]:
    text = resources.files("dask_exo").joinpath(name).read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


def register_defaults() -> None:
    """Register keys and their defaults with Dask.

    The default address is that of the cluster whose job this program is, as Ray says in the
    environment.
    """
    defaults = _document("exo.yaml")
    address = os.environ.get("RAY_ADDRESS", "local")
    if address != "local" and not address.startswith("http"):  # the page for jobs
        defaults = {"exo": {**defaults["exo"], "address": address}}
    dask.config.update_defaults(defaults)


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


def _mode(_key: str, value: Any) -> str:
    """Undo YAML, which reads ``on`` as True."""
    return str({True: "on", False: "off"}.get(value, value))


def _key(key: str, convert: Callable[[str, Any], Any] | None = None) -> Any:
    """Declare a field that has the value of ``exo.<key>``."""
    return field(metadata={"key": key, "convert": convert})


@dataclass(frozen=True)
class Config:
    """The configuration of one run. Sizes in bytes, times in seconds; see ``exo.yaml``."""

    cluster: Mapping[str, Any]
    """Keys of `CLUSTER` that are set, as they were written."""
    settings: Mapping[str, Any]
    """Configuration that tasks see: values that differ from Dask's defaults."""
    address: str | None = _key("address")
    log: str | None = _key("log")
    num_cpus: int | None = _key("num-cpus")
    num_gpus: int | None = _key("num-gpus")
    object_store_memory: int | None = _key("object-store-memory", _bytes)
    spill_directory: str | None = _key("spill-directory")
    progress: str = _key("progress", _mode)
    engine: str = _key("engine")
    compile: str = _key("compile")
    local_memory: int | None = _key("local.memory", _bytes)
    bundle_target: float = _key("scheduler.bundle-target", _seconds)
    tasks_per_slot: int = _key("scheduler.tasks-per-slot")
    memory_fraction: float = _key("scheduler.memory-fraction")
    small_result: int = _key("scheduler.small-result", _bytes)
    shuffle_algorithm: str = _key("shuffle.algorithm")
    shuffle_memory_fraction: float = _key("shuffle.memory-fraction")
    shuffle_round_fraction: float = _key("shuffle.round-fraction")
    shuffle_most_objects: int = _key("shuffle.most-objects")
    shuffle_merge_limit: int | None = _key("shuffle.merge-limit", _bytes)
    shuffle_integrity: bool = _key("shuffle.integrity")
    shuffle_speculation: bool = _key("shuffle.speculation")
    late_factor: float = _key("shuffle.late-factor")
    late_floor: float = _key("shuffle.late-floor", _seconds)
    stream_policy: str = _key("stream.policy")
    stream_memory_fraction: float = _key("stream.memory-fraction")
    stream_target: int = _key("stream.target-partition-size", _bytes)
    share: float = _key("share")
    stall_timeout: float | None = _key("fault.stall-timeout", _seconds)
    node_timeout: float | None = _key("fault.node-timeout", _seconds)
    nondeterminism: str = _key("fault.nondeterminism")
    checkpoint_path: str | None = _key("checkpoint.path")
    checkpoint_keep: str = _key("checkpoint.keep")
    checkpoint_overhead: float = _key("checkpoint.overhead")
    gpu_per_task: float = _key("gpu.per-task")
    gpu_memory: int | None = _key("gpu.memory", _bytes)
    gpu_simulate: bool = _key("gpu.simulate")
    node_price: float | None = _key("report.node-price")
    live: bool = _key("report.live")
    prometheus: bool = _key("report.prometheus")

    @property
    def compares(self) -> bool:
        """True if recomputed values are compared with those computed before."""
        return self.nondeterminism != "ignore"

    @property
    def checks(self) -> bool:
        """True if tasks refuse inputs that have changed since they were computed."""
        return self.nondeterminism == "error"

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
        text = repr(keys)  # tells 1 from True, as the schema does
        values = _checked.get(text)
        if values is None:
            if dict(_leaves(keys)) != _defaults():  # a check imports jsonschema
                check(keys)
            _checked.clear()
            _checked[text] = values = _values(cls, dict(_leaves(keys)))
        return cls(cluster=_cluster(keys), settings=_settings(), **values)


@functools.cache
def _defaults() -> dict[str, Any]:
    return dict(_leaves(_document("exo.yaml")["exo"]))


_checked: dict[str, dict[str, Any]] = {}
"""Fields of the last configuration, by its text: a check takes a millisecond."""


def _values(cls: type[Config], keys: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Config` that are declared by `_key`."""
    if keys["num-gpus"] is None and keys["gpu.simulate"]:
        keys["num-gpus"] = 1
    values = {}
    for f in fields(cls)[2:]:
        key, convert = f.metadata["key"], f.metadata["convert"]
        value = keys[key]
        values[f.name] = value if convert is None or value is None else convert(key, value)
    return values


def check(keys: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless every key under ``exo`` is known and its value is allowed."""
    import jsonschema

    schema = _document("exo-schema.yaml")
    known = sorted(_defaults())
    for key in sorted(key for key, _ in _leaves(keys)):
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = (
                f"did you mean 'exo.{near[0]}'?" if near else f"known: exo.{', exo.'.join(known)}"
            )
            raise ConfigError(f"unknown configuration key 'exo.{key}': {hint}")
    for error in jsonschema.Draft7Validator(schema).iter_errors(keys):
        path = ".".join(str(p) for p in error.path)
        raise ConfigError(
            f"configuration key 'exo.{path}': {error.message}. docs/configuration.md has every "
            f"key with its unit and its default"
        )
    _check_effect(dict(_leaves(keys)))


def _check_effect(values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a key that has no effect because of another one."""
    defaults = _defaults()
    for keys, other, needed in EFFECT:
        ignored = [key for key in keys if values[key] != defaults[key]]
        if ignored and values[other] != needed:
            current, required = yaml_text(values[other]), yaml_text(needed)
            raise ConfigError(
                f"exo.{', exo.'.join(ignored)} has no effect while exo.{other} is {current}: "
                f"leave it out, or set exo.{other}: {required}"
            )


def without_effect(
    before: Mapping[str, Any] | None, now: Mapping[str, Any], from_files: Mapping[str, Any]
) -> list[str]:
    """Return keys of `CLUSTER` that are set ``now`` and differ from those of the connected cluster.

    ``before`` are the keys that were set when this process connected, None if other code connected.
    ``from_files`` are those of files and the environment, which an argument may have overridden.

    Examples
    --------
    >>> without_effect({"num-cpus": 2}, {"num-cpus": 3}, {})
    ['num-cpus']
    >>> without_effect({"num-cpus": 2}, {"num-cpus": 3}, {"num-cpus": 3})
    []
    >>> without_effect(None, {"num-cpus": 3}, {"num-cpus": 3})
    ['num-cpus']
    """
    if before is None:
        return list(now)
    return [k for k, value in now.items() if value not in (before.get(k), from_files.get(k))]


def from_files() -> dict[str, Any]:
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
    defaults = _defaults()
    current = dict(_leaves(_canonical(dask.config.get("exo"))))
    return {f"exo.{k}": v for k, v in current.items() if k not in defaults or v != defaults[k]}


def yaml_text(value: Any) -> str:
    """Return a value as it is written in a configuration file: ``null``, ``true``."""
    return str(yaml.safe_dump(value)).split("\n", 1)[0]


def _cluster(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: keys[key] for key in CLUSTER if keys.get(key) is not None}


def _settings() -> dict[str, Any]:
    """Return Dask's settings for tasks: plain values other than defaults, and our scheduler."""
    defaults = dict(_leaves(dask.config.merge(*dask.config.defaults)))
    plain = (bool, int, float, str, list, tuple, type(None))
    changed = {
        key: value
        for key, value in _leaves(dask.config.config)
        if isinstance(value, plain) and (key not in defaults or defaults[key] != value)
    }
    return {**changed, "scheduler": "exo"}


def _canonical(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Replace underscores by hyphens, as in ``exo.yaml``; Dask treats both alike."""
    return {
        k.replace("_", "-"): _canonical(v) if isinstance(v, Mapping) else v
        for k, v in dict(keys).items()  # other threads set keys meanwhile
    }


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in dict(tree).items():  # as in _canonical
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
