"""What is kept comes back exactly, and nothing that is not whole counts."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.checkpoint import CheckpointStore, atomic_io
from dask_exo.checkpoint.store import dumps, loads, sha256
from dask_exo.cli.main import main
from dask_exo.errors import CheckpointError
from dask_exo.execution.admission import worth_checkpointing, write_seconds

KEY = "0123456789abcdef" * 2


def values() -> list[object]:
    frame = pd.DataFrame(
        {
            "text": ["a", None, "ü"],
            "kind": pd.Categorical(["x", "y", "x"], categories=["y", "x", "z"], ordered=True),
            "when": pd.date_range("2020", periods=3, tz="Europe/Vienna"),
            "small": pd.array([1, None, 3], dtype="Int8"),
            "any": [[1], {2: 3}, ("x",)],
        },
        index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2), ("c", 3)], names=["p", None]),
    )
    frame.attrs["unit"] = "m"
    return [frame, frame["when"], frame.iloc[:0], np.arange(12.0).reshape(3, 4).T, [1, "x"], None]


@pytest.mark.parametrize("value", values(), ids=lambda value: type(value).__name__)
def test_a_value_comes_back_exactly_and_can_be_written_to(tmp_path: Path, value) -> None:
    store = CheckpointStore.open(str(tmp_path / "kept"))
    entry = store.write("shuffle-1", KEY, value)
    assert store.found("shuffle-1") == {KEY: entry}
    again = store.read(entry)
    assert type(again) is type(value)
    if isinstance(value, pd.DataFrame):
        pd.testing.assert_frame_equal(again, value)
        assert again.attrs == value.attrs
    elif isinstance(value, pd.Series):
        pd.testing.assert_series_equal(again, value)
    elif isinstance(value, np.ndarray):
        np.testing.assert_array_equal(again, value)
        again[0, 0] = 7.0
    else:
        assert again == value


@given(st.recursive(st.binary() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_any_bytes_of_any_value_have_one_digest(value: object) -> None:
    pieces = dumps([value, np.arange(5)])
    data = b"".join(pieces)
    digest = sha256(pieces)
    assert digest == sha256([data])
    first, second = loads(data, digest, "here")
    assert first == value
    assert second.tolist() == [0, 1, 2, 3, 4]


@given(st.data())
def test_a_changed_byte_is_seen_before_anything_is_unpickled(data: st.DataObject) -> None:
    pieces = dumps({"a": np.arange(30), "b": "text"})
    whole, digest = bytearray(b"".join(pieces)), sha256(pieces)
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CheckpointError, match="damaged"):
        loads(whole, digest, "here")


@pytest.mark.parametrize("url", ["memory://half", None], ids=["memory", "local"])
def test_a_half_written_file_does_not_count(tmp_path: Path, url: str | None) -> None:
    store = CheckpointStore.open(url or str(tmp_path / "kept"))
    entry = store.write("shuffle-1", KEY, list(range(1000)))
    fs, _ = atomic_io.located(store.url)
    data = fs.cat_file(entry.path)
    fs.pipe_file(entry.path, data[: len(data) // 2])
    assert store.found("shuffle-1") == {}
    assert [group.partial for group in store.groups()] == [1]
    with pytest.raises(CheckpointError, match="damaged"):
        store.read(entry)
    store.remove("shuffle-1")
    assert list(store.groups()) == []


def test_writing_that_fails_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    store = CheckpointStore.open(str(tmp_path / "kept"))

    def fail(self, target):
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no"):
        store.write("shuffle-1", KEY, 1)
    assert [file for file in (tmp_path / "kept").rglob("*") if file.is_file()] == []


def test_a_directory_is_private_and_one_of_others_is_refused(tmp_path: Path) -> None:
    CheckpointStore.open(str(tmp_path / "kept"))
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    (tmp_path / "kept").chmod(0o770)
    with pytest.raises(CheckpointError, match=r"nobody else may write.*770"):
        CheckpointStore.open(str(tmp_path / "kept"))
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be used"):
        CheckpointStore.open(str(tmp_path / "file"))


def test_an_earlier_checkpoint_is_compared_by_value(tmp_path: Path) -> None:
    store = CheckpointStore.open(str(tmp_path / "kept"))
    name = "".join(["co", "l"])
    frame = pd.DataFrame({"a": [name, name]}, dtype=object)
    before = store.write("g", KEY, frame)
    other = pd.DataFrame({"a": [name, "".join(["c", "ol"])]}, dtype=object)  # pickled differently
    assert sha256(dumps(other)) != before.digest
    assert store.write("g", KEY, other, before) == before
    with pytest.raises(CheckpointError, match="always return the same"):
        store.write("g", KEY, other.assign(a="x"), before)
    with pytest.raises(CheckpointError, match="always return the same"):
        store.write("g", KEY, [1], before)


def test_a_checkpoint_that_somebody_has_cleaned_is_named(tmp_path: Path) -> None:
    store = CheckpointStore.open(str(tmp_path / "kept"))
    entry = store.write("g", KEY, 1)
    store.remove("g")
    with pytest.raises(CheckpointError, match="is gone"):
        store.read(entry)


def test_a_group_may_have_any_name(tmp_path: Path) -> None:
    store = CheckpointStore.open(str(tmp_path / "kept"))
    entry = store.write("../../ä b/c", KEY, 1)
    assert Path(entry.path).is_relative_to(tmp_path / "kept")
    assert store.read(store.found("../../ä b/c")[KEY]) == 1


def test_the_command_lists_and_cleans_and_touches_nothing_else(tmp_path: Path) -> None:
    store = CheckpointStore.open(str(tmp_path))
    tmp_path.chmod(0o700)
    for group in ("shuffle-1", "shuffle-2"):
        store.write(group, KEY, list(range(100)))
    (tmp_path / "shuffle-1" / "mine.txt").write_text("mine")
    run = CliRunner().invoke
    listed = run(main, ["checkpoints", "list", str(tmp_path)])
    assert listed.exit_code == 0
    assert "shuffle-1 and 1 files that do not count" in listed.output
    assert "2 collections" in listed.output
    unknown = run(main, ["checkpoints", "clean", str(tmp_path), "--group", "x", "--yes"])
    assert unknown.exit_code == 2
    assert run(main, ["checkpoints", "clean", str(tmp_path)], input="n\n").exit_code == 1
    assert len(list(store.groups())) == 2
    one = run(main, ["checkpoints", "clean", str(tmp_path), "--group", "shuffle-2", "--yes"])
    assert "deleted 1 collections" in one.output
    assert run(main, ["checkpoints", "clean", str(tmp_path), "--yes"]).exit_code == 0
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["mine.txt", "shuffle-1"]


@pytest.mark.parametrize("command", ["list", "clean"])
def test_the_commands_take_the_configured_path(command, tmp_path) -> None:
    CheckpointStore.open(str(tmp_path / "kept")).write("shuffle-1", KEY, 1)

    def run(*arguments: str, **config: str) -> tuple[int, str]:
        with dask.config.set({f"exo.checkpoint.{key}": value for key, value in config.items()}):
            done = CliRunner().invoke(main, ["checkpoints", command, *arguments], input="n\n")
        return done.exit_code, done.output

    assert "1 collections" in run(path=str(tmp_path / "kept"))[1]
    assert run()[0] == 2
    assert "exo.checkpoint.path" in run()[1]
    code, said = run(str(tmp_path / "nowhere"))
    assert code == 2
    assert f"there is no directory '{tmp_path}/nowhere'" in said


@given(
    sizes=st.lists(st.tuples(st.integers(0, 10**11), st.floats(0, 1e4)), max_size=20),
    share=st.floats(0, 1),
)
def test_keeping_never_takes_more_than_its_share_of_the_work(sizes, share: float) -> None:
    work = spent = 0.0
    for nbytes, seconds in sizes:
        work += seconds
        if worth_checkpointing(nbytes, work=work, checkpoint_seconds=spent, share=share):
            spent += write_seconds(nbytes)
        assert spent <= share * work
