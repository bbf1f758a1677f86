"""What runs inside a task: computations, settings, code of the main program, annotations."""

from __future__ import annotations

import os
import textwrap
import warnings

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import ray

import dask_exo
from dask_exo.cluster.on_ray import check_submit_options
from dask_exo.report import recording
from tests._data import run_python

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FRAME = pd.DataFrame({"k": np.arange(1000) % 7, "v": np.arange(1000) * 1.0})


def total_of(n):
    ddf = dd.from_pandas(FRAME.iloc[:n], npartitions=3)
    return ddf.shuffle("k").v.sum().compute()


def test_a_computation_inside_a_task_runs_on_the_cluster() -> None:
    sizes = [10, 100, 1000, 500]  # more than there are slots: each gives up its own while it waits
    values = dask.compute(*[dask.delayed(total_of)(n) for n in sizes])
    assert values == tuple(FRAME.v.iloc[:n].sum() for n in sizes)


def test_two_levels_deep() -> None:
    def outer(n):
        return sum(dask.compute(*[dask.delayed(total_of)(n + i) for i in range(2)]))

    expected = FRAME.v.iloc[:10].sum() + FRAME.v.iloc[:11].sum()
    assert dask.delayed(outer)(10).compute() == expected


def test_tasks_see_the_settings_of_the_program() -> None:
    def setting(key):
        return dask.config.get(key, None)

    keys = ["array.slicing.split-large-chunks", "of.the.user", "scheduler"]
    with dask.config.set({"array.slicing.split-large-chunks": False, "of.the.user": {"a": [1]}}):
        found = dask.compute(*[dask.delayed(setting)(key) for key in keys])
    assert found == (False, {"a": [1]}, "exo")
    assert dask.delayed(setting)("of.the.user").compute() is None


def test_resources_that_the_cluster_lacks_are_said() -> None:
    with pytest.warns(UserWarning, match="no node of the cluster has {'CPU': 1, 'unobtainium': 1}"):
        check_submit_options({"resources": {"unobtainium": 1}})


def test_options_of_ray() -> None:
    with dask.annotate(ray_remote_args={"num_cpus": 2}):
        value = dask.delayed(os.getpid)()
    assert value.compute() != os.getpid()
    with dask.annotate(ray_remote_args={"colour": "red"}):
        value = dask.delayed(os.getpid)()
    with pytest.raises(dask_exo.errors.ConfigError, match="colour"):
        value.compute()


def test_functions_use_the_refs_and_actors_around_them() -> None:
    class Counter:
        def add(self, x):
            return x + 1

    ref, counter = ray.put(np.arange(3)), ray.remote(Counter).options(num_cpus=0).remote()
    double = ray.remote(lambda x: 2 * x)

    def total(x):
        return ray.get(ref).sum() + ray.get(double.remote(x)) + ray.get(counter.add.remote(x))

    kept = dask.delayed(total)(1).persist()
    assert dask.compute(kept, dask.delayed(total)(2)) == (7, 10)
    assert dask.delayed(ray.get)(ref).sum().compute() == 3  # a task gets a ref as it is


def test_without_optimization() -> None:
    x = da.arange(1000, chunks=100)
    y = ((x + 1) * 2)[::3].sum()
    assert y.compute(optimize_graph=False) == ((np.arange(1000) + 1) * 2)[::3].sum()
    bag = db.range(100, npartitions=5).map(lambda i: i * 2).filter(lambda i: i % 3 == 0)
    assert bag.compute(optimize_graph=False) == [i * 2 for i in range(100) if i * 2 % 3 == 0]


@pytest.mark.filterwarnings("ignore:Computing mixed collections")
def test_all_kinds_in_one_compute() -> None:
    ddf = dd.from_pandas(FRAME, npartitions=3)
    x = da.arange(1000, chunks=100)
    bag = db.range(100, npartitions=5)
    with recording() as stats:
        values = dask.compute(ddf.v.sum(), {"a": [x.sum(), 3]}, bag.sum(), dask.delayed(abs)(-1))
    assert values == (FRAME.v.sum(), {"a": [np.arange(1000).sum(), 3]}, sum(range(100)), 1)
    assert stats.calls > 0


def test_raw_graphs_and_nested_keys() -> None:
    graph = {"x": 1, ("y", 0): (abs, -2), "z": (sum, ["x", ("y", 0)]), "w": "z"}
    assert dask_exo.get(graph, [["z", ["x"]], ("y", 0), "w"]) == ((3, (1,)), 2, 3)
    assert dask_exo.get(graph, "w", num_workers=3, any_keyword="is taken") == 3


MAIN = """
    import dask, dask_exo, numpy as np, pandas as pd
    import dask.dataframe as dd

    class Point:
        def __init__(self, x):
            self.x = x
        def __eq__(self, other):
            return self.x == other.x

    SCALE = 3

    def scaled(part):
        return part.assign(w=part.v * SCALE)

    def point(x):
        return Point(x * SCALE)

    if __name__ == "__main__":
        with dask_exo.enable(num_cpus=1, object_store_memory="100MB"):
            ddf = dd.from_pandas(pd.DataFrame({"v": np.arange(10)}), npartitions=2)
            assert ddf.map_partitions(scaled).w.sum().compute() == 135
            assert dask.delayed(point)(2).compute() == Point(6)
            SCALE = 4
            offset = 1
            values = [dask.delayed(lambda x: x * SCALE + offset)(i) for i in range(3)]
            assert dask.compute(*values) == (1, 5, 9)
        print("fine")
"""


def test_functions_and_classes_of_the_main_program(tmp_path) -> None:
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(MAIN))
    done = run_python(script)
    assert done.stdout == "fine\n", done.stderr


def test_a_forked_process_is_told_that_it_cannot_compute() -> None:
    assert dask.delayed(abs)(-1).compute() == 1
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks where there are threads
        child = os.fork()
    if not child:
        try:
            dask.delayed(abs)(-1).compute()
        except dask_exo.errors.ClusterError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"was forked" in os.read(read, 1000)
