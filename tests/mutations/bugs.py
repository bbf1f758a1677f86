"""Bugs as one might write them, each a change of one place, and the tests that should see it."""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """A change of a file of the package, and what finds it.

    Attributes
    ----------
    name : str
    file : str
        Below the package.
    old, new : str
        Text that stands there once, and what stands there instead.
    tests : tuple of str
        As pytest takes them.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


UNIT, SIM, PARITY = "tests/unit", "tests/sim", "tests/parity/test_scheduler.py"
SHUFFLE = (f"{UNIT}/shuffle/test_algorithms.py::test_every_row_arrives_once_and_in_input_order",)
AS_DASK = (f"{PARITY}::test_a_dataframe_is_computed_as_by_dask",)
IN_ORDER = (f"{PARITY}::test_input_order_is_kept_within_an_output_partition",)
LATE = (f"{SIM}/test_stragglers.py",)
STREAM = (f"{UNIT}/pipeline/test_recovery.py",)
ORDER = (f"{UNIT}/partitions/test_sort_keys.py::test_rows_are_in_the_order_of_pandas",)

BUGS = [
    # rows
    Bug(
        "a shard is dropped",
        "shuffle/algorithms/simple.py",
        "stage.add_unmerged(rows)",
        "stage.add_unmerged(rows[1:])",
        SHUFFLE,
    ),
    Bug(
        "a shard is doubled",
        "shuffle/algorithms/simple.py",
        "stage.add_unmerged(rows)",
        "stage.add_unmerged([*rows, rows[0]])",
        SHUFFLE,
    ),
    Bug(
        "blocks are merged in the wrong order",
        "shuffle/blocks.py",
        "yield type(packed[0]).join(packed, slots)",
        "yield type(packed[0]).join(packed[::-1], slots)",
        IN_ORDER,
    ),
    Bug(
        "a reducer reads its neighbour's block",
        "execution/worker.py",
        "return packed, source.slot",
        "return packed, max(source.slot - 1, packed[0].first)",
        AS_DASK,
    ),
    Bug(
        "a round is merged twice, and the next one never",
        "shuffle/algorithms/push.py",
        "stage.rounds.append(stage.merge(rows))",
        'stage.rounds.append(stage.merge(first := locals().get("first", rows)))',
        (f"{SIM}/test_shuffle.py::test_dying_and_slow_nodes_change_nothing[push]",),
    ),
    Bug(
        "a bound is off by one",
        "partitions/kernels/range_partition.py",
        "numbers = counts - 1 if ascending",
        "numbers = counts if ascending",
        (f"{UNIT}/partitions/test_range_partition.py",),
    ),
    Bug(
        "null keys go to the wrong end",
        "partitions/kernels/range_partition.py",
        'numbers[s.isna().to_numpy()] = count - 2 if na_position == "last" else 0',
        "pass",
        (f"{UNIT}/partitions/test_range_partition.py",),
    ),
    Bug(
        "null keys are sorted among the others",
        "partitions/kernels/sort_keys.py",
        "return xp.where(nulls, np.int64(place), codes)",
        "return codes",
        ORDER,
    ),
    Bug(
        "a descending key is sorted ascending",
        "partitions/kernels/sort_keys.py",
        "codes = ~codes",
        "pass",
        ORDER,
    ),
    Bug(
        "the last row of a chunk is overwritten",
        "partitions/kernels/kway_merge.py",
        "at += chunk.length",
        "at += chunk.length - (at == 0)",
        (f"{UNIT}/partitions/test_kway_merge.py",),
    ),
    Bug(
        "a merge of runs goes past the end of a chunk",
        "partitions/kernels/kway_merge.py",
        "order = order[: np.flatnonzero(np.isin(order, ends))[0] + 1] if ends else order",
        "order = order[: np.flatnonzero(np.isin(order, ends))[-1] + 1] if ends else order",
        (f"{UNIT}/partitions/test_kway_merge.py",),
    ),
    Bug(
        "a quantile takes the rank below",
        "partitions/kernels/skew.py",
        "return low, low + (fraction > 0), fraction",
        "return low, low, fraction",
        ("dask_exo/partitions/kernels/skew.py",),
    ),
    Bug(
        "a consumer's rows begin one too late",
        "training/epoch_shuffle.py",
        "first, last = max(share.start, start), min(share.stop, self._rows)",
        "first, last = max(share.start, start + 1), min(share.stop, self._rows)",
        (f"{UNIT}/training/test_epoch_shuffle.py",),
    ),
    # what is checked
    Bug(
        "nothing is compared at the end of a shuffle",
        "execution/loop.py",
        "self._accounting.verify()",
        "pass",
        (f"{PARITY}::test_a_row_lost_on_the_way_is_an_error_and_not_a_result",),
    ),
    Bug(
        "rows in the wrong place count as arrived",
        "shuffle/spec.py",
        "if sent.places != arrived.places or (",
        "if (",
        (f"{UNIT}/shuffle/test_spec.py",),
    ),
    Bug(
        "changed keys count as the same",
        "shuffle/spec.py",
        "comparable and sent.keys != arrived.keys",
        "comparable and not sent",
        (f"{UNIT}/shuffle/test_spec.py",),
    ),
    # what is late or lost
    Bug(
        "the blocks of a copy are not taken",
        "shuffle/speculation.py",
        "attempt.row[:] = attempt.copy.blocks",
        "pass",
        LATE,
    ),
    Bug(
        "a merge keeps the blocks of a map that was replaced",
        "shuffle/merge_stage.py",
        "self._submit(merge, args)\n            if all",
        "pass\n            if all",
        LATE,
    ),
    Bug(
        "a merge that is given up leaves its readers nothing",
        "shuffle/merge_stage.py",
        "output.refs = inputs[i]",
        "output.refs = []",
        LATE,
    ),
    Bug(
        "a task of a pipeline that starts anew gives again what it gave",
        "pipeline/streaming/runner.py",
        "start = TaskInputs(task.inputs[0].place, task.taken, origins, task.only is not None)",
        "start = TaskInputs(task.inputs[0].place, 0, origins, task.only is not None)",
        STREAM,
    ),
    Bug(
        "a lost piece is made again as the first one of its task",
        "pipeline/streaming/recovery.py",
        "taken=lineage.number",
        "taken=0",
        STREAM,
    ),
    Bug(
        "a piece is lost between two stages",
        "pipeline/streaming/executor.py",
        "self.queues.add(block._replace(",
        "running.outputs != 1 and self.queues.add(block._replace(",
        (f"{SIM}/test_stream_faults.py",),
    ),
    # memory
    Bug(
        "a ref outlives its last reader",
        "execution/ready_queue.py",
        "if not self._readers[key]:\n            del self._locations[key]",
        "if self._readers[key] < 0:\n            del self._locations[key]",
        (
            f"{UNIT}/execution/test_admission.py::test_a_value_is_let_go_when_its_last_reader_takes_it",
        ),
    ),
    Bug(
        "the limit of a merge is ignored",
        "shuffle/merge_stage.py",
        "if i > start and total + size > cap:",
        "if cap < 0:",
        (f"{UNIT}/shuffle/test_merge_stage.py",),
    ),
    Bug(
        "the store's budget is ignored",
        "execution/admission.py",
        "fits = view.fits(budget) or (",
        "fits = view.stored_bytes >= 0 or (",
        ("dask_exo/execution/admission.py",),
    ),
    Bug(
        "rounds do not wait for the ones before",
        "shuffle/algorithms/push.py",
        "yield from stage.wait_for_rounds(max(0, alive - 2))",
        "yield from stage.wait_for_rounds(99)",
        (f"{SIM}/test_shuffle.py::test_rounds_are_strict",),
    ),
    Bug(
        "a pipeline's sources run without room",
        "pipeline/policies.py",
        "and view.has_room_to_start(i)\n            and (",
        "and (",
        (f"{SIM}/test_stream_faults.py",),
    ),
    Bug(
        "tasks start where memory is nearly full",
        "execution/admission.py",
        "if view.tight:",
        "if view.tight and not view.slots:",
        (f"{UNIT}/execution/test_admission.py",),
    ),
    Bug(
        "a task without memory is sent again as it was",
        "cluster/waiting.py",
        '"num_cpus": slots}',
        '"num_cpus": options.get("num_cpus", 1)}',
        (f"{UNIT}/execution/test_admission.py",),
    ),
    Bug(
        "a full disk is not noticed",
        "shuffle/run_shuffle.py",
        "if d.room < reserve and",
        "if d.room < 0 and",
        (f"{UNIT}/shuffle/test_run_shuffle.py",),
    ),
    # waiting
    Bug(
        "what runs is called a stall",
        "cluster/task_status.py",
        'task.state in {"running", "unknown"}',
        'task.state == "unknown"',
        (f"{UNIT}/cluster/test_waiting.py", f"{SIM}/test_stall.py"),
    ),
    Bug(
        "tasks of one call see each other's writes",
        "execution/worker.py",
        "shared = len(jobs) > 1 or",
        "shared = len(jobs) < 0 or",
        (f"{PARITY}::test_tasks_that_share_a_call_do_not_see_each_others_writes",),
    ),
    # kernels in the place of Dask's
    Bug(
        "a bound itself belongs to the partition before it",
        "partitions/kernels/argsort.py",
        'np.greater if side == "left" else np.greater_equal',
        "np.greater if side else np.greater_equal",
        (
            f"{UNIT}/partitions/test_range_partition.py::test_partitions_of_numbers_are_those_of_dask",
        ),
    ),
    Bug(
        "a row that is not grouped counts its nulls",
        "partitions/kernels/groupby.py",
        "return values.notna()",
        "return values.notna() | True",
        (f"{UNIT}/partitions/test_groupby.py",),
    ),
    Bug(
        "the first row of a side of a join is never found",
        "partitions/kernels/array_join.py",
        "matched = rows >= 0",
        "matched = rows > 0",
        (f"{UNIT}/partitions/test_array_join.py",),
    ),
    Bug(
        "the length of a string is not hashed",
        "partitions/kernels/hash_partition.py",
        "_add(state, rest | (lengths.astype(np.uint64) << np.uint64(56)))",
        "_add(state, rest)",
        (f"{UNIT}/partitions/test_hash_partition.py",),
    ),
]
