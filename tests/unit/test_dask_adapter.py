"""Each private name that we need of Dask, Ray and pandas, so that one that moves fails by name."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import ray
from packaging.version import parse as version

import dask_exo
from dask_exo.dask_adapter import ROLES

PACKAGE = Path(dask_exo.__file__).parent


def imported(path: Path) -> list[tuple[str, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__"
        for alias in node.names
    ]


FOREIGN = [
    (module, name)
    for path in (
        PACKAGE / "dask_adapter.py",
        PACKAGE / "cluster" / "on_ray" / "futures.py",
        PACKAGE / "partitions" / "kernels" / "argsort.py",
    )
    for module, name in imported(path)
    if module.split(".")[0] in ("dask", "distributed", "pandas", "ray")
]


@pytest.mark.parametrize(("module", "name"), FOREIGN, ids=[f"{m}.{n}" for m, n in FOREIGN])
def test_a_private_name_is_where_we_import_it_from(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_what_pairs_of_a_generator_need_of_ray_is_there() -> None:
    assert hasattr(ray._raylet.CoreWorker, "peek_object_ref_stream")
    if version(ray.__version__) >= version("2.60"):
        assert hasattr(ray.ObjectRefGenerator, "_get_next_ref_n")
        assert hasattr(ray.ObjectRefGenerator, "_consume_next_ref_n")


def test_the_switch_of_rays_debugger_is_there() -> None:
    assert hasattr(ray._private.worker, "_worker_logs_enabled")


def test_what_tells_attempts_apart_is_there_in_ray() -> None:
    assert hasattr(ray._raylet.CoreWorker, "get_current_task_attempt_number")
    assert hasattr(ray.runtime_context.RuntimeContext, "get_session_name")
    for verb in ("put", "get", "list", "del"):
        assert hasattr(ray.experimental.internal_kv, f"_internal_kv_{verb}")


def test_what_tells_whether_values_are_read_is_there_in_ray() -> None:
    assert hasattr(ray._raylet.CoreWorker, "get_all_reference_counts")


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        ("SimpleShuffle", ["_filtered", "_partitions"]),
        ("HashJoinP2P", ["_filtered", "_partitions"]),
        ("Expr", ["_name", "walk", "_parameters"]),
        ("Task", ["func", "args", "dependencies"]),
        ("ArrowDatasetEngine", ["_read_table"]),
        ("ReadParquetFSSpec", ["_dataset_info", "_plan", "_partitions", "engine"]),
    ],
)
def test_the_attributes_that_the_rewrite_reads_are_there(cls: str, names: list[str]) -> None:
    adapter = importlib.import_module("dask_exo.dask_adapter")
    for name in names:
        assert hasattr(getattr(adapter, cls), name), f"{cls}.{name}"


@pytest.mark.parametrize(
    "parameters",
    [
        (
            "SimpleShuffle",
            {
                "frame",
                "partitioning_index",
                "npartitions_out",
                "ignore_index",
                "_partitions",
                "original_partitioning_index",
            },
        ),
        (
            "HashJoinP2P",
            {
                "left",
                "right",
                "how",
                "left_on",
                "right_on",
                "left_index",
                "right_index",
                "suffixes",
                "indicator",
                "shuffle_left_on",
                "shuffle_right_on",
                "_npartitions",
            },
        ),
        ("RepartitionToFewer", {"frame", "new_partitions"}),
        ("FromPandas", {"frame"}),
        ("FromMap", {"func", "iterables"}),
        ("FusedIO", {"_expr"}),
        ("DelayedExpr", {"obj"}),
    ],
    ids=lambda p: p[0],
)
def test_the_operands_that_the_rewrite_reads_are_there(parameters) -> None:
    cls, names = parameters
    adapter = importlib.import_module("dask_exo.dask_adapter")
    assert names <= set(getattr(adapter, cls)._parameters)


@pytest.mark.parametrize("name", ROLES)
def test_a_function_of_dasks_shuffles_is_where_we_look_for_it(name: str) -> None:
    module = importlib.import_module(ROLES[name][0])
    outer, _, inner = name.partition(".<locals>.")
    found = getattr(module, outer)
    if inner:
        found = found()  # it makes the function
    assert (found.__module__, found.__qualname__) == (ROLES[name][0], name)


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        (
            "distributed.Client",
            ["_close", "_gather_remote", "_graph_to_futures", "_release_key", "_send_to_scheduler"],
        ),
        ("distributed.Worker", ["_get_client", "close", "execute", "get_data", "update_data"]),
        ("distributed.Scheduler", ["client_releases_keys", "identity", "update_graph"]),
        ("distributed.SpecCluster", ["_close", "_correct_state", "_start"]),
        ("distributed.worker_state_machine.WorkerState", ["_get_task_finished_msg"]),
        ("distributed.Future", ["_result"]),
    ],
)
def test_what_the_client_overrides_and_calls_is_there(name: str, methods: list[str]) -> None:
    module, _, cls = name.rpartition(".")
    for method in methods:
        assert hasattr(getattr(importlib.import_module(module), cls), method), f"{name}.{method}"
