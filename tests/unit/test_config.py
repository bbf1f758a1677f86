"""Configuration is read once, checked, and wrong keys are refused by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import dask
import pytest
import yaml

from dask_exo.config import Config, _leaves, without_effect
from dask_exo.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"


def test_the_defaults_are_valid() -> None:
    config = Config.current()
    assert config.shuffle_algorithm == "auto"
    assert config.bundle_target == 0.05


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("exo.shufle.algorithm", "push", "did you mean 'exo.shuffle.algorithm'"),
        ("exo.shuffle.algoritm", "push", "did you mean 'exo.shuffle.algorithm'"),
        ("exo.nonsense", 1, "exo.nonsense"),
        ("exo.scheduler.tasks-per-slot", 0, "tasks-per-slot"),
        ("exo.object-store-memory", "much", "'much' is not a size"),
        ("exo.scheduler.bundle-target", "soon", "'soon' is not a time"),
    ],
)
def test_a_wrong_key_or_value_is_named(key: str, value: object, said: str) -> None:
    with dask.config.set({key: value}), pytest.raises(ConfigError, match=said):
        Config.current()


@pytest.mark.parametrize(
    ("asked", "now", "given", "idle"),
    [
        ({"num-cpus": 2}, {"num-cpus": 2}, {}, []),
        ({"num-cpus": 2}, {}, {}, []),
        ({"num-cpus": 2}, {"num-cpus": 3}, {}, ["num-cpus"]),
        ({}, {"spill-directory": "/a", "num-gpus": 1}, {}, ["spill-directory", "num-gpus"]),
        ({"num-cpus": 2}, {"num-cpus": 8}, {"num-cpus": 8}, []),
        ({"num-cpus": 2}, {"num-cpus": 9}, {"num-cpus": 8}, ["num-cpus"]),
        (None, {"num-cpus": 8}, {"num-cpus": 8}, ["num-cpus"]),
        (None, {}, {}, []),
    ],
)
def test_what_asks_for_another_cluster_has_no_effect(asked, now, given, idle) -> None:
    assert without_effect(asked, now, given) == idle


def test_what_is_asked_of_a_cluster_is_known_in_either_spelling() -> None:
    with dask.config.set({"exo.num-cpus": 2, "exo.spill_directory": "/a"}):
        assert Config.current().cluster == {"num-cpus": 2, "spill-directory": "/a"}


def test_the_reference_page_has_every_key() -> None:
    spec = importlib.util.spec_from_file_location("conf", DOCS / "conf.py")
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    rows = conf.configuration_table().splitlines()[2:]
    tree = yaml.safe_load((DOCS.parent / "dask_exo" / "exo.yaml").read_text(encoding="utf-8"))
    assert len(rows) == sum(1 for _ in _leaves(tree))
    for row in rows:
        key, _, _, meaning = row.strip("| ").split(" | ", 3)
        assert len(meaning.split()) >= 4, key
    shown = {row.split("`")[1]: row.split("`")[3] for row in rows}
    assert shown["exo.shuffle.late-factor"] == "DASK_EXO__SHUFFLE__LATE_FACTOR"
    assert conf.effect_table().count("exo.address") == 1


def test_underscores_and_hyphens_are_one_spelling() -> None:
    with dask.config.set({"exo.scheduler.tasks_per_slot": 5}):
        assert Config.current().tasks_per_slot == 5


def test_the_environment_sets_keys_that_have_defaults(monkeypatch) -> None:
    import subprocess
    import sys

    code = "from dask_exo.config import Config; import dask_exo; print(Config.current().num_cpus)"
    monkeypatch.setenv("DASK_EXO__NUM_CPUS", "3")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "3"


def test_a_key_that_another_thread_sets_meanwhile_does_no_harm() -> None:
    class Slow(str):
        __hash__ = str.__hash__

        def __ne__(self, other: object) -> bool:
            dask.config.set({"set-meanwhile": 1})
            return True

    with dask.config.set({"array.chunk-size": Slow("1MiB")}):
        try:
            assert Config.current().settings["array.chunk-size"] == "1MiB"
            assert "set-meanwhile" in dask.config.config
        finally:
            dask.config.config.pop("set-meanwhile", None)
