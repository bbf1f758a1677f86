"""Pipelines on plain generators: actors that die, inputs that are lost or set aside."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.errors import NonDeterminismError, ValueLostError, WorkerLostError
from dask_exo.pipeline import Rejects
from dask_exo.pipeline.policies import PartitionAdmission
from dask_exo.pipeline.streaming.blocks import Block, StageSpec
from dask_exo.pipeline.streaming.executor import Executor
from dask_exo.pipeline.streaming.recovery import MAX_REPLACEMENTS, TaskState
from dask_exo.pipeline.streaming.runner import StreamRunner
from dask_exo.pipeline.streaming.task import StageCode
from dask_exo.pipeline.streaming.transforms import RAISE, ErrorPolicy, Transform
from dask_exo.pipeline.to_dask import PartitionProducer
from dask_exo.report import recording
from dask_exo.testing import Died, InlineFutures
from dask_exo.testing.inline import InlineActor, InlineRef

SKIP = ErrorPolicy(skip=True)


def executor(
    transforms,
    inputs,
    futures=None,
    error_policy=RAISE,
    target=10**6,
    nondeterminism="error",
    small=False,
    patience=2.0,
    **options,
):
    """A stage for each transform."""
    stages = [
        StageSpec(t.name, {"CPU": 1.0}, apart=t.error_policy.skip, **options) for t in transforms
    ]
    rest = (target, error_policy, {}, nondeterminism)
    codes = [StageCode(t.name + str(i), [t], *rest) for i, t in enumerate(transforms)]
    runner = StreamRunner(futures or InlineFutures(), stages, codes, patience=patience)
    pieces = iter([Block(frame, 0, 0, (i,), small=small) for i, frame in enumerate(inputs)])
    return Executor(stages, [pieces], runner, PartitionAdmission(), limit=10**9, target=target)


def outputs(executor):
    found = []
    while not executor.finished:
        executor.step(0)
        while executor.outputs:
            found.append(executor.take())
    executor.cancel()
    return found


def parts(count=4, rows=5):
    return [pd.DataFrame({"n": range(i * rows, (i + 1) * rows)}) for i in range(count)]


class Dies:
    """Its process dies on one partition, as often as is said."""

    times = 0

    def __call__(self, frame):
        if 7 in frame.n.tolist() and Dies.times:
            Dies.times -= 1
            raise Died
        yield frame.iloc[:2]
        yield frame.iloc[2:]


def test_a_killer_input_is_an_error_with_rows_or_a_reject():
    first = Transform("partitions", lambda frame: frame, error_policy=SKIP)

    def run(error_policy):
        Dies.times = MAX_REPLACEMENTS + 1
        last = Transform("partitions", Dies, error_policy=error_policy)
        return executor([first, last], parts(), error_policy=SKIP)

    with pytest.raises(WorkerLostError, match="4 times on the same input, partition 1 rows 0:5"):
        outputs(run(RAISE))
    skipping = run(SKIP)
    found = outputs(skipping)
    assert sorted(pd.concat([piece.value.value for piece in found]).n) == [
        *range(5),
        *range(10, 20),
    ]
    (reject,) = Rejects(skipping.rejects, lambda ref: ref.value)
    assert (reject.stage, reject.partition, len(reject.frame)) == ("Dies", 1, 5)
    assert isinstance(reject.error, WorkerLostError)


def test_a_worker_that_dies_now_and_then_costs_nothing():
    futures, Dies.times = InlineFutures(), 2
    stage = Transform("partitions", Dies, error_policy=SKIP)
    running = executor([stage], parts(), futures, target=10)
    assert sorted(pd.concat([p.value.value for p in outputs(running)]).n) == list(range(20))
    assert not running.rejects
    assert not futures.actors


class Fickle:
    """Gives other rows each time, and its process dies once between two pieces."""

    calls = 0

    def __call__(self, frame):
        Fickle.calls += 1
        made = frame + 100 * Fickle.calls
        yield made.iloc[:2]
        if Fickle.calls == 1:
            raise Died
        yield made.iloc[2:]


def test_a_retried_task_with_other_outputs_is_an_error():
    def run(mode):
        Fickle.calls = 0
        stage = Transform("partitions", Fickle)
        return executor([stage], parts(1), target=10, nondeterminism=mode)

    with pytest.raises(NonDeterminismError, match="stage 'Fickle' ran again on partition 0"):
        outputs(run("error"))
    with pytest.warns(UserWarning, match="exo.fault.nondeterminism"):
        outputs(run("warn"))
    mixed = pd.concat([piece.value.value for piece in outputs(run("ignore"))])
    assert set(mixed.n // 100) == {1, 2}


class Loses(InlineFutures):
    """Loses values that tasks read, as often as is said."""

    def __init__(self, losses):
        super().__init__()
        self._losses = iter(losses)
        self.lost, self._gone = 0, set()

    def values_of(self, args):
        for ref in args[2:]:  # those before are no outputs of a stage
            if isinstance(ref, InlineRef) and (ref in self._gone or next(self._losses, False)):
                self._gone.add(ref)
                self.lost += 1
                raise ValueLostError("lost with its node")
        return super().values_of(args)


class Halves:
    """Is kept by workers of its own, and gives two pieces."""

    def __call__(self, frame):
        yield frame.iloc[: len(frame) // 2]
        yield frame.iloc[len(frame) // 2 :]


class Adds:
    """Is kept by workers of its own; what it gives is always the same."""

    def __call__(self, frame):
        return frame + 100


STAGES = [
    Transform("partitions", lambda frame: frame),
    Transform("partitions", Halves),
    Transform("partitions", Adds),
    Transform("partitions", lambda frame: frame + 1000),
]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), max_size=60), st.sampled_from([0, 7]))
def test_values_lost_with_a_node_are_recomputed(losses, least):
    futures = Loses(losses)
    running = executor(STAGES, parts(), futures, target=10, small=True, least=least)
    try:
        found = outputs(running)
    except ValueLostError:
        assert futures.lost > MAX_REPLACEMENTS  # more often on one input than it is tried
        return
    got = pd.concat([piece.value.value for piece in found])
    assert sorted(got.n) == list(range(1100, 1120))
    assert len({piece.place for piece in found}) == len(found)
    assert not futures.actors


def test_a_stall_names_each_task_also_while_recomputing():
    running = executor(STAGES, parts(), target=10, small=True)
    while not running.outputs:
        running.step(0)
    running.recompute(running.take())
    assert len(running._activity().tasks) == len(running._waited_for())
    runner = running._runner
    task = leaf = next(iter(running._recomputing))
    while leaf.maker is not None:
        leaf = leaf.maker
    leaf.stream = None  # it waits for a worker
    assert runner.activity([task]).tasks[0].state == "pending"


def test_outputs_that_the_consumer_has_lost_come_once_more():
    running = executor(STAGES, parts(), target=10, small=True)
    found, renewed = [], []
    while not running.finished:
        running.step(0)
        while running.outputs:
            found.append(running.take())
            running.recompute(found[-1])
        while running.recomputed:
            renewed.append(running.recomputed.pop())
    running.cancel()
    assert len(found) == len(renewed) > 8
    for piece in renewed:
        (first,) = (one for one in found if one.place == piece.place)
        pd.testing.assert_frame_equal(first.value.value, piece.value.value)


class Stuck(InlineFutures):
    """A node is gone with the input of a worker, and the workers have all slots that are left."""

    def __init__(self):
        super().__init__()
        self.lost, self.stopped = False, 0

    def resources(self, *, free=False):
        return {} if free else super().resources()

    def wait(self, refs, timeout=None):
        return ([], list(refs)) if self.lost else (list(refs), [])

    def actor(self, options, cls=None, *args):
        return StuckActor(self, self.actors, cls(*self.values_of(args)))


class StuckActor(InlineActor):
    def generate(self, fn, *args, seed=""):
        self._futures.lost = not self._futures.stopped
        return super().generate(fn, *args, seed=seed)

    def stop(self):
        super().stop()
        self._futures.stopped += 1
        self._futures.lost = False  # there is a slot, in which it is made again


def test_actors_release_slots_to_recompute_lost_inputs():
    futures = Stuck()
    found = outputs(executor([STAGES[0], STAGES[2]], parts(), futures, patience=0.0))
    assert sorted(pd.concat([piece.value.value for piece in found]).n) == list(range(100, 120))
    assert futures.stopped >= 1
    assert not futures.actors


class Filters:
    """Runs on actors of its own, and makes no output."""

    def __call__(self, frame):
        yield from ()


def test_drained_tasks_are_no_longer_recalled():
    futures = Stuck()
    code = StageCode("filters", [Transform("partitions", Filters)], 10**6, RAISE, {})
    runner = StreamRunner(futures, [StageSpec("filters", {"CPU": 1.0})], [code])
    drained, running = (
        runner.start(0, [Block(frame, 0, 0, (i,))]) for i, frame in enumerate(parts(2))
    )
    futures.lost = False
    assert runner.wait([drained], 0) == [drained]
    futures.lost = True
    runner.recovery.recall()
    assert (drained.state, running.state) == (TaskState.DRAINED, TaskState.RECALLED)
    assert runner.take(drained) is None
    assert futures.stopped == 1  # the actor of the recalled task
    assert runner.wait([running], 0) == [running]
    assert runner.take(running) is None
    runner.cancel([])
    assert not futures.actors


def test_what_nothing_is_kept_of_is_an_error_that_names_the_rows():
    with pytest.raises(ValueLostError, match=r"stage 'Halves', partition 0 rows .*, was lost"):
        outputs(executor(STAGES, parts(), Loses([True] * 50), target=10))


def test_what_differs_when_it_is_made_again_is_an_error():
    class Counts:
        calls = 0

        def __call__(self, frame):
            Counts.calls += 1
            return frame + Counts.calls

    stages = [STAGES[0], Transform("partitions", Counts), STAGES[2]]
    with pytest.raises(NonDeterminismError, match="stage 'Counts' ran again on partition 0"):
        outputs(executor(stages, parts(1), Loses([False, True]), target=10**6, small=True))


def test_tasks_that_start_anew_are_reported():
    Dies.times = 2
    with recording() as stats:
        outputs(executor([Transform("partitions", Dies)], parts(), target=10))
    assert stats.repeated == {"Dies": 2}


class DiesLater(Dies):
    """Dies when it has given some of its outputs."""

    def __call__(self, frame):
        yield frame.iloc[:3]
        if 7 in frame.n.tolist() and Dies.times:
            Dies.times -= 1
            raise Died
        yield frame.iloc[3:]


def test_a_death_between_outputs_repeats_none_of_them():
    Dies.times = 2
    found = outputs(executor([Transform("partitions", DiesLater)], parts(), target=10))
    assert Dies.times == 0
    assert sorted(pd.concat([piece.value.value for piece in found]).n) == list(range(20))
    assert len({piece.place for piece in found}) == len(found) > 8


def test_origins_go_through_stages_that_cut_and_put_together():
    def check(frame):
        if 12 in frame.n.tolist():
            raise ValueError("poison")
        return frame

    same = Transform("partitions", lambda frame: frame)
    last = Transform("batches", check, batch_size=4, error_policy=SKIP)
    running = executor([same, last], parts(4, 5), least=8)
    found = outputs(running)
    rejects = Rejects(running.rejects, lambda ref: ref.value)
    bad = rejects[0].frame.n.tolist()
    assert 12 in bad
    rows = [(r.partition, i) for r in rejects[0].origin.rows for i in range(r.start, r.stop)]
    assert [5 * partition + i for partition, i in rows] == bad
    assert sorted([*pd.concat([piece.value.value for piece in found]).n, *bad]) == list(range(20))
    (row,) = rejects.table().to_dict("records")
    assert row["error"] == "ValueError: poison"
    assert (row["function"], row["rows"]) == ("check", len(bad))
    assert rejects[:1][0].origin == rejects[0].origin


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=8),
    st.integers(0, 15),
    st.integers(20, 400),
)
def test_a_partition_completes_once_after_all_its_blocks(sizes, least, target):
    inputs = [pd.DataFrame({"n": [i] * rows}) for i, rows in enumerate(sizes)]
    steps = [Transform("partitions", lambda frame: frame) for _ in range(3)]
    running = executor(steps, inputs, target=target, least=least)
    told, rows = [], 0
    running.queues.complete = told.append
    while not running.finished:
        running.step(0)
        while running.outputs:
            before = list(told)
            piece = running.take()
            assert piece.place[0] not in before
            rows += piece.rows
    assert sorted(told) == list(range(len(sizes)))
    assert rows == sum(sizes)


def test_persisted_partitions_arrive_and_dropped_ones_end_it():
    started = []

    def start():
        started.append(1)
        same = Transform("partitions", lambda frame: frame)
        none = Transform("filter", lambda frame: frame.n % 10 < 5)
        return executor([same, none], parts(), target=10), InlineFutures()

    producer = PartitionProducer(start, pd.DataFrame({"n": [0]}).iloc[:0])
    promises = producer.promises(4)
    assert not started
    assert promises[2].result().n.tolist() == list(range(10, 15))
    got = [promise.result().n.tolist() for promise in promises]
    assert got == [list(range(5)), [], list(range(10, 15)), []]
    assert started == [1]

    def fails():
        raise OSError("no cluster")

    (one,) = PartitionProducer(fails, pd.DataFrame()).promises(1)
    with pytest.raises(OSError, match="no cluster"):
        one.result()


def test_a_block_goes_to_all_branches_and_twice_to_a_union():
    def named(name):
        def mark(frame):
            return frame.assign(by=name)

        return Transform("partitions", mark)

    transforms = [Transform("partitions", lambda frame: frame), named("left"), named("right")]
    transforms += [Transform("write", lambda frame, name: frame.assign(name=name))]
    takes = [(), (0,), (0,), (1, 2)]
    stages = [StageSpec(str(i), {"CPU": 1.0}, takes=some) for i, some in enumerate(takes)]
    codes = [StageCode(str(i), [t], 60, RAISE, {}) for i, t in enumerate(transforms)]
    runner = StreamRunner(InlineFutures(), stages, codes)
    pieces = iter([Block(frame, 0, 0, (i,)) for i, frame in enumerate(parts())])
    told = []
    running = Executor(
        stages,
        [pieces],
        runner,
        PartitionAdmission(),
        limit=10**9,
        target=60,
        sinks=[(3,), (0,)],
    )
    running.queues.complete = told.append
    found = outputs(running)
    assert sorted(told) == [0, 1, 2, 3]
    met = pd.concat([piece.value.value for piece in found if piece.sink == 0])
    assert sorted(zip(met.n, met.by, strict=True)) == sorted(
        (n, by) for n in range(20) for by in ("left", "right")
    )
    pieces_of = met.groupby("name").by.nunique()
    assert (pieces_of == 1).all()  # no two pieces have the same name
    read = pd.concat([piece.value.value for piece in found if piece.sink == 1])
    assert sorted(read.n) == list(range(20))
