"""What is trusted and what is not: see docs/security.md."""

from __future__ import annotations

import ast
import stat
from pathlib import Path

import pytest

import dask_exo
from dask_exo.cluster.spilling import own, usable

PACKAGE = Path(dask_exo.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
UNPICKLES = {  # what was pickled by this program, or by one of its tasks
    "checkpoint/store.py", "client/cluster.py", "client/stored.py", "errors.py",
    "partitions/wire_format.py", "cluster/ownership.py", "execution/worker.py",
    "cluster/on_ray/translation.py", "pipeline/mailbox.py", "pipeline/sources.py",
    "shuffle/blocks.py",
}  # fmt: skip
# from lists of arguments, without a shell
RUNS_PYTHON = {"cli/bench.py", "partitions/gpu/arrays.py"}


def called(tree: ast.AST) -> set[str]:
    """Names of what is called, with what stands before the dot."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def imported(tree: ast.AST) -> set[str]:
    return {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
    }


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_shell_no_eval_no_foreign_pickles(path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = path.relative_to(PACKAGE).as_posix()
    runs = {"subprocess", "pty", "commands", "shlex"} & imported(tree)
    assert not runs or (runs, name in RUNS_PYTHON) == ({"subprocess"}, True)
    assert not any(isinstance(node, ast.keyword) and node.arg == "shell" for node in ast.walk(tree))
    calls = called(tree)
    assert not {"eval", "exec", "os.system", "os.popen", "yaml.load"} & calls
    assert not {name for name in calls if name.startswith(("os.exec", "os.spawn"))}
    if {"pickle.loads", "pickle.load", "cloudpickle.loads", "cloudpickle.load"} & calls:
        assert name in UNPICKLES


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_spilled_can_be_read_by_this_user_only(tmp_path: Path) -> None:
    shared = tmp_path / "scratch"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)  # a disk for all users of a machine
    made = own(usable(str(shared)))
    assert made.parent == shared
    assert mode(made) == 0o700
    assert mode(shared) == 0o777  # it is not ours
    assert mode(usable(str(tmp_path / "new"))) == 0o700
