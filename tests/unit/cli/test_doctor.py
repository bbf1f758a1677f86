"""``dask exo doctor`` finds faults that are planted, and nothing where there is none."""

from __future__ import annotations

from dataclasses import replace

import dask
import dask.threaded
import pytest
from click.testing import CliRunner

import dask_exo
from dask_exo.cli import doctor, main
from dask_exo.cli.doctor import diagnose, gather
from dask_exo.cli.doctor_checks import (
    Facts,
    Finding,
    Machine,
    ProgramFacts,
    Speed,
)
from dask_exo.client import Client
from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import DiskUsage, Node
from dask_exo.testing import InlineFutures

GB = 10**9
VERSIONS = {"python": "3.12.1", "dask-exo": "0.1.0", "ray": "2.60.0", "dask": "2026.8.0"}
DISK = Speed("/scratch", "ext4", total=1000 * GB, free=500 * GB, write=1e9, read=2e9)
WELL = Machine(
    "n1",
    VERSIONS,
    cores=8,
    slots=8,
    memory=64 * GB,
    store=20 * GB,
    shared=32 * GB,
    spill=DISK,
    open_files=65536,
    huge_pages="madvise",
)
PROGRAM = ProgramFacts(
    {"python": ">=3.11", "ray": ">=2.50", "dask": ">=2026.1"}, VERSIONS, algorithms=("push",)
)
FACTS = Facts(PROGRAM, (WELL,))
OLD = replace(WELL, name="n2", versions={**VERSIONS, "dask": "1"})


def found(facts: Facts) -> list[Finding]:
    return [one for one in diagnose(facts).findings if one.level != "ok"]


def here(**changes: object) -> Facts:
    return replace(FACTS, machines=(replace(WELL, **changes),))


def spill(**changes: object) -> Facts:
    return here(spill=replace(DISK, **changes))


def program(**changes: object) -> Facts:
    made = replace(PROGRAM, **changes)
    return replace(FACTS, program=made, machines=(replace(WELL, versions=made.versions),))


def test_of_a_cluster_that_does_not_answer_no_token_is_told() -> None:
    facts = replace(FACTS, unreachable="no Ray answers", address="h:1")
    assert "token" not in [one.name for one in diagnose(facts).findings]
    facts = replace(facts, token="missing")
    assert "token" in [one.name for one in found(facts)]


def test_nothing_is_found_where_all_is_well() -> None:
    assert found(FACTS) == []
    assert not diagnose(FACTS).failed
    assert "0 to look at, 0 failed" in str(diagnose(FACTS))


PLANTED = {
    "tiny /dev/shm": (here(shared=64 * 2**20), "warn", "/dev/shm", "64.00 MiB", "--shm-size"),
    "store of all memory": (here(store=31 * GB, memory=32 * GB), "warn", "memory", "", "lower"),
    "more slots than cores": (here(slots=9), "warn", "slots", "9 slots on 8", "exo.num-cpus: 8"),
    "unwritable spill directory": (
        spill(error="Read-only file system"), "fail", "spilling", "/scratch", "exo.spill-directory"
    ),
    "full spill disk": (spill(free=50 * GB), "fail", "spilling", "46.57 GiB", "free space"),
    "small spill disk": (spill(total=99 * GB, free=9 * GB), "warn", "spilling", "", "it is full"),
    "spilling to memory": (spill(kind="tmpfs"), "warn", "spilling", "tmpfs", "on a disk"),
    "spilling to a network": (spill(kind="nfs4"), "warn", "spilling", "nfs4", "local disk"),
    "slow spill disk": (spill(write=20e6), "warn", "spilling", "19.07 MiB/s", "quicker"),
    "few open files": (here(open_files=1024), "warn", "open files", "1024", "ulimit -n"),
    "huge pages always": (here(huge_pages="always"), "warn", "huge pages", "2 MB", "madvise"),
    "plain start": (
        here(lacks=("PYTHONHASHSEED=0",)),
        "warn", "environment", "without PYTHONHASHSEED", "export PYTHONHASHSEED=0 before"
    ),
    "GPU without cupy": (here(gpus=1), "warn", "GPU", "Ray knows 1", "dask-exo[gpu]"),
    "GPU that is not there": (
        here(gpus=2, cupy=True, devices=1), "warn", "GPU", "sees 1", "exo.num-gpus"
    ),
    "clock ahead": (here(skew=90.0, doubt=0.01), "warn", "clock", "+90.00 s", "chrony"),
    "old Ray": (
        program(versions={**VERSIONS, "ray": "2.40.0"}), "fail", "versions", "2.40.0", '"ray>=2.50"'
    ),
    "no Dask": (
        program(versions={"python": "3.12.1", "ray": "2.60.0"}), "fail", "versions",
        "dask is not installed", "pip install"
    ),
    "shuffle method overridden": (program(method="disk"), "warn", "shuffle", "'disk'", "tasks"),
    "unknown shuffle method": (program(method="bubble"), "fail", "shuffle", "'bubble'", "tasks"),
    "unknown algorithm": (program(algorithm="pull"), "fail", "shuffle", "'pull'", "auto"),
    "scheduler overridden": (
        program(scheduler="threads"), "warn", "scheduler", "'threads'", "dask_exo.enable()"
    ),
    "wrong key": (
        program(errors=("unknown 'exo.x'",)), "fail", "configuration", "exo.x", "configuration.md"
    ),
    "no cluster": (
        replace(FACTS, unreachable="no Ray answers"), "fail", "cluster", "answers", "install.md"
    ),
    "lost token": (replace(FACTS, token="missing"), "fail", "token", "no token", "auth_token"),
    "open cluster": (
        replace(FACTS, private=False, address="h:1"), "warn", "token", "whoever", "RAY_AUTH_MODE"
    ),
    "other versions elsewhere": (
        replace(FACTS, machines=(WELL, OLD)),
        "fail", "same versions", "n2 has dask 1, this process has 2026.8.0", "install the same"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_the_one_that_is_found(fault: str) -> None:
    facts, level, name, what, remedy = PLANTED[fault]
    (one,) = found(facts)
    assert (one.level, one.name) == (level, name)
    assert what in one.what
    assert remedy in one.remedy
    assert diagnose(facts).failed == (level == "fail")
    assert f"→ {one.remedy}" in str(diagnose(facts))


def test_devices_that_ray_hides_are_not_missed() -> None:
    assert found(here(gpus=2, cupy=True, devices=-1)) == []


def test_a_clock_that_may_be_right_is_not_blamed() -> None:
    assert found(here(skew=1.5, doubt=0.6)) == []


class Spilling(InlineFutures):
    """Spills to a directory."""

    def __init__(self, path: str) -> None:
        super().__init__([Node("n1", 2, 10**6), Node("n2", 2, 10**6)])
        self.path = path

    def disks(self) -> list[DiskUsage]:
        return [DiskUsage(self.path, 0, 10**12)]


def test_facts_are_those_of_this_machine(tmp_path) -> None:
    facts = gather(Spilling(str(tmp_path / "spill")))
    assert [m.slots for m in facts.machines] == [2, 2]
    one = facts.machines[0]
    assert one.versions.items() >= {"python": doctor.platform.python_version()}.items()
    assert one.versions["dask"] == dask.__version__
    assert one.spill is not None
    assert not one.spill.error
    assert one.spill.write > 0
    assert one.spill.read > 0
    assert abs(one.skew) <= one.doubt + 0.01
    assert list(tmp_path.rglob("*")) == [tmp_path / "spill"]  # the file is gone
    assert facts.program.required.keys() >= {"python", "ray", "dask", "pandas"}
    names = ("versions", "same versions", "clock")
    assert {one.level for one in diagnose(facts).findings if one.name in names} == {"ok"}


def test_a_directory_that_cannot_be_written_is_a_fact() -> None:
    assert doctor.speed("/proc/nowhere").error


def test_settings_that_are_overridden_are_facts() -> None:
    changed = {
        "scheduler": "threads",
        "dataframe.shuffle.method": "disk",
        "exo.shuffle.algoritm": 1,
    }
    with dask.config.set(changed, scheduler="threads"):
        facts = gather(InlineFutures())
    bad = {one.name: one.what for one in diagnose(facts).findings if one.level != "ok"}
    assert "'threads'" in bad["scheduler"]
    assert "'disk'" in bad["shuffle"]
    assert "did you mean 'exo.shuffle.algorithm'" in bad["configuration"]
    assert bad["cluster"] == "not tried with this configuration"
    for ours in ("exo", dask_exo.get, Client.__new__(Client)):
        with dask.config.set(scheduler=ours):
            assert gather(InlineFutures()).program.scheduler == "exo"
    with dask.config.set(scheduler=dask.threaded.get):
        assert "get" in gather(InlineFutures()).program.scheduler


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        ({}, "off"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"}, "off"),
        ({"RAY_AUTH_MODE": "token"}, "missing"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x"}, "used"),
    ],
)
def test_tokens(environment, state, monkeypatch, tmp_path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert on_ray.token() == state
    if state == "missing":
        (tmp_path / "token").write_text("x")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
        assert on_ray.token() == "used"


def test_the_command_tells_and_ends_with_1_if_something_fails() -> None:
    if on_ray.running():
        pytest.skip("another test of this process runs Ray")
    done = CliRunner().invoke(main.main, ["doctor", "--spill-directory", "/proc/nowhere"])
    assert done.exit_code == 1
    assert "FAIL  cluster" in done.output
    assert "FAIL  spilling      /proc/nowhere cannot be written" in done.output
    version = CliRunner().invoke(main.main, ["--version"])
    assert version.output.startswith("dask-exo, version ")
