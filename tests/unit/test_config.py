"""Configuration is read once, checked, and wrong keys are refused by name."""

from __future__ import annotations

import dask
import pytest

from dask_exo.config import Config
from dask_exo.errors import ConfigError


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
