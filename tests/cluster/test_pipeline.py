"""Pipelines on real Ray: workers with a state, files, failures, and nothing left behind."""

from __future__ import annotations

import os
import signal

import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import ray

from dask_exo.errors import PipelineError, WorkerLostError
from dask_exo.pipeline import from_files, materialize, of, union
from dask_exo.report import recording

ROWS, PARTS = 500, 8


def part(i: int) -> pd.DataFrame:
    """Rows of one partition."""
    numbers = np.arange(i * ROWS, (i + 1) * ROWS)
    return pd.DataFrame({"n": numbers, "s": [f"row {n}" for n in numbers]})


class Model:
    """Counts how often it is called."""

    def __init__(self, factor: int) -> None:
        self.factor, self.calls = factor, 0

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        self.calls += 1
        return frame.assign(y=frame.n * self.factor, calls=self.calls, pid=os.getpid())


pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


@pytest.fixture
def ddf():
    return dd.from_map(part, range(PARTS))


def even(frame: pd.DataFrame) -> pd.Series:
    return frame.n % 2 == 0


def test_a_chain_with_a_model_gives_what_pandas_gives(ddf):
    pipeline = (
        ddf.exo.pipeline(target="10kB")
        .filter(even)
        .map_partitions(Model, 3, concurrency=1)
        .map_batches(lambda batch: {**batch, "z": batch["y"] + 1}, batch_size=100, format="numpy")
    )
    assert repr(pipeline) == (
        "Pipeline of 8 partitions: even (1 CPU), Model (1 CPU), <lambda> (1 CPU)"
    )
    with recording() as stats:
        made = pipeline.materialize()
    even_, model, last = stats.stages.values()
    assert (even_.name, even_.finished, even_.running) == ("even", PARTS, 0)
    assert even_.outputs == model.finished == model.outputs
    assert last.outputs == made.npartitions
    assert model.seconds > 0
    got = made.compute()
    want = pd.concat([part(i) for i in range(PARTS)])
    want = want[want.n % 2 == 0]
    assert got.n.tolist() == want.n.tolist()
    assert got.s.tolist() == want.s.tolist()
    assert got.z.tolist() == (want.n * 3 + 1).tolist()
    assert got.pid.nunique() <= 2
    assert got.calls.max() > 1
    batches = [len(batch["n"]) for batch in pipeline.iter_batches(300, format="numpy")]
    assert sum(batches) == len(want)
    assert batches[:-1] == [300] * (len(batches) - 1)


def test_a_shuffle_in_the_middle_and_flat_map_and_limit(ddf):
    shuffled = ddf.shuffle("n").exo.pipeline().filter(even).materialize()
    assert sorted(shuffled.n.compute()) == list(range(0, PARTS * ROWS, 2))
    twice = ddf.exo.pipeline().flat_map(lambda row: [row, {**row, "n": -row["n"]}])
    assert sum(len(batch) for batch in twice.iter_batches()) == 2 * PARTS * ROWS
    first = list(twice.limit(1200).iter_batches(500))
    assert [len(batch) for batch in first] == [500, 500, 200]


def test_files_have_names_of_their_own_even_where_rows_are_alike(ddf, tmp_path):
    same = ddf.exo.pipeline(target="5kB").map_partitions(lambda frame: frame.assign(n=1, s="a"))
    files = same.to_parquet(str(tmp_path / "out"))
    assert len(set(files)) == len(files) >= PARTS
    assert sum(len(pd.read_parquet(name)) for name in files) == PARTS * ROWS


def test_a_failed_run_leaves_no_files(ddf, tmp_path):
    def late(frame: pd.DataFrame) -> pd.DataFrame:
        if frame.n.iloc[0] == (PARTS - 1) * ROWS:
            raise OSError("no space left")
        return frame

    old = ddf.exo.pipeline().limit(ROWS).compute()
    (tmp_path / "out").mkdir()
    old.to_parquet(tmp_path / "out" / "part-0.parquet")
    for name, left in ("out", ["part-0.parquet"]), ("new", []):
        with pytest.raises(OSError, match="no space left"):
            ddf.exo.pipeline().map_partitions(late).to_parquet(str(tmp_path / name))
        assert [file.name for file in (tmp_path / name).iterdir()] == left
    assert pd.read_parquet(tmp_path / "out").equals(old)
    ddf.exo.pipeline().to_parquet(str(tmp_path / "new"))
    assert len(pd.read_parquet(tmp_path / "new")) == PARTS * ROWS
    assert all(file.name.startswith("part-") for file in (tmp_path / "new").iterdir())


def test_an_error_keeps_its_type_and_stops_the_pipeline(ddf):
    def fail(frame: pd.DataFrame) -> pd.DataFrame:
        if frame.n.iloc[0] == 3 * ROWS:
            raise KeyError("no such thing")
        return frame

    with pytest.raises(KeyError, match="no such thing") as caught:
        list(ddf.exo.pipeline().map_partitions(fail, num_cpus=0.5).iter_batches())
    assert f"fail on partition 3 rows 0:{ROWS}" in caught.value.__notes__[0]


def test_poison_is_set_aside_and_the_rest_goes_on(ddf, tmp_path):
    def picky(batch: pd.DataFrame) -> pd.DataFrame:
        if (batch.n == 3 * ROWS + 250).any():
            raise ValueError("poison")
        return batch

    pipeline = (
        ddf.exo.pipeline(on_error="skip")
        .map_batches(picky, batch_size=100)
        .map_partitions(Model, 3, on_error="raise")
    )
    assert not pipeline.rejects
    files = pipeline.to_parquet(str(tmp_path))
    got = sorted(n for name in files for n in pd.read_parquet(name).n)
    poison = range(3 * ROWS + 200, 3 * ROWS + 300)
    assert got == sorted(set(range(PARTS * ROWS)) - set(poison))
    (reject,) = pipeline.rejects
    assert reject.frame.n.tolist() == list(poison)
    assert str(reject.origin) == "partition 3 rows 200:300"
    assert isinstance(reject.error, ValueError)
    assert pipeline.rejects.table().error.tolist() == ["ValueError: poison"]


def test_a_dead_worker_is_replaced_without_loss(ddf, tmp_path):
    class Dies:
        def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
            mark = tmp_path / "died"
            if frame.n.iloc[0] == 2 * ROWS and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return frame

    made = ddf.exo.pipeline().map_partitions(Dies, num_cpus=0.5, concurrency=(1, 2))
    assert made.materialize().n.compute().tolist() == list(range(PARTS * ROWS))
    assert (tmp_path / "died").exists()


def test_a_worker_that_dies_again_and_again_is_an_error(ddf):
    class Dies:
        def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
            os.kill(os.getpid(), signal.SIGKILL)
            return frame

    with pytest.raises(WorkerLostError, match="Dies"):
        list(ddf.exo.pipeline().map_partitions(Dies, num_cpus=0.5).iter_batches())


def test_what_cannot_be_asked(ddf):
    pipeline = ddf.exo.pipeline()
    with pytest.raises(PipelineError, match="needs 3 GPU, the cluster has 0"):
        list(pipeline.map_partitions(Model, 3, num_gpus=3).iter_batches())
    with pytest.raises(PipelineError, match="cannot be called"):
        pipeline.filter("n > 3")
    with pytest.raises(PipelineError, match="last stage"):
        pipeline.limit(3).filter(even)
    with pytest.raises(PipelineError, match="concurrency"):
        pipeline.filter(even, concurrency=(3, 2))
    with pytest.raises(PipelineError, match="on_error"):
        pipeline.filter(even, on_error="ignore")
    with pytest.raises(PipelineError, match="retries"):
        ddf.exo.pipeline(retries=-1)
    with pytest.raises(PipelineError, match="format"):
        pipeline.iter_batches(format="xml")


def test_bags_files_and_refs_are_sources(tmp_path):
    for i in range(6):
        (tmp_path / f"{i}.bin").write_bytes(bytes([i, 255]) * 1000)
    files = from_files(f"{tmp_path}/*.bin", partition_size="4kB", on_error="skip")
    (tmp_path / "3.bin").unlink()
    got = files.flat_map(lambda row: [{"first": row["bytes"][0]}]).compute()
    assert got["first"].tolist() == [0, 1, 2, 4, 5]
    bag = db.from_sequence(range(40), npartitions=4).map(lambda n: {"n": n, "k": n % 2})
    refs = (ray.put(part(i)) for i in range(2))
    made = of(bag, refs).map_partitions(lambda frame: frame.loc[:, ["n"]]).materialize()
    assert made.n.compute().tolist() == [*range(40), *range(2 * ROWS)]
    groups = db.from_sequence(range(40), npartitions=4).groupby(lambda n: n % 3)
    sums = of(groups).flat_map(lambda row: [{"k": row["item"][0], "s": sum(row["item"][1])}])
    found = pd.concat(list(sums.iter_batches())).set_index("k").s.to_dict()
    assert found == {k: sum(range(k, 40, 3)) for k in range(3)}


def test_branches_share_reads_join_and_write_together(tmp_path):
    marks = tmp_path / "read"
    marks.mkdir()

    def read(i: int) -> pd.DataFrame:
        (marks / str(i)).open("x").close()  # each can be made once
        return part(i)

    ddf = dd.from_map(read, range(PARTS), meta=part(0).iloc[:0])
    base = ddf.exo.pipeline(target="10kB").filter(even)
    scored = base.map_partitions(Model, 3, concurrency=1)
    plain = base.map_batches(lambda batch: batch.assign(y=-batch.n), num_cpus=0.5)
    files = scored.to_parquet(str(tmp_path / "out"), compute=False)
    both, written = materialize(union(scored, plain).filter(lambda frame: frame.y != 6), files)
    want = pd.concat([part(i) for i in range(PARTS)])
    want = want[want.n % 2 == 0]
    got = both.compute()
    assert sorted(got.n) == sorted([*want.n, *want.n[want.n != 2]])
    assert sorted(got.y) == sorted([*-want.n, *(3 * want.n[want.n != 2])])
    names = written["file"].compute()
    assert names.is_unique
    there = pd.concat([pd.read_parquet(name) for name in names])
    assert sorted(there.y) == (3 * want.n).tolist()
    assert len(list(marks.iterdir())) == PARTS


def thin(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.iloc[:2]


def rows_of_call(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(rows=len(frame))


def calls(pipeline):
    """Check the rows that come out; return the number of calls of the last stage."""
    with recording() as stats:
        found = pipeline.compute()
    assert found.n.tolist() == [i * ROWS + k for i in range(60) for k in range(2)]
    *_, last = stats.stages.values()
    return last.finished


def test_small_blocks_are_taken_together_in_order():
    thinned = dd.from_map(part, range(60)).exo.pipeline().map_partitions(thin)
    assert calls(thinned.map_batches(rows_of_call, num_cpus=0.5)) < 30


def test_blocks_that_matter_are_taken_one_by_one():
    thinned = dd.from_map(part, range(60)).exo.pipeline().map_partitions(thin)
    assert calls(thinned.map_partitions(rows_of_call, num_cpus=0.5)) == 60
    assert calls(thinned.map_batches(rows_of_call, num_cpus=0.5, on_error="skip")) == 60
