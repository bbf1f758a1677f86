"""Disks that fill up: who is stopped, when, and what is told."""

from __future__ import annotations

import shutil

import dask
import dask.dataframe as dd
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo import Scheduler
from dask_exo.cluster.futures import DiskUsage, Node
from dask_exo.cluster.on_ray.node_state import look
from dask_exo.cluster.spilling import usable
from dask_exo.cluster.waiting import drive
from dask_exo.errors import OutOfMemoryError, SpillError
from dask_exo.execution.worker import run_map
from dask_exo.report import recording
from dask_exo.shuffle.blocks import merge, pack
from dask_exo.shuffle.choose import Limits
from dask_exo.shuffle.map_stage import Refs
from dask_exo.shuffle.run_shuffle import find_full_disk, run_shuffle
from dask_exo.shuffle.spec import Receipt, Spec, Tally
from dask_exo.testing import Cost, InlineFutures, SimFutures

places = st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.integers(0, 99))


@given(
    st.lists(places, unique_by=lambda p: p[0]),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 99)),
)
def test_a_disk_is_short_only_where_spilled_values_grow(found, before) -> None:
    disks = [DiskUsage(path, used, room, node="10.0.0.1") for path, used, room in found]
    full = find_full_disk({f"{path!r} on 10.0.0.1": n for path, n in before.items()}, disks, 50)
    filling = [d for d in disks if d.path in before and d.used > before[d.path] and d.room < 50]
    assert (full is None) == (not filling)
    assert full is None or full.room == min(d.room for d in filling)


def test_the_files_of_a_node_are_what_it_has_spilled(tmp_path) -> None:
    path = usable(str(tmp_path / "spill"))
    folder = path / "ray_spilled_objects_n1"
    assert look(path, "n1").used == 0
    folder.mkdir()
    (path / "other").write_bytes(b"no value")
    (folder / "x").write_bytes(b"12345")
    (folder / "y").write_bytes(b"123")
    found = look(path, "n1")
    assert (found.path, found.used) == (str(path), 8)
    assert 0 < found.room < shutil.disk_usage(path).free


def test_a_directory_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpillError, match=r"exo\.spill-directory='.*/file/sub' cannot be written"):
        usable(str(tmp_path / "file" / "sub"))


class Filling:
    """A cluster whose disk gets ``each`` bytes with every task, until somebody has enough."""

    size, each = 10**6, 10_000

    def disks(self):
        used = min(self.calls * self.each, self.size)
        return [DiskUsage("/spill", used, room=self.size - used)]


class Inline(Filling, InlineFutures):
    """Plain calls; each look at the clock takes a second."""

    ticks = 0

    @property
    def now(self) -> float:
        self.ticks += 1
        return float(self.ticks)


class Sim(Filling, SimFutures):
    """Simulated nodes."""


def cut(owned, *frames):
    frame = pd.concat(frames)
    ids = (frame["k"] % owned[-1].stop).to_numpy().astype("uint16")
    return [*pack(frame, ids, owned), Receipt(Tally(len(frame)), 16 * len(frame), 1.0)]


def steps(f, rows: int, name: str):
    spec = Spec(4, tuple(f.nodes()), cut, merge)
    frames = [pd.DataFrame({"k": range(rows), "n": 1}) for _ in range(60)]
    limits = Limits("push", round_fraction=0.001, bundle_target=1e-9)
    return run_shuffle(f, Refs([f.put(x) for x in frames]), spec, limits, name)


def test_a_shuffle_is_stopped_before_the_disk_is_full() -> None:
    f = Inline([Node("a", 2, 10**6, disk=10**9)])
    message = r"shuffle sort-7 was stopped before the disk of '/spill' is full: .*need 244.14 kiB"
    with pytest.raises(SpillError, match=message):
        drive(f, steps(f, 20, "sort-7"))
    assert f.disks()[0].room > 0
    roomy = Inline([Node("a", 2, 10**6, disk=10**9)])
    roomy.size = 10**9
    assert drive(roomy, steps(roomy, 20, "sort-7")).tally.rows == 1200


def test_the_largest_shuffle_is_stopped_and_others_go_on() -> None:
    f = Inline([Node("a", 2, 10**6, disk=10**9)])
    f.each = 6000
    small, large = steps(f, 20, "small"), steps(f, 40, "large")
    with pytest.raises(SpillError, match="shuffle large was stopped"):
        for _ in zip(small, large, strict=False):
            pass
    f.each = 0  # what it held is let go
    assert drive(f, small).tally.rows == 1200


def test_a_stopped_computation_releases_all_values() -> None:
    f = Sim([Node("a", 2, 10**6, disk=10**9)], lambda call: Cost(1.0, 1000))
    ddf = dd.from_pandas(pd.DataFrame({"k": range(600)}), npartitions=100)
    settings = {"exo.shuffle.algorithm": "push", "exo.scheduler.bundle-target": 0}
    with dask.config.set({**settings, "exo.shuffle.round-fraction": 1e-5}):
        with pytest.raises(SpillError, match="was stopped before the disk"):
            ddf.shuffle("k").compute(scheduler=Scheduler(f))
        f.wait([], timeout=10)  # tasks that run keep what they take
        assert f.live == 0
        f.size = 10**9
        assert len(ddf.shuffle("k").compute(scheduler=Scheduler(f))) == 600


class Tight(InlineFutures):
    """A cluster of nodes with memory for a map only where it has some slots to itself."""

    def __init__(self, nodes: int, needs: int, after: int = 0) -> None:
        super().__init__([Node(f"n{i}", 4, 10**9) for i in range(nodes)])
        self.needs, self.after, self.had, self.merges = needs, after, [], []

    def stream(self, count, fn, *args, node=None, options=None):
        self.merges.append((options or {}).get("num_cpus", 1))
        return super().stream(count, fn, *args)

    def split(self, count, fn, *args, node=None, options=None):
        if fn is not run_map:
            return super().split(count, fn, *args)
        slots = (options or {}).get("num_cpus", 1)
        self.had.append(slots)
        if len(self.had) > self.after and slots < self.needs:
            return super().split(count, fail)
        return super().split(count, fn, *args)


def fail():
    raise OutOfMemoryError("killed")


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("algorithm", ["simple", "push", "riffle", "two-level", "magnet"])
def test_maps_that_lack_memory_run_again_with_more_slots(algorithm, nodes) -> None:
    df = pd.DataFrame({"a": range(1000)})
    for needs in (2, 4):
        futures = Tight(nodes, needs)
        with dask.config.set({"exo.shuffle.algorithm": algorithm}), recording() as stats:
            shuffled = dd.from_pandas(df, npartitions=30).shuffle("a", npartitions=7)
            found = shuffled.compute(scheduler=Scheduler(futures))
        assert sorted(found.a) == list(df.a)
        assert [event.slots for event in stats.gave_way] == [2, 4][: needs // 2]
        assert set(futures.had[-10:]) == {needs}  # all further maps, too
        assert set(futures.merges) <= {needs}


@pytest.mark.parametrize(("algorithm", "nodes"), [("simple", 1), ("push", 3), ("two-level", 3)])
def test_later_maps_that_lack_memory_run_again(algorithm, nodes) -> None:
    df = pd.DataFrame({"a": range(1000)})
    futures = Tight(nodes, 2, after=20)
    with dask.config.set({"exo.shuffle.algorithm": algorithm}):
        shuffled = dd.from_pandas(df, npartitions=60).shuffle("a", npartitions=7)
        found = shuffled.compute(scheduler=Scheduler(futures))
    assert sorted(found.a) == list(df.a)


def test_a_map_that_lacks_memory_alone_says_what_to_change() -> None:
    futures = Tight(1, 5)
    shuffled = dd.from_pandas(pd.DataFrame({"a": range(100)}), npartitions=9).shuffle("a")
    with pytest.raises(OutOfMemoryError, match=r"a map of a shuffle was stopped .* blocksize="):
        shuffled.compute(scheduler=Scheduler(futures))
