"""Everything under bad luck: sort, merge, groupby, shuffle and pipelines against pandas.

``python -m asv_bench.benchmarks.chaos 10000`` runs so many jobs on simulated clusters whose nodes
die, come back, are slow or small; every result is that of pandas, or an error of a known type.
``python -m asv_bench.benchmarks.chaos 50 --real`` runs jobs on a private Ray whose workers
are killed. ``--seed 7`` begins there; a simulated job of a seed is always the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from asv_bench.benchmarks import streaming_swarm
from asv_bench.simulation.random_faults import weather
from dask_exo import Scheduler
from dask_exo.errors import ExoError, StalledError, WorkerLostError
from dask_exo.pipeline import of
from dask_exo.shuffle import names
from dask_exo.testing import Chaos

KILLS = 3  # as often as Ray runs a task again, so that there is always a result
EXPECTED = (StalledError, WorkerLostError)
Job = tuple[dd.DataFrame, pd.DataFrame]
"""What is computed, and what pandas makes of the same."""


def frame(random: Random, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(random.randrange(2**32))
    keys = rng.integers(0, random.choice([3, 50, 10**6]), rows)
    return pd.DataFrame(
        {
            "k": pd.array(keys, dtype="Int64"),
            "v": np.arange(rows),
            "s": rng.choice(["a", "bb", None], rows),
        }
    )


def nulls(df: pd.DataFrame) -> pd.DataFrame:
    """Every seventh key is null."""
    return df.assign(k=df.k.mask(df.v % 7 == 0))


def parts(random: Random) -> int:
    return random.randint(1, 12)


def loaded(random: Random, df: pd.DataFrame, seconds: float) -> dd.DataFrame:
    """Some partitions; each takes so long to make."""
    ddf = dd.from_pandas(df, parts(random))
    return ddf.map_partitions(slowly, seconds, meta=ddf._meta) if seconds else ddf


def slowly(part: pd.DataFrame, seconds: float) -> pd.DataFrame:
    time.sleep(seconds)
    return part


def shuffled(random: Random, rows: int, seconds: float) -> Job:
    df = nulls(frame(random, rows))
    return loaded(random, df, seconds).shuffle("k", npartitions=parts(random)), df


def sort(random: Random, rows: int, seconds: float) -> Job:
    df = frame(random, rows)
    ddf = loaded(random, df, seconds).sort_values("k")
    return ddf, df.sort_values("k", kind="stable")


def merge(random: Random, rows: int, seconds: float) -> Job:
    left, right = frame(random, rows), frame(random, rows // 4)[["k", "v"]]
    left = left.assign(k=left.k % 97)
    right = right.groupby("k").head(3)  # three keys in all would give more rows than fit
    how = random.choice(["inner", "left", "outer"])
    a, b = loaded(random, left, seconds), loaded(random, right, seconds)
    return a.merge(b, on="k", how=how), left.merge(right, on="k", how=how)


def groupby(random: Random, rows: int, seconds: float) -> Job:
    df = nulls(frame(random, rows))
    ddf = loaded(random, df, seconds)
    asked = {"v": ["sum", "count", "max"]}
    grouped = ddf.groupby("k", dropna=False).agg(asked, split_out=random.randint(1, 4))
    want = df.groupby("k", dropna=False).agg(asked)
    grouped.columns = want.columns = ["total", "count", "largest"]
    return grouped.reset_index(), want.reset_index()


JOBS: dict[str, Callable[[Random, int, float], Job]] = {
    "shuffle": shuffled,
    "sort": sort,
    "merge": merge,
    "groupby": groupby,
}


def same(got: pd.DataFrame, want: pd.DataFrame, *, in_order: bool) -> None:
    """Compare rows; those of equal keys may be in any order."""
    if in_order:
        assert got.k.tolist() == want.k.tolist()
    assert list(got.columns) == list(want.columns)
    lacking, more = rows(want) - rows(got), rows(got) - rows(want)
    assert not lacking, f"{lacking.total()} rows are not there: {list(lacking)[:3]}"
    assert not more, f"{more.total()} rows too many: {list(more)[:3]}"


def rows(df: pd.DataFrame) -> Counter[tuple[object, ...]]:
    """How often there is each row; all nulls are alike."""
    plain = df.astype(object).where(df.notna(), None)
    return Counter(plain.itertuples(index=False, name=None))


def simulated(seed: int) -> str:
    """Run the job of a seed; return what came of it."""
    random = Random(seed)
    name = random.choice([*JOBS, "pipeline"])
    if name == "pipeline":
        streaming_swarm.run(seed)
        return "pipeline: right"
    job, want = JOBS[name](random, random.choice([0, 1, 40, 400]), 0)
    futures = weather(seed).cluster()
    config = {
        "exo.shuffle.algorithm": random.choice(["auto", *names()]),
        "exo.shuffle.round-fraction": random.choice([1e-5, 0.08, 0.5]),
        "exo.scheduler.bundle-target": random.choice([0, 0.05]),
    }
    with dask.config.set(config):
        try:
            got = job.compute(scheduler=Scheduler(futures))
        except EXPECTED as error:
            return f"{name}: {type(error).__name__}"
    same(got, want, in_order=name == "sort")
    del got, job
    return f"{name}: right"


def doubled(part: pd.DataFrame) -> pd.DataFrame:
    time.sleep(0.1)
    return part.assign(w=part.v * 2)


def real(seed: int) -> str:
    """Run the job of a seed on Ray, whose workers are killed meanwhile; say what came of it."""
    random = Random(seed)
    name = random.choice([*JOBS, "pipeline"])
    rows = 200_000
    with Chaos(seed, rate=random.choice([0.5, 1.0, 2.0]), most=KILLS) as chaos:
        try:
            if name == "pipeline":
                want = frame(random, rows).assign(w=lambda df: df.v * 2)
                source = dd.from_pandas(want.drop(columns="w"), 24)
                pipeline = of(source).map_partitions(slowly, 0.1).map_partitions(doubled)
                batches = pipeline.iter_batches()
                got = pd.concat(list(batches))
            else:
                job, want = JOBS[name](random, rows, 0.4)
                got = job.compute(scheduler="exo")
        except ExoError as error:
            return f"{name}: {type(error).__name__} after {len(chaos.strikes)} kills"
    same(got, want, in_order=name == "sort")
    return f"{name}: right, {len(chaos.strikes)} kills"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true")
    asked = parser.parse_args()
    run, seen, wrong = (real if asked.real else simulated), Counter[str](), 0
    if asked.real:
        dask_exo.enable(num_cpus=2, object_store_memory="200MB")
    start = time.perf_counter()
    for seed in range(asked.seed, asked.seed + asked.runs):
        try:
            outcome = run(seed)
        except Exception as error:  # noqa: BLE001  it is what is looked for
            wrong += 1
            print(f"seed {seed}: {type(error).__name__}: {error}"[:500], flush=True)
            outcome = "wrong"
        seen[outcome] += 1
        if asked.real:
            print(f"seed {seed}: {outcome}", flush=True)
    for outcome, count in sorted(seen.items()):
        print(f"{count:8d}  {outcome}")
    print(f"{asked.runs} runs, {wrong} wrong, {time.perf_counter() - start:.0f} s")
    if asked.real:
        dask_exo.disable()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
