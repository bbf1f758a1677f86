"""What pipelines begin with."""

from __future__ import annotations

import threading
import weakref
from itertools import pairwise
from pathlib import Path

import dask
import dask.bag as db
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.config import Config
from dask_exo.errors import InputError, PipelineError
from dask_exo.execution.persisted import Promise, Remote
from dask_exo.pipeline import from_files, of
from dask_exo.pipeline.sources import (
    AHEAD,
    MANY,
    ChainedSources,
    as_completed,
    group_by_bytes,
    list_files,
    source_of,
    start_sources,
)
from dask_exo.pipeline.streaming.blocks import Block


def pieces(source):
    """All that come, and whether they are to be made."""
    found, makes = source.start(Config.current(), lambda value: value)
    return [piece for piece in found if piece is not None], makes


@given(st.lists(st.integers(0, 50)), st.integers(1, 60))
def test_files_go_together_up_to_a_size(sizes, target) -> None:
    groups = list(group_by_bytes(sizes, target))
    assert [i for group in groups for i in group] == list(range(len(sizes)))
    assert all(len(g) == 1 or sum(sizes[i] for i in g) <= target for g in groups)
    for one, other in pairwise(groups):
        assert sum(sizes[i] for i in one) + sizes[other.start] > target


def test_files_are_found_by_name_directory_and_pattern(tmp_path) -> None:
    for i, name in enumerate(["b.png", "a.png", "c.txt", "deep/d.png"]):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * (i + 1))
    everything = list_files(tmp_path, {})
    assert [n for _, n in everything] == [2, 1, 3, 4]
    assert list_files(f"{tmp_path}/*.png", {}) == everything[:2]
    assert list_files([tmp_path / "c.txt", tmp_path / "deep"], {}) == everything[2:]
    with pytest.raises(InputError, match="no such file"):
        list_files(str(tmp_path / "*.gif"), {})
    with fsspec.open("memory://some/file.bin", "wb") as file:
        file.write(b"12345")
    assert list_files("memory://some", {}) == [("memory:///some/file.bin", 5)]
    assert repr(from_files(tmp_path, partition_size=4)) == "Pipeline of 3 partitions: read (1 CPU)"


def test_files_are_split_among_slots(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "dask_exo.scheduler.on_ray.running", lambda: False
    )  # another test may run one
    for i in range(40):
        (tmp_path / f"{i}").write_bytes(b"x" * 10**6)
    with dask.config.set({"exo.num-cpus": 5}):
        assert "of 20 partitions" in repr(from_files(tmp_path))
    with dask.config.set({"exo.num-cpus": 100}):
        assert "of 40 partitions" in repr(from_files(tmp_path))
    with dask.config.set({"exo.num-cpus": 1, "exo.stream.target-partition-size": "4MB"}):
        assert "of 10 partitions" in repr(from_files(tmp_path))


@pytest.fixture
def one_file(tmp_path):
    frame = pd.DataFrame({"n": np.arange(200_000), "x": np.arange(200_000) / 2})
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=10_000)
    return frame, str(tmp_path)


def test_a_file_is_read_by_all_slots(one_file) -> None:
    frame, path = one_file
    ddf = dd.read_parquet(path)
    assert ddf.npartitions == 1
    with dask.config.set({"exo.num-cpus": 2}):
        for some, expected in ((ddf, frame), (ddf[ddf.n > 99_999][["x"]], frame[100_000:][["x"]])):
            source = source_of(some)
            assert source.count > 1
            found, _ = pieces(source)
            rows = pd.concat([piece.value() for piece in found])
            pd.testing.assert_frame_equal(
                rows.reset_index(drop=True), expected.reset_index(drop=True)
            )


def test_a_broken_file_is_found_by_the_task_that_reads_it(one_file) -> None:
    _, path = one_file
    for name in "bc":
        Path(path, f"{name}.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with dask.config.set({"exo.num-cpus": 4}):
        source = source_of(dd.read_parquet(path, aggregate_files=False))
        found, _ = pieces(source)
        with pytest.raises(OSError, match="thrift"):
            [piece.value() for piece in found]


def test_partitions_stay_where_they_matter(one_file) -> None:
    _, path = one_file
    ddf = dd.read_parquet(path)
    with dask.config.set({"exo.num-cpus": 2}):
        assert source_of(ddf.map_partitions(lambda part: part.head(1))).count == 1
        assert source_of(ddf - ddf.x.mean()).count == 1
        assert source_of(dd.read_parquet(path, split_row_groups=False)).count == 1
        assert source_of(dd.read_parquet(path, blocksize="1GB")).count == 1
        assert source_of(dd.read_parquet(path, blocksize="100kB")).count > 10
    with dask.config.set({"exo.num-cpus": 5}):
        many = dd.read_parquet(path, split_row_groups=True)
        assert source_of(many).count == 20


def test_an_iterator_is_pulled_as_partitions_are_taken() -> None:
    made, enough = [], threading.Event()

    def parts():
        for i in range(50):
            made.append(i)
            if len(made) > AHEAD:
                enough.set()
            yield pd.DataFrame({"n": [i]})

    found, makes = source_of(parts()).start(Config.current(), lambda value: value)
    taken = []
    while len(taken) < 3:
        piece = next(found)
        taken += [] if piece is None else [piece]
    assert enough.wait(10)
    assert not makes
    assert [piece.place for piece in taken] == [(0,), (1,), (2,)]
    assert taken[2].value.n.tolist() == [2]
    assert len(made) <= 3 + AHEAD
    found.close()


def test_what_an_iterator_raises_is_raised() -> None:
    def parts():
        yield pd.DataFrame({"n": [1]})
        raise OSError("gone")

    found, _ = source_of(parts()).start(Config.current(), lambda value: value)
    with pytest.raises(OSError, match="gone"):
        list(found)


def test_bags_and_frames_and_several_sources() -> None:
    bag = db.from_sequence([{"b": bytes([255, i])} for i in range(5)], npartitions=2)
    frame = dd.from_map(lambda i: pd.DataFrame({"n": [2 * i, 2 * i + 1]}), range(2))
    found, makes = pieces(source_of(bag))
    assert makes
    rows = pd.concat([piece.value() for piece in found])
    assert rows.b.tolist() == [bytes([255, i]) for i in range(5)]
    both = of(frame, [pd.DataFrame({"n": [9]})], frame.n, bag.map(len)).source
    assert both.count == 7
    found, makes = pieces(both)
    assert makes
    assert [piece.place for piece in found] == [(i,) for i in range(7)]
    frames = [p.value() if callable(p.value) else p.value for p in found]
    assert pd.concat(frames[:5]).n.tolist() == [0, 1, 2, 3, 9, 0, 1, 2, 3]
    assert pd.concat(frames[5:]).item.tolist() == [1] * 5


def test_what_is_no_source_and_an_iterator_that_is_used_up() -> None:
    for wrong in ("a.png", pd.DataFrame({"a": [1]}), 3, {"a": [1]}):
        with pytest.raises(PipelineError, match="cannot begin with a"):
            of(wrong)
    with pytest.raises(PipelineError, match="needs at least one source"):
        of()
    frames = [pd.DataFrame({"a": [1]})] * 3
    again = source_of(frames)
    assert again.count == 3
    for _ in range(2):
        found, _ = pieces(again)
        assert [type(piece) for piece in found] == [Block] * 3
    once = source_of(iter(frames))
    assert once.count is None
    pieces(once)
    with pytest.raises(PipelineError, match="used up"):
        pieces(once)


def test_partitions_of_several_sources_have_numbers_of_their_own() -> None:
    frames = [pd.DataFrame({"a": [i]}) for i in range(3)]
    sources = [source_of(frames), source_of(iter(frames)), source_of(frames)]
    found = start_sources(sources, Config.current(), lambda value: value)
    numbers = [
        [piece.place[0] for piece in some if piece is not None] for some, _ in found.values()
    ]
    assert numbers == [[0, 1, 2], [3, 4, 5], [MANY + 3, MANY + 4, MANY + 5]]


def test_a_taken_partition_is_released_during_the_wait() -> None:
    class Ref:
        pass

    promises = [Promise(location=Remote(Ref(), 10)), Promise(location=Remote(Ref(), 10)), Promise()]
    refs = [weakref.ref(promise.ref) for promise in promises[:2]]
    last = promises[2]
    came = as_completed(promises)
    del promises
    taken = [next(came), next(came)]
    assert [piece and piece.place for piece in taken] == [(0,), (1,)]
    assert next(came) is None
    del taken
    assert [ref() for ref in refs] == [None, None]
    last.fulfil(Remote("ref", 10))
    assert [piece and piece.value for piece in came] == ["ref"]


def test_chained_sources_keep_the_order_of_their_partitions() -> None:
    class Shuffled:
        count = 3

        def start(self, config, put):
            return iter([Block(i, 0, 0, (i,)) for i in (2, 0, 1)]), False

    found, _ = ChainedSources([Shuffled(), Shuffled()]).start(Config.current(), None)
    assert [(block.place[0], block.value) for block in found] == [
        (2, 2), (0, 0), (1, 1), (5, 2), (3, 0), (4, 1)
    ]  # fmt: skip
