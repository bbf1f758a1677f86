"""The queries of TPC-H through the scheduler, against DuckDB over the same files."""

from __future__ import annotations

from pathlib import Path

import dask
import pytest

from dask_exo import Scheduler
from dask_exo.report import recording
from dask_exo.testing import InlineFutures
from examples.tpch.answers import Answers
from examples.tpch.queries import QUERIES
from examples.tpch.tables import Tables, generate, generator, read

pytestmark = pytest.mark.slow

SCALE = 0.01


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables, in partitions so small that each large one has several."""
    if generator() is None:
        pytest.skip("there is no tpchgen-cli to make the tables: pip install tpchgen-cli")
    folder = tmp_path_factory.mktemp("tpch")
    generate(folder, SCALE, partition_size=250e3)
    return folder


@pytest.fixture(scope="session")
def tables(data: Path) -> Tables:
    return read(data, SCALE)


@pytest.fixture(scope="session")
def answers(data: Path) -> Answers:
    pytest.importorskip("duckdb")
    return Answers(data, SCALE)


# At this scale all queries find rows, but those of query 8 are zeros and that of query 17 is null.
@pytest.mark.parametrize("query", QUERIES)
def test_dask_exo_finds_what_duckdb_finds(query, tables, answers) -> None:
    found = QUERIES[query](tables).compute(scheduler=Scheduler(InlineFutures()))
    assert len(found)
    answers.check(query, found)


def test_large_tables_are_shuffled(tables) -> None:
    with recording() as stats:
        QUERIES[9](tables).compute(scheduler=Scheduler(InlineFutures()))
    assert len(stats.shuffles) > 2


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_lazy(query, tables) -> None:
    def run(*args, **kwargs):
        pytest.fail("the query computes")

    with dask.config.set(scheduler=run):
        QUERIES[query](tables)


def test_an_answer_that_differs_is_told(answers) -> None:
    found = answers[10]
    answers.check(10, found)
    with pytest.raises(AssertionError, match="revenue"):
        answers.check(10, found[::-1])
    with pytest.raises(AssertionError, match="c_comment: 1 of 20 rows"):
        answers.check(10, found.assign(c_comment=found.c_comment.where(found.index > 0, "?")))
    with pytest.raises(AssertionError, match="19 rows, not 20"):
        answers.check(10, found[1:])
    with pytest.raises(AssertionError, match="c_acctbal"):
        answers.check(10, found.assign(c_acctbal=found.c_acctbal * (1 + 1e-8)))
