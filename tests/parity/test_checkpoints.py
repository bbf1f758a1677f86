"""A program that dies anywhere: the next one does what is missing, and the result is the same."""

from __future__ import annotations

import doctest
import functools
import gc
import importlib
import itertools
import sys
from pathlib import Path

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo import Scheduler
from dask_exo.checkpoint import CheckpointStore, atomic_io
from dask_exo.errors import CheckpointError, IntegrityError
from dask_exo.report import recording
from dask_exo.testing import InlineFutures
from tests._data import Killed, Unseen

PARTS, ROWS = 3, 25


made: list[int] = Unseen()
"""Parts that have been made, since this was cleared."""


META = pd.DataFrame({"k": [0], "v": [0.0], "part": [0]}).iloc[:0]


def part(i: int) -> pd.DataFrame:
    made.append(i)
    rng = np.random.default_rng(i)
    return pd.DataFrame({"k": rng.integers(0, 9, ROWS), "v": rng.random(ROWS), "part": i})


class Mood(dict):
    """The same, of a mapping."""

    def __reduce__(self):
        return Mood, ()


mood: dict[str, int] = Mood()
"""What `moody` does beside what its argument says."""


def moody(i: int) -> pd.DataFrame:
    if mood.get("dies") == len(made):
        raise Killed
    return part(i).assign(v=lambda rows: rows.v + mood.get("seed", 0))


def frame(function=part) -> dd.DataFrame:
    return dd.from_map(function, range(PARTS), meta=META)


def expected() -> pd.DataFrame:
    return pd.concat([part(i) for i in range(PARTS)])


@pytest.fixture(autouse=True)
def settings(tmp_path: Path):
    with dask.config.set(
        {
            "scheduler": Scheduler(InlineFutures()),
            "exo.checkpoint.path": str(tmp_path / "kept"),
            "exo.checkpoint.keep": "all",
        }
    ):
        made.clear()
        yield
        made.clear()


def sorted_rows(found: pd.DataFrame) -> pd.DataFrame:
    return found.sort_values(["part", "v"]).reset_index(drop=True)


def job() -> pd.DataFrame:
    """Two shuffles, one behind the other, and something between."""
    shuffled = frame().shuffle("k", npartitions=2)
    return shuffled.assign(w=shuffled.v * 2).exo.sort_values("w", npartitions=2).compute()


@pytest.fixture
def dying(monkeypatch):
    """Die before, in the middle of, or after some write of a file, counted from 0."""
    put, count = atomic_io.put, itertools.count()
    point: list[float] = [float("inf")]

    def dies(fs, path, pieces):
        i = next(count)
        if i == point[0]:
            raise Killed
        if i == point[0] - 0.5:
            half = b"".join(pieces)[: sum(map(len, pieces)) // 2]
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(half)
            raise Killed
        put(fs, path, pieces)

    monkeypatch.setattr(atomic_io, "put", dies)

    def at(step: float) -> None:
        nonlocal count
        count, point[0] = itertools.count(), step

    at.count = lambda: next(count)  # type: ignore[attr-defined]
    return at


def test_a_second_program_makes_nothing_again() -> None:
    first = job()
    assert sorted(made) == list(range(PARTS))
    made.clear()
    pd.testing.assert_frame_equal(job(), first)
    assert made == []
    oracle = expected().assign(w=lambda f: f.v * 2)
    pd.testing.assert_frame_equal(sorted_rows(first), sorted_rows(oracle), check_dtype=True)


def test_without_a_path_nothing_is_kept(tmp_path: Path) -> None:
    with dask.config.set({"exo.checkpoint.path": None}):
        first = job()
        made.clear()
        pd.testing.assert_frame_equal(job(), first)
    assert sorted(made) == list(range(PARTS))
    assert not (tmp_path / "kept").exists()


def test_death_at_any_step_and_half_written_files(tmp_path: Path, dying) -> None:
    with dask.config.set({"exo.checkpoint.path": None}):
        whole = job()
    dying(float("inf"))
    job()
    steps = dying.count()
    assert steps == 2 + 2  # outputs of both shuffles
    for step in range(2 * steps):
        with dask.config.set({"exo.checkpoint.path": str(tmp_path / f"kept-{step}")}):
            dying(step / 2)
            with pytest.raises(Killed):
                job()
            dying(float("inf"))
            made.clear()
            pd.testing.assert_frame_equal(job(), whole)
            again = dying.count()
            # what was there has not been written again, nor made, once the first shuffle was done
            assert again == steps - step // 2
            assert bool(made) == (step < 2 * 2)
            made.clear()
            pd.testing.assert_frame_equal(job(), whole)
            assert made == []


def test_outputs_of_a_shuffle_are_stored_before_their_use() -> None:
    def dies(rows: pd.DataFrame) -> pd.DataFrame:
        raise Killed

    shuffled = frame().shuffle("k", npartitions=5)
    with pytest.raises(Killed):
        shuffled.map_partitions(dies, meta=META).compute()
    made.clear()
    with recording() as stats:
        pd.testing.assert_frame_equal(
            sorted_rows(shuffled.map_partitions(lambda rows: rows, meta=META).compute()),
            sorted_rows(shuffled.compute(scheduler="sync")),
        )
    assert [(one.values, one.found) for one in stats.checkpoints] == [(5, 5)]
    assert sorted(made) == list(range(PARTS))  # by the other scheduler alone


@pytest.mark.parametrize("kind", ["shuffle", "sort"])
def test_slow_inputs_of_a_shuffle_are_stored_at_once(kind, monkeypatch) -> None:
    def run(**options) -> pd.DataFrame:
        ddf = frame(moody)
        ddf = ddf.shuffle("k") if kind == "shuffle" else ddf.exo.sort_values("v")
        return ddf.compute(**options)

    whole = run(scheduler="sync")
    made.clear()
    monkeypatch.setitem(mood, "dies", 2)
    with dask.config.set({"exo.checkpoint.overhead": 1e6}):
        with pytest.raises(Killed):
            run()
        assert len(made) == 2
        mood.clear()
        with recording() as stats:
            found = run()
    pd.testing.assert_frame_equal(sorted_rows(found), sorted_rows(whole))
    assert len(made) == 2 + 2  # what was missing, and one to be compared
    assert set(made) == {0, 1, 2}
    assert (3, 2) in [(one.values, one.found) for one in stats.checkpoints]


@pytest.fixture
def two_parts_kept(monkeypatch):
    """A program has died, and left two parts of its shuffle."""
    monkeypatch.setitem(mood, "dies", 2)
    with dask.config.set({"exo.checkpoint.overhead": 1e6}):
        with pytest.raises(Killed):
            frame(moody).shuffle("k").compute()
        mood.clear()
        yield


@pytest.mark.usefixtures("two_parts_kept")
def test_parts_that_are_read_back_are_not_written_again(dying) -> None:
    dying(float("inf"))
    frame(moody).shuffle("k").compute()
    assert dying.count() == 1 + PARTS  # the part that was missing, and the outputs


@pytest.mark.usefixtures("two_parts_kept")
def test_a_part_that_is_not_what_it_was_is_an_error(monkeypatch) -> None:
    monkeypatch.setitem(mood, "seed", 7)
    with pytest.raises(CheckpointError, match="does not always return the same"):
        frame(moody).shuffle("k").compute()


def test_parts_that_are_made_soon_are_not_kept(tmp_path: Path) -> None:
    frame().shuffle("k").compute()
    groups = [group.name for group in CheckpointStore(str(tmp_path / "kept")).groups()]
    assert [name[:10] for name in groups] == ["exoshuffle"]


def test_only_what_is_needed_of_a_finished_shuffle_is_read(monkeypatch) -> None:
    job()
    read, found = CheckpointStore.read, []
    monkeypatch.setattr(
        CheckpointStore, "read", lambda self, entry: found.append(entry) or read(self, entry)
    )
    job()
    assert len(found) == 2  # the sorted outputs, and not the shuffled ones before them


@pytest.mark.parametrize("kind", ["array", "bag", "merge", "groupby"])
def test_every_kind_of_shuffle(kind: str) -> None:
    def run():
        if kind == "array":
            with dask.config.set({"array.rechunk.method": "p2p", "array.chunk-size": "1B"}):
                array = da.from_array(np.arange(64).reshape(8, 8), chunks=(8, 2))
                return (array + 1).rechunk((2, 8)).compute().tolist()
        if kind == "bag":
            return sorted(db.from_sequence(range(20), npartitions=4).groupby(_even).compute())
        left = frame()
        if kind == "merge":
            return sorted_rows(left.merge(frame().shuffle("v"), on=["k", "v", "part"]).compute())
        return left.groupby("k").v.apply(np.ptp, meta=("v", "f8")).compute().sort_index()

    with dask.config.set({"exo.checkpoint.path": None}):
        whole = run()
    run()
    with recording() as stats:
        again = run()
    assert sum(one.found for one in stats.checkpoints) > 0
    assert [one for one in stats.checkpoints if one.refused] == []
    if isinstance(whole, list):
        assert str(again) == str(whole)
    else:
        pd.testing.assert_series_equal(again, whole) if kind == "groupby" else None
        pd.testing.assert_frame_equal(again, whole) if kind == "merge" else None
    assert stats.shuffles == []


def _even(i: int) -> int:
    return i % 2


def test_marked_partitions_are_kept_each_for_itself(dying) -> None:
    with dask.config.set({"exo.checkpoint.keep": "marked"}):

        def run() -> float:
            kept = frame().assign(w=1.0).exo.checkpoint()
            return kept.w.sum().compute()

        dying(2)
        with pytest.raises(Killed):
            run()
        dying(float("inf"))
        made.clear()
        assert run() == PARTS * ROWS
        # those that were not there, and one that was, to be compared
        assert len(made) == PARTS - 2 + 1
        made.clear()
        assert run() == PARTS * ROWS
        job()
        assert sorted(made) == list(range(PARTS))  # no shuffle is kept


def test_auto_keeps_what_took_long_and_not_what_is_quick() -> None:
    with dask.config.set({"exo.checkpoint.keep": "auto"}):
        for overhead, kept in ((0.0, False), (1e6, True)):
            with dask.config.set({"exo.checkpoint.overhead": overhead}), recording() as stats:
                frame().shuffle("v").compute()
            assert [one.stored for one in stats.checkpoint_decisions] == [kept]


def test_two_runs_of_a_random_function_are_not_mixed(dying) -> None:
    def scattered() -> pd.DataFrame:
        return frame().map_partitions(_scatter).shuffle("k", npartitions=4).compute()

    dying(2)
    with pytest.raises(Killed):
        scattered()
    dying(float("inf"))
    with pytest.raises(CheckpointError, match="does not always return the same"):
        scattered()


_numbers = Unseen()


def _scatter(rows: pd.DataFrame) -> pd.DataFrame:
    _numbers.append(1)
    rng = np.random.default_rng(len(_numbers))
    return rows.assign(k=rng.integers(0, 1000, len(rows)), v=rng.random(len(rows)))


def test_what_has_no_deterministic_token_is_not_kept_and_says_so(tmp_path: Path) -> None:
    delayed = dd.from_delayed([dask.delayed(part)(i) for i in range(2)], meta=META)
    with recording() as stats:
        delayed.shuffle("k").compute()
    (seen,) = stats.checkpoints
    assert "pure=True" in seen.refused
    assert list(CheckpointStore(str(tmp_path / "kept")).groups()) == []
    text = str(dask_exo.explain(delayed.shuffle("k"), futures=InlineFutures()))
    assert "not stored, since" in text
    pure = [dask.delayed(part, pure=True)(i) for i in range(2)]
    for found in (0, 4):
        with recording() as stats:
            dd.from_delayed(pure, meta=META).shuffle("k", npartitions=4).compute()
        assert [one.found for one in stats.checkpoints] == [found]


def test_explain_says_what_is_there() -> None:
    shuffled = frame().shuffle("k", npartitions=3)
    assert "0 of 3 partitions are stored" in str(
        dask_exo.explain(shuffled, futures=InlineFutures())
    )
    shuffled.compute()
    text = str(dask_exo.explain(shuffled, futures=InlineFutures()))
    assert "3 of 3 partitions are stored" in text
    assert "shuffles: 0" in text


def test_files_that_have_changed_are_read_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    frame().to_parquet(data)

    def total() -> float:
        return dd.read_parquet(data).shuffle("k").v.sum().compute()

    before = total()
    assert total() == before
    changed = pd.read_parquet(data / "part.1.parquet").assign(v=100.0)
    changed.to_parquet(data / "part.1.parquet")
    after = pd.read_parquet(data).v.sum()
    assert after > before
    assert total() == pytest.approx(after)


def test_code_that_has_changed_in_its_file_is_run_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = tmp_path / "of_the_user.py"
    found = []
    for factor in (2, 3, 3):
        source.write_text(f"FACTOR = {factor}\ndef times(rows):\n    return rows * FACTOR\n")
        sys.modules.pop("of_the_user", None)
        importlib.invalidate_caches()
        module = importlib.import_module("of_the_user")
        shuffled = frame().map_partitions(module.times).shuffle("k")
        with recording() as stats:
            found.append(shuffled.v.sum().compute())
        assert bool(stats.shuffles) == (len(found) < 3)
        del shuffled, module
        gc.collect()  # Dask keeps expressions by name, and sees no difference
    assert found[1] == pytest.approx(found[0] * 1.5)
    assert found[2] == found[1]


def test_what_is_made_of_a_persisted_frame_is_kept_too() -> None:
    exo = Scheduler(InlineFutures())
    for shuffles in (1, 0):
        with recording() as stats:
            persisted = frame().persist(scheduler=exo)
            persisted.shuffle("k").compute(scheduler=exo)
        assert len(stats.shuffles) == shuffles


@pytest.mark.parametrize("callback", [False, True])
def test_callbacks_hear_of_what_is_left(callback: bool) -> None:
    job()
    started, finished = [], []
    with dask.callbacks.Callback(
        pretask=lambda key, *_: started.append(key),
        posttask=lambda key, *_: finished.append(key) if callback else None,
    ):
        job()
    assert started
    assert made.count(1) == 1


def test_a_damaged_checkpoint_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    job()
    for file in (tmp_path / "kept").rglob("*.value"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"\.value' is damaged"):
        job()


def test_a_shuffle_that_has_lost_rows_is_not_kept(tmp_path: Path, monkeypatch) -> None:
    def lost(name, sent, arrived):
        raise IntegrityError(name)

    monkeypatch.setattr("dask_exo.execution.accounting.verify", lost)
    with pytest.raises(IntegrityError):
        frame().shuffle("k").compute()
    assert list(CheckpointStore(str(tmp_path / "kept")).groups()) == []


def test_a_full_disk_is_a_warning_and_no_error(monkeypatch) -> None:
    def full(fs, path, pieces):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_io, "put", full)
    with pytest.warns(UserWarning, match="is not stored.*No space left"):
        found = frame().shuffle("k").compute()
    pd.testing.assert_frame_equal(sorted_rows(found), sorted_rows(expected()))


@pytest.mark.parametrize("read", ["read_csv", "from_map", "arrow"])
def test_files_that_other_functions_read_are_looked_at_too(tmp_path: Path, read: str) -> None:
    file = tmp_path / "rows.csv"
    name = str(file if read != "arrow" else tmp_path / "rows.parquet")

    def ddf() -> dd.DataFrame:
        if read == "read_csv":
            return dd.read_csv(name)
        if read == "arrow":
            return dd.read_parquet(name, filesystem="arrow")
        return dd.from_map(pd.read_csv, [name], meta=pd.DataFrame({"k": [0]}).iloc[:0])

    for rows, shuffles in ((3, 1), (3, 0), (5, 1)):
        frame = pd.DataFrame({"k": range(rows)})
        if shuffles:
            frame.to_csv(file, index=False)
            frame.to_parquet(tmp_path / "rows.parquet")
        with recording() as stats:
            assert ddf().shuffle("k", npartitions=2).k.sum().compute() == sum(range(rows))
        assert len(stats.shuffles) == shuffles


def test_fingerprints_do_not_depend_on_the_process(tmp_path: Path) -> None:
    import subprocess

    script = tmp_path / "job.py"
    script.write_text(
        "import sys\nimport dask, dask.dataframe as dd, pandas as pd\n"
        "from dask_exo import Scheduler\nfrom dask_exo.report import recording\n"
        "from dask_exo.testing import InlineFutures\n"
        "def twice(rows, by):\n    return rows * by\n"
        "df = pd.DataFrame({'k': range(40), 't': list('abcd') * 10})\n"
        "ddf = dd.from_pandas(df, npartitions=4).map_partitions(twice, 2)\n"
        "ddf = ddf.map_partitions(lambda rows: rows.assign(z=1))\n"
        "dask.config.set({'exo.checkpoint.path': sys.argv[1], 'exo.checkpoint.keep': 'all'})\n"
        "with recording() as stats:\n"
        "    ddf.exo.sort_values('t').merge(ddf.shuffle('k'), on='t').compute(\n"
        "        scheduler=Scheduler(InlineFutures()))\n"
        "print(len(stats.shuffles), [one.refused for one in stats.checkpoints if one.refused])\n"
        "with dask.config.set({'scheduler': 'sync'}):\n"
        "    print(ddf.exo.to_parquet(sys.argv[2], overwrite=True).file.tolist())\n"
    )
    run = functools.partial(subprocess.run, check=True, capture_output=True, text=True)
    lines = [
        run([sys.executable, script, tmp_path / "kept", tmp_path / "out"]).stdout.splitlines()[-2:]
        for _ in range(2)
    ]
    assert lines[0][0].split()[0] != "0"
    assert lines[1] == ["0 []", lines[0][1]]


def test_the_page_is_true(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    page = Path(__file__).parents[2] / "docs" / "checkpoints.md"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    keys = {"scheduler": None, "exo.checkpoint.path": None, "exo.checkpoint.keep": "auto"}
    with dask.config.set(keys):
        assert doctest.testfile(str(page), module_relative=False, optionflags=flags).failed == 0
