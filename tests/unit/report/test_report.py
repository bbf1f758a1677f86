"""Reports: figures against sums of one's own, advice, and a page that names cannot break."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import dask_exo
from dask_exo import events
from dask_exo.cli.main import main
from dask_exo.cluster.sampling import Load, TaskSamples
from dask_exo.errors import MissingPackageError
from dask_exo.events import CallSpan
from dask_exo.report.advice import advise
from dask_exo.report.collector import Collector
from dask_exo.report.plots import flame
from dask_exo.report.render import facts
from dask_exo.report.summary import (
    CELLS,
    Figures,
    Loads,
    ShuffleMatrix,
    ShuffleSummary,
    Spans,
    StageSummary,
    TaskGroup,
    TaskSpan,
    TaskSummary,
    from_json,
    merge_spans,
    read_summary,
)
from tests._data import inline

HOSTILE = "</script><img src=x onerror=alert(1)>$$\\href{javascript:alert(1)}{x}$$&\"'"


def shuffled(rows: int = 4000, by: str = "k") -> dd.DataFrame:
    source = pd.DataFrame({by: np.arange(rows) % 97, "v": np.arange(rows) * 1.0})
    return dd.from_pandas(source, npartitions=12).shuffle(by, npartitions=7)


def compute(frame, algorithm: str = "auto") -> pd.DataFrame:
    settings = {"exo.shuffle.algorithm": algorithm}
    with dask.config.set(settings), dask.config.set(scheduler=inline(2)):
        return frame.compute()


def test_it_says_what_is_not_kept_and_why(tmp_path) -> None:
    def sized(part: pd.DataFrame) -> pd.DataFrame:
        return part.assign(w=eval("1 + 1"))

    ddf = shuffled().map_partitions(sized, meta={"k": int, "v": float, "w": int}).shuffle("v")
    with (
        dask.config.set({"exo.checkpoint.path": str(tmp_path / "kept")}),
        dask_exo.performance_report(tmp_path / "report.html") as report,
    ):
        compute(ddf)
    (reason,) = set(report.figures.refused.values())
    assert "'sized' reads cannot be followed: eval" in reason
    assert reason in str(report)
    assert "eval, which can read anything" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("as_page", [True, False])
def test_a_report_that_was_written_is_read_again(tmp_path, as_page) -> None:
    file = tmp_path / "report"
    with dask_exo.performance_report(file, price=2.0) as report:
        compute(shuffled(by=HOSTILE))
    if not as_page:
        file.write_text(report.to_json())
    assert from_json(json.loads(report.to_json())) == read_summary(file) == report.figures
    shown = CliRunner().invoke(main, ["report", str(file)])
    assert shown.output == f"{report}\n"
    numbers = CliRunner().invoke(main, ["report", "--json", str(file)])
    assert json.loads(numbers.output) == json.loads(report.to_json())


def test_a_report_of_an_earlier_version_is_read(tmp_path) -> None:
    with dask_exo.performance_report(tmp_path / "report") as report:
        compute(shuffled())
    values = json.loads(report.to_json())
    del values["compiled"], values["shuffles"][0]["divided"]
    assert from_json(values) == report.figures


@pytest.mark.parametrize(
    "content",
    [
        "",
        "<html></html>",
        "[]",
        "{}",
        '{"version": 1}',
        '{"version": 2}',
        '{"version": 3}',
        "\0\xff",
    ],
)
def test_a_file_that_is_no_report_is_named(tmp_path, content) -> None:
    file = tmp_path / "other"
    file.write_text(content)
    shown = CliRunner().invoke(main, ["report", str(file)])
    assert shown.exit_code == 1
    assert shown.output.startswith(f"Error: '{file}' is no report")


@pytest.mark.parametrize("algorithm", ["simple", "push", "two-level", "magnet", "riffle"])
def test_the_figures_are_those_of_the_frame(tmp_path, algorithm) -> None:
    with dask_exo.performance_report(tmp_path / "r.html", price=3600.0) as report:
        result = compute(shuffled(), algorithm)
    figures = report.figures
    (shuffle,) = figures.shuffles
    assert (shuffle.rows, shuffle.maps, shuffle.reducers) == (4000, 12, 7)
    assert shuffle.algorithm == algorithm
    assert (shuffle.merges > 0) is (algorithm in {"push", "two-level", "magnet", "riffle"})
    sizes = [len(part) for part in np.split(result, np.cumsum(_partition_rows())[:-1])]
    assert shuffle.largest == pytest.approx(shuffle.nbytes * max(sizes) / 4000, rel=0.01)
    assert sum(group.count for group in figures.groups) == figures.tasks >= 12 + 7
    assert figures.failed == 0
    assert figures.runs == 1
    assert figures.cost == pytest.approx(figures.nodes * figures.seconds)
    assert 0 < figures.busy <= 1


def _partition_rows() -> list[int]:
    """Rows of each output, by Dask's own scheduler."""
    frame = shuffled()
    return frame.map_partitions(len).compute(scheduler="sync").tolist()


def test_the_last_report_is_that_of_the_last_computation() -> None:
    compute(shuffled(500))
    compute(shuffled(300))
    figures = dask_exo.last_report().figures
    assert [one.rows for one in figures.shuffles] == [300]
    assert figures.shuffles[0].largest is None  # only who records knows who got how much
    assert "300 rows" in str(dask_exo.last_report())
    assert "<dl>" in dask_exo.last_report()._repr_html_()


def test_a_computation_that_fails_is_counted_and_reported(tmp_path) -> None:
    def fail(part):
        if len(part):
            raise KeyError("no")
        return part

    path = tmp_path / "failed.html"
    broken = shuffled().map_partitions(fail, meta=shuffled()._meta)
    with pytest.raises(KeyError), dask_exo.performance_report(path) as report:
        compute(broken)
    assert report.figures.failed == 1
    assert "raised" in path.read_text()
    failure = report.figures.failures[-1]
    assert "in fail" in failure.traceback
    assert f"failed: {failure.name}: KeyError: 'no'" in str(report)
    assert "<details><summary>" in path.read_text()


def test_json_has_every_figure_with_its_unit() -> None:
    compute(shuffled())
    found = json.loads(dask_exo.last_report().to_json())
    assert found["units"] == {
        "seconds": "s",
        "nbytes": "bytes",
        "price": "$ per node and hour",
        "cost": "$",
    }
    assert found["shuffles"][0]["rows"] == 4000
    assert set(Figures.__dataclass_fields__) <= set(found)


def test_the_price_may_stand_in_the_configuration() -> None:
    compute(shuffled())
    assert dask_exo.last_report().figures.cost is None
    with dask.config.set({"exo.report.node-price": 2.0}):
        figures = dask_exo.last_report().figures
    assert figures.cost == pytest.approx(figures.node_hours * 2.0)
    tb = figures.shuffled / 1e12
    assert figures.cost_per_terabyte == pytest.approx(figures.cost / tb)


def test_without_bokeh_it_is_refused_before_anything_runs(monkeypatch, tmp_path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "bokeh", None)
    ran = []
    refused = pytest.raises(MissingPackageError, match=r"dask-exo\[report\]")
    with refused, dask_exo.performance_report(tmp_path / "r.html"):
        ran.append(1)
    assert not ran


class _Tags(HTMLParser):
    """Collects the elements of a page, as a browser would."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def test_names_of_users_are_text_and_the_page_asks_no_network(tmp_path) -> None:
    path = tmp_path / "hostile.html"
    frame = shuffled(by=HOSTILE)
    with dask_exo.performance_report(path):
        compute(frame)
        with dask.config.set(scheduler=inline(2)):
            dask.delayed(sum)([1], dask_key_name=HOSTILE).compute()
        stacks = {(f"{HOSTILE} {HOSTILE}",): 9}
        events.emit(events.StageSeen(HOSTILE, 0, 0, 1, 1, 1, 1.0, HOSTILE, stacks=stacks))
        events.emit(events.TaskFailed(HOSTILE, HOSTILE, HOSTILE))
    page = path.read_text()
    seen = _Tags()
    seen.feed(page)
    assert not any(tag == "img" or "onerror" in attrs for tag, attrs in seen.tags)
    assert not any(attrs.get("src") or attrs.get("href") for _, attrs in seen.tags)
    assert [tag for tag, _ in seen.tags].count("script") == 4  # bokeh and its start, ours, ours
    assert "default-src 'none'" in page
    assert len(page) < 3e6
    pictures = [text for text in re.findall(r"<script.*?</script>", page, re.S) if "roots" in text]
    assert "$$" not in pictures[-1]  # what bokeh would take for TeX, and look for on a network


def slow(part: pd.DataFrame) -> pd.DataFrame:
    end = time.perf_counter() + 0.3
    while time.perf_counter() < end:
        pass
    return part


def test_the_profile_has_the_functions_of_the_user_and_the_load_of_machines(tmp_path) -> None:
    path = tmp_path / "profile.html"
    with dask_exo.performance_report(path) as report:
        compute(shuffled().map_partitions(slow))
    stacks = report._record.stacks
    found = {stack[-1].split()[0] for counts in stacks.values() for stack in counts}
    assert "slow" in found
    assert report._record.loads.all
    page = path.read_text()
    assert "Profile" in page
    assert "Machines" in page
    assert "report/test_report.py" in page


def test_totals_have_no_stacks() -> None:
    record = Collector()
    samples = TaskSamples({("f a:1",): 3}, None)
    ran = CallSpan("n", 1, 0.0, 1.0, 0, samples=samples)
    record(events.TasksFinished("map", 1, 1.0, 1, ran))
    assert record.stacks == {}


# -- decisions and kernels


STACKS = st.dictionaries(
    st.sampled_from("ab"),
    st.dictionaries(
        st.lists(st.sampled_from("xyz"), max_size=4).map(tuple), st.integers(1, 9), min_size=1
    ),
)


@given(STACKS)
def test_a_flame_has_all_samples_and_functions_within_their_callers(stacks) -> None:
    bars = list(flame(stacks))
    for depth, start, stop, _ in bars:
        assert start < stop
        callers = [b for b in bars if b[0] == depth - 1 and b[1] <= start and stop <= b[2]]
        assert len(callers) == (depth > 0)
    for group, counts in stacks.items():
        (bar,) = [bar for bar in bars if bar[0] == 0 and bar[3] == group]
        assert bar[2] - bar[1] == sum(counts.values())
        for name in "xyz":
            inside = [b for b in bars if b[0] == 1 and b[3] == name and bar[1] <= b[1] < bar[2]]
            assert sum(stop - start for _, start, stop, _ in inside) == sum(
                n for stack, n in counts.items() if stack[:1] == (name,)
            )


def test_loads_are_rates_and_bounded() -> None:
    loads = Loads(most=10)
    for second in range(100):
        loads.add("n", float(second), Load(1.5 * second, 1000 * second, 0))
        loads.add("n", second + 0.1, Load(0.0, 0, 0))  # of another worker, at once
    samples = loads.all["n"]
    assert len(samples) <= 10
    assert {(s.processors, s.disk, s.network) for s in samples} == {(1.5, 1000.0, 0.0)}
    assert loads.gpus is None


def test_gpus_are_as_busy_as_the_machines_say_and_not_as_their_tasks() -> None:
    loads = Loads()
    for second, (first, second_node) in enumerate([(1.0, 0.0), (0.5, 1.0), (0.0, 0.5)]):
        loads.add("a", float(second), Load(0.0, 0, 0, first))
        loads.add("b", float(second), Load(0.0, 0, 0, second_node))
    assert [s.gpus for s in loads.all["a"]] == [0.5, 0.0]
    assert loads.gpus == 0.5 + 0.5
    figures = replace(QUIET, gpus=2.0, gpu_work=20.0)
    assert figures.gpu_busy == 1.0
    assert replace(figures, gpus_used=loads.gpus).gpu_busy == 0.5
    shown = dict(facts(replace(figures, gpus_used=loads.gpus)))
    assert shown["GPUs busy"] == "50 % of 2, by NVML"


QUIET = Figures(runs=1, seconds=10.0, slots=2, work=19.0, nodes=1, store=10**9)
SHUFFLE = ShuffleSummary("s", "push", "", 10, 10, 1, 0, 10, 10, 10**9, 5.0, largest=10**8)

CASES = {
    "spilled": replace(QUIET, spilled=10**9, shuffles=(SHUFFLE,)),
    "heavy hitters": replace(QUIET, shuffles=(replace(SHUFFLE, largest=9 * 10**8),)),
    "larger partitions": replace(QUIET, groups=(TaskGroup("g", 5000, 5.0, 10, 0, 9),)),
    "more partitions": replace(QUIET, work=2.0, slots=8, groups=(TaskGroup("g", 2, 2.0, 1, 0, 9),)),
    "smaller partitions there": replace(
        QUIET, slowest=(TaskSummary("t", 8.0, 1),), groups=(TaskGroup("g", 50, 19.0, 1, 0, 9),)
    ),
    "no split_out=1": replace(
        QUIET,
        slowest=(TaskSummary("sum-tree-1 0", 8.0, 1),),
        groups=(TaskGroup("g", 50, 19.0, 1, 0, 9),),
    ),
    "GPUs were busy 10 %": replace(
        QUIET, gpus=1.0, gpu_work=1.0, stages=(StageSummary("read", 1, 1, 9.0, 0.0, {}),)
    ),
    "waited for memory": replace(
        QUIET, stages=(StageSummary("s", 1, 1, 9.0, 0.0, {"memory": 0.9}),)
    ),
    "Work was repeated": replace(QUIET, recovered={"late map run a second time": 2}),
    "raised": replace(QUIET, failed=1),
}


@pytest.mark.parametrize("said", CASES)
def test_advice_names_what_stands_out(said) -> None:
    lines = advise(CASES[said])
    assert any(said in line for line in lines), lines
    assert not any(said in line for line in advise(QUIET))


def test_advice_is_three_lines_with_failures_first() -> None:
    worst = replace(
        QUIET,
        failed=1,
        spilled=10**10,
        shuffles=(replace(SHUFFLE, largest=9 * 10**8),),
        recovered={"x": 1},
        stages=(StageSummary("s", 1, 1, 9.0, 0.0, {"memory": 0.9}),),
    )
    lines = advise(worst)
    assert len(lines) == 3
    assert "raised" in lines[0]
    assert advise(Figures()) == []


@given(
    parts=st.integers(1, 200),
    outputs=st.integers(1, 200),
    step=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_a_matrix_loses_no_bytes(parts, outputs, step, seed) -> None:
    rng = np.random.default_rng(seed)
    matrix, sent = ShuffleMatrix(parts, outputs), np.zeros(outputs)
    for start in range(0, parts, step):
        mine = rng.integers(0, 1000, outputs).astype(float)
        matrix.add(start, min(step, parts - start), mine)
        sent += mine
    assert matrix.cells.shape == (min(parts, CELLS), min(outputs, CELLS))
    np.testing.assert_allclose(matrix.totals, sent)
    np.testing.assert_allclose(matrix.cells.sum(), sent.sum())


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 9), st.floats(0.01, 1))), st.floats(0, 2)
)
def test_joining_spans_keeps_tasks_and_bytes_and_ends(found, gap) -> None:
    spans = [TaskSpan("n", ord(g), g, start, start + took, 1, 10) for g, start, took in found]
    less = merge_spans(spans, gap)
    assert sum(one.tasks for one in less) == len(spans)
    assert sum(one.nbytes for one in less) == 10 * len(spans)
    for process in {one.process for one in spans}:
        mine = [one for one in spans if one.process == process]
        after = [one for one in less if one.process == process]
        assert min(s.start for s in mine) == min(s.start for s in after)
        assert max(s.stop for s in mine) == max(s.stop for s in after)


def test_spans_are_bounded() -> None:
    spans = Spans(most=100)
    for i in range(5000):
        spans.add(TaskSpan("n", i % 3, f"g{i % 7}", i * 0.1, i * 0.1 + 0.05, 1, 1))
    assert len(spans.all) <= 100
    assert sum(one.tasks for one in spans.all) == 5000


def test_tasks_of_a_call_lie_one_after_the_other() -> None:
    record = Collector(detailed=True)
    record(events.RunStarted({"g": 2}, time=100.0))
    ran = CallSpan("n", 7, 101.0, 3.0, 50)
    each = (("g-1", 1.0, 5), ("g-2", 2.0, 6))
    record(events.TasksFinished("g", 2, 3.0, 11, ran, each, time=104.5))
    assert [(s.start, s.stop, s.nbytes) for s in record.spans.all] == [
        (101.0, 102.0, 5),
        (102.0, 104.0, 6),
    ]
    (group,) = record.figures().groups
    assert (group.first, group.last, group.seconds) == (1.0, 4.0, 3.0)
    assert record.figures().slowest[0] == TaskSummary("g-2", 2.0, 6)
    assert record.figures().peak_rss == 50


def test_task_names_are_short() -> None:
    record = Collector()
    record(events.RunStarted({"read": 1}, time=1.0))
    each = ((("read-" + 8 * "0b1c", 3), 1.0, 5), ("total-" + 32 * "a", 0.5, 1))
    record(events.TasksFinished("read", 2, 1.5, 6, None, each, time=2.0))
    record(events.RunFinished(1.0, 1, 2, 10, 0, failed=False, time=3.0))
    figures = record.figures()
    assert [one.name for one in figures.slowest] == ["read-0b1c 3", "total-aaaa"]


@pytest.mark.parametrize("persist", [False, True])
def test_a_report_says_everything_of_the_local_engine(tmp_path, persist) -> None:
    with (
        dask.config.set({"exo.engine": "local", "scheduler": dask_exo.get}),
        dask_exo.performance_report(tmp_path / "r.html") as report,
    ):
        rows = shuffled()
        assert len((rows.persist() if persist else rows).compute())
    reason = "exo.engine is 'local'"
    for one in [report] if persist else [dask_exo.last_report(), report]:
        figures = one.figures
        assert figures.engines == {"local": reason}
        assert min(figures.tasks, figures.calls, figures.work) > 0
        assert [shuffle.rows for shuffle in figures.shuffles] == [len(rows)]
        assert f"local: {reason}" in str(one)
    assert "local: exo.engine is" in (tmp_path / "r.html").read_text()
