"""When a wait is a stall, and what is said of it."""

from __future__ import annotations

import copy
import itertools
import re

import pytest
from dask.utils import format_bytes
from hypothesis import given
from hypothesis import strategies as st
from ray.core.generated import common_pb2, gcs_pb2

from dask_exo.cluster.futures import FetchTimeoutError, Node, StoreUsage
from dask_exo.cluster.on_ray.tasks import judge
from dask_exo.cluster.task_status import (
    Activity,
    OutputDigest,
    Snapshot,
    TaskStatus,
    collect_outputs,
    diagnose,
    report_output,
)
from dask_exo.cluster.waiting import Until, Waiting, Watchdog, await_nodes, fetch_values
from dask_exo.errors import ClusterError, ExoError, StalledError
from dask_exo.testing import InlineFutures

CPU, GPU = {"CPU": 1.0}, {"GPU": 1.0}


def snapshot(
    *tasks, others=0, nodes=None, gone=(), used=0, full=None, free=None, spilled=0, place=None
) -> Snapshot:
    names = [f"task-{i}" for i in range(len(tasks))]
    nodes = {"n1": {"CPU": 2.0, "memory": 9e9, "node:x": 1.0}} if nodes is None else nodes
    seen = Activity(tasks, others, nodes, free or {})
    return Snapshot(seen, names, gone, used, 10**9, full, 600.0, spilled, place)


RUNS, HERE, WAITS = (
    TaskStatus("running"),
    TaskStatus("running", CPU, "n1"),
    TaskStatus("pending", CPU),
)
LACKS, UNKNOWN, ENDED = TaskStatus("pending", GPU), TaskStatus("unknown"), TaskStatus("finished")
SPILLED, FREE = TaskStatus("spilled"), {"n1": {"CPU": 1.0}}


@pytest.mark.parametrize(
    "seen",
    [
        snapshot(RUNS),
        snapshot(LACKS, HERE),
        snapshot(UNKNOWN),
        snapshot(WAITS, others=1),
        snapshot(LACKS, WAITS, others=1),
    ],
    ids=["it runs", "one of them runs", "unknown", "others run there", "others run where one can"],
)
def test_where_something_may_still_happen_it_is_no_stall(seen) -> None:
    assert diagnose(seen) is None


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        (snapshot(LACKS), r"no node has 1 GPU; n1 \(2 CPU\)\. Add a node"),
        (snapshot(LACKS, others=3), "no node has 1 GPU"),
        (snapshot(LACKS, gone=["n2"]), r"no node has 1 GPU \(lost: n2\)"),
        (snapshot(WAITS, nodes={}), "no node has 1 CPU; none"),
        (snapshot(TaskStatus("running", CPU, "n2"), gone=["n2"]), r"nodes have died \(lost: n2\)"),
        (snapshot(WAITS, full="'/spill'"), r"the disk of '/spill' is full.* exo\.spill-directory"),
        (snapshot(WAITS, used=960_000_000), r"the object store is full.* exo\.object-store-memory"),
        (snapshot(WAITS), "other programs, or idle actors, hold"),
        (snapshot(WAITS, spilled=10**6), "other programs, or idle actors, hold"),
        (snapshot(WAITS, free=FREE), "other programs, or idle actors, hold"),
        (
            snapshot(WAITS, free=FREE, spilled=10**7, place="'/spill'"),
            (
                r"there are free slots, so inputs are missing.*9.54 MiB .*"
                r"written to disk \(in '/spill'\)"
            ),
        ),
        (
            snapshot(SPILLED, spilled=10**7, place="'/spill'"),
            r"these values were written to disk \(in '/spill'\), and their files have been removed",
        ),
        (snapshot(ENDED), "the cluster reports that they have ended, but does not return"),
    ],
)
def test_a_stall_names_tasks_nodes_bytes_cause_and_key(seen, cause) -> None:
    said = diagnose(seen)
    assert said is not None
    assert re.search(f"Likely cause: {cause}", said), said
    assert "nothing has happened for 600 s" in said
    assert "task-0" in said
    assert f"{format_bytes(seen.used)} of 0.93 GiB" in said
    assert "exo.fault.stall-timeout" in said


def test_of_many_tasks_a_few_are_named() -> None:
    said = diagnose(snapshot(*[LACKS] * 9))
    assert said is not None
    assert "Waiting for 9 tasks: task-0" in said
    assert "task-8" not in said


STATES = st.sampled_from([RUNS, HERE, WAITS, LACKS, UNKNOWN, ENDED])


@given(st.lists(STATES, min_size=1, max_size=5), st.integers(0, 2), st.booleans())
def test_running_is_no_stall_and_unable_to_run_is_one(tasks, others, full) -> None:
    why = diagnose(snapshot(*tasks, others=others, full="/x" if full else None))
    if any(one.state in {"running", "unknown"} for one in tasks):
        assert why is None
    elif LACKS in tasks and WAITS not in tasks:
        assert why is not None


def test_the_error_is_a_timeout_and_travels() -> None:
    error = copy.copy(StalledError("nothing"))
    assert isinstance(error, TimeoutError)
    assert isinstance(error, ExoError)
    assert str(error) == "nothing"


class Nothing(InlineFutures):
    """Time passes, and nothing else."""

    clock = 0.0

    @property
    def now(self) -> float:
        return self.clock

    def wait(self, refs, timeout=None):
        self.clock += timeout
        return [], refs

    def activity(self, refs):
        return Activity([LACKS for _ in refs])


def test_only_time_that_is_spent_waiting_counts() -> None:
    futures = Nothing()
    watchdog = Watchdog(futures, 60.0)
    for _ in range(5):
        futures.clock += 1000.0  # whoever waits does something else
        assert watchdog.wait(["ref"], 10.0) == ([], ["ref"])
    futures.clock += 1000.0
    with pytest.raises(StalledError, match="nothing has happened for 60 s"):
        watchdog.wait(["ref"])
    assert futures.clock == 6 * 1000.0 + 60.0


class Away(Nothing):
    """Holds one value, and another one whose file is gone, or that comes late."""

    restoring: tuple[int, ...] = ()  # bytes that come back from disk in each minute
    state = "spilled"
    asked: tuple[str, ...] = ()

    def get(self, refs, timeout=None):
        late = "lost" in refs
        self.asked += (*refs,)
        self.clock += timeout if late else 0.0
        if late and self.clock < 600.0:
            raise FetchTimeoutError
        return list(refs)

    def store(self):
        return StoreUsage(0, 10**9, sum(self.restoring[: int(self.clock // 60)]))

    def activity(self, refs):
        return Activity([TaskStatus(self.state) for _ in refs])


def test_a_value_that_does_not_come_back_from_disk_is_named() -> None:
    futures = Away()
    with pytest.raises(StalledError, match=r"'a-7' \(written to disk\).*files have been removed"):
        fetch_values(
            futures, ["there", "lost"], 60.0, {"there": "'b'", "lost": "'a-7'"}.__getitem__
        )
    assert futures.clock == 60.0 + 60.0
    assert futures.asked == ("there", "lost", "there", "lost")  # what is there is taken


@pytest.mark.parametrize(("state", "restoring"), [("spilled", (9,) * 10), ("finished", ())])
def test_fetch_waits_while_others_are_restored_or_in_memory(state, restoring) -> None:
    futures = Away()
    futures.state, futures.restoring = state, restoring
    assert fetch_values(futures, ["there", "lost"], 60.0) == ["there", "lost"]
    assert futures.clock == 600.0


# -- what Ray tells

STATUS, TYPE = common_pb2.TaskStatus.Value, common_pb2.TaskType.Value
NODE, DEAD = b"\1" * 28, b"\2" * 28
ALIVE = {NODE.hex(): CPU}


def event(task, *statuses, needs=None, attempt=0, node=NODE, actor=b"", kind="NORMAL_TASK"):
    one = gcs_pb2.TaskEvents(task_id=task, attempt_number=attempt)
    one.task_info.type = TYPE(kind)
    one.task_info.actor_id = actor
    one.task_info.required_resources.update(needs or {})
    clock = itertools.count(1)
    for status in statuses:
        one.state_updates.state_ts_ns[STATUS(status)] = next(clock)
    one.state_updates.node_id = node
    return one


QUEUED = ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT")


@pytest.mark.parametrize(
    ("events", "doing"),
    [
        ([event(b"a", *QUEUED, needs=GPU)], TaskStatus("pending", GPU)),
        ([event(b"a", *QUEUED, "RUNNING", needs=CPU)], TaskStatus("running", CPU, NODE.hex())),
        ([event(b"a", *QUEUED, "RUNNING", "RUNNING_IN_RAY_GET")],
         TaskStatus("running", {}, NODE.hex())),
        ([event(b"a", *QUEUED, "RUNNING", needs=CPU, node=DEAD)], TaskStatus("pending", CPU)),
        ([event(b"a", *QUEUED, "RUNNING", "FINISHED")], TaskStatus("finished", {}, NODE.hex())),
        ([event(b"a", *QUEUED, "RUNNING", "FAILED"), event(b"a", *QUEUED, attempt=1)],
         TaskStatus("pending")),
        ([], TaskStatus("unknown")),
        ([event(b"b", *QUEUED)], TaskStatus("unknown")),
    ],
    ids=["queued", "running", "blocked", "dead node", "finished", "retried", "nothing", "others"],
)  # fmt: skip
def test_what_a_task_does_by_the_events_of_ray(events, doing) -> None:
    assert judge([b"a"], events, ALIVE).tasks == [doing]
    assert judge([b"a"], events[::-1], ALIVE).tasks == [doing]


def test_a_call_of_an_actor_waits_for_what_the_actor_asks_for() -> None:
    events = [
        event(b"c", *QUEUED, needs=GPU, actor=b"x", kind="ACTOR_CREATION_TASK"),
        event(b"a", *QUEUED, actor=b"x", kind="ACTOR_TASK"),
    ]
    assert judge([b"a"], events, ALIVE).tasks == [TaskStatus("pending", GPU)]


def test_others_are_busy_if_they_hold_slots_and_run() -> None:
    events = [
        event(b"1", "RUNNING", needs=CPU),
        event(b"2", "RUNNING", "RUNNING_IN_RAY_WAIT", needs=CPU),  # its slot is free
        event(b"3", "RUNNING", actor=b"x", kind="ACTOR_TASK"),  # of an actor that holds nothing
        event(b"4", *QUEUED, needs=CPU),
        event(b"5", "RUNNING", needs=CPU, node=DEAD),
    ]
    assert judge([], events, ALIVE).others == 1


def test_the_names_of_ray_that_this_needs_are_there() -> None:
    from ray._private.state import state

    assert hasattr(state, "_get_all_task_events") or hasattr(state, "global_state_accessor")
    assert {"RUNNING", "FINISHED", "FAILED"} <= set(common_pb2.TaskStatus.keys())


def test_a_coroutine_waits_for_all_or_any_or_a_time() -> None:
    waiting = Waiting(Until(all=["a", "b"], any=["c"], time=9.0))
    assert waiting.refs == ["a", "b", "c"]
    assert waiting.timeout(7.5) == 1.5
    assert (waiting.over(7.5), waiting.over(9.0)) == (False, True)
    waiting.finished(["b"])
    assert (waiting.refs, waiting.over(8.0)) == (["a", "c"], False)
    waiting.finished(["c"])
    assert waiting.over(8.0)


def test_outputs_are_reported_by_calls_that_have_ids() -> None:
    with collect_outputs("call-7") as outputs:
        assert report_output("map", 3) == OutputDigest("call-7", "map", 3)
    assert len(outputs) == 1
    assert report_output("map", 3) is None


class Growing(InlineFutures):
    """A cluster without nodes; one with a GPU joins ``after`` some seconds if it is asked for."""

    elastic = True

    def __init__(self, after: float = 3.0, *, starts: bool = True) -> None:
        super().__init__()
        self.time, self.after, self.starts = 0.0, after, starts
        self.asked: dict[str, object] = {}

    @property
    def now(self) -> float:
        return self.time

    def wait(self, refs, timeout=None):
        self.time += timeout
        return [], []

    def ask(self, who, wants):
        self.asked[who] = wants
        return self.starts

    def nodes(self) -> list[Node]:
        if self.time < self.after:
            raise ClusterError("no node")
        return [Node("gpu", 4, 10**9, resources={"CPU": 4.0, "GPU": 1.0})]


GPU_TASK = (("CPU", 1.0), ("GPU", 1.0))


def test_a_node_that_starts_is_awaited(capsys) -> None:
    futures = Growing()
    assert [node.id for node in await_nodes(futures, [GPU_TASK], 60.0)] == ["gpu"]
    assert 3 <= futures.time < 5
    assert list(futures.asked.values()) == [{}]  # it is taken back
    assert capsys.readouterr().err.count("waits for a node with 1 CPU, 1 GPU to start") == 1


def test_the_wait_for_a_node_ends(capsys) -> None:
    futures = Growing(after=100.0)
    with pytest.raises(ClusterError, match=r"1 GPU has joined .* 60 s \(exo.fault.node-timeout\)"):
        await_nodes(futures, [GPU_TASK], 60.0)
    assert list(futures.asked.values()) == [{}]


def test_a_cluster_that_does_not_grow_is_not_awaited() -> None:
    with pytest.raises(ClusterError, match="no node"):
        await_nodes(Growing(starts=False), [GPU_TASK], 60.0)
    with pytest.raises(ClusterError, match="no node"):
        await_nodes(Growing(), [GPU_TASK], None)
    two = (("CPU", 1.0), ("GPU", 2.0))  # the caller says that no node has two
    assert await_nodes(Growing(after=0.0, starts=False), [GPU_TASK, two], 60.0)
