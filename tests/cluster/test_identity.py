"""Instances of classes that only the main program has are those of its own classes everywhere."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import dask
import pytest

from tests._data import run_python

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).with_name("identity.py")
LEAST = {"ray": 36, "pipeline": 2, "threads": 32}  # things that are looked at


@functools.cache
def found(engine: str) -> dict[str, bool]:
    done = run_python("-W", "ignore", PROGRAM, engine)
    assert done.returncode == 0, done.stderr
    same: dict[str, bool] = json.loads(done.stdout.splitlines()[-1])
    return same


@pytest.mark.parametrize("engine", LEAST)
def test_what_comes_back_is_of_the_class_it_went_as(engine: str) -> None:
    same = found(engine)
    assert len(same) >= LEAST[engine]
    assert [name for name, is_same in same.items() if not is_same] == []


def test_refs_and_actors_inside_of_values_stay_alive(cluster) -> None:
    ray = pytest.importorskip("ray")

    class Counter:
        def count(self) -> int:
            return 7

    def holding() -> dict[str, object]:
        actor = ray.remote(Counter).options(num_cpus=0).remote()
        return {"ref": ray.put([1, 2]), "actor": actor}

    def read(held: dict[str, object]) -> list[object]:
        return [ray.get(held["ref"]), ray.get(held["actor"].count.remote())]

    with dask.config.set({"exo.engine": "ray"}):
        held = dask.delayed(holding)().persist()
        assert dask.delayed(read)(held).compute() == [[1, 2], 7]
        found = held.compute()
    assert read(found) == [[1, 2], 7]


def test_a_long_pickle_comes_back_whole(cluster) -> None:
    words = [f"word {i}" for i in range(100_000)]
    with dask.config.set({"exo.engine": "ray"}):
        assert dask.delayed(lambda: [*words, {1}])().compute() == [*words, {1}]
