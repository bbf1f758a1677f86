"""What packages say of their requirements and versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests._data import run_python

ROOT = Path(__file__).parents[2]
NAMES = {"ray": "ray-core"}  # in conda, where the package named ray is all of it

if not (ROOT / ".ci").exists():
    pytest.skip("not a checkout", allow_module_level=True)


TOML = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_conda_recipe_has_the_requirements_of_the_package() -> None:
    recipe = yaml.safe_load((ROOT / ".ci" / "conda" / "recipe.yaml").read_text())
    bounds = {}
    for each in TOML["project"]["dependencies"]:
        name, bound = re.fullmatch(r"([a-z]+)(?:\[.*\])?>=(.+)", each).groups()
        bounds[NAMES.get(name, name)] = f">={bound}"
    found = dict(line.split() for line in recipe["requirements"]["run"])
    assert found == {"python": TOML["project"]["requires-python"], **bounds}


def test_cupy_is_one_that_sorts_right_if_memory_is_full() -> None:
    """Before 14.1.1 it did not; without CUDA's headers ("ctk") it compiles no kernel."""
    extras = TOML["project"]["optional-dependencies"]
    for name, cuda in (("gpu", 12), ("gpu13", 13)):
        assert f"cupy-cuda{cuda}x[ctk]>=14.1.1" in extras[name]


def test_the_version_comes_from_tags_and_starts_at_that_of_the_changelog() -> None:
    assert "version" in TOML["project"]["dynamic"]
    newest = re.search(r"^## (\S+)", (ROOT / "docs" / "changelog.md").read_text(), re.MULTILINE)
    assert TOML["tool"]["setuptools_scm"]["fallback_version"] == newest[1]


def test_a_program_beside_a_clone_finds_the_package(tmp_path: Path) -> None:
    (tmp_path / "dask_exo").mkdir()  # the clone
    program = tmp_path / "program.py"
    program.write_text("import dask_exo; print(dask_exo.get)")
    done = run_python(program)
    assert done.stdout == "dask_exo.get\n", done.stderr
