"""An algorithm of the papers is a page: lines of code without comments and docstrings.

Neither is ``cost`` counted, an estimate that the papers' figures leave out.
"""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dask_exo.shuffle.algorithms
from dask_exo import shuffle
from dask_exo.cluster.futures import Node
from dask_exo.cluster.waiting import drive
from dask_exo.errors import ConfigError, IntegrityError, SpillError
from dask_exo.shuffle import algorithms
from dask_exo.shuffle.algorithms import choose_algorithm, simple, two_level
from dask_exo.shuffle.blocks import merge, pack
from dask_exo.shuffle.choose import (
    INLINED,
    Limits,
    Shape,
    batch_size,
    merged_objects,
    merging_objects,
)
from dask_exo.shuffle.map_stage import Refs
from dask_exo.shuffle.run_shuffle import run_shuffle
from dask_exo.shuffle.spec import Receipt, ReducerInput, Spec, Tally, verify
from dask_exo.testing import InlineFutures

FOLDER = Path(dask_exo.shuffle.algorithms.__file__).parent
PAPER = {"simple": 215, "riffle": 265, "push": 256, "magnet": 256}  # table 3.2 of the thesis


def lines_of_code(source: str) -> int:
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        estimate = isinstance(node, ast.FunctionDef) and node.name == "cost"
        if isinstance(node, ast.Expr | ast.FunctionDef) and (text or estimate):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in skipped
        for number, line in enumerate(source.splitlines(), 1)
    )


def test_lines_are_counted_without_words() -> None:
    assert lines_of_code('"""Says."""\n\nx = 1  # y\n# z\ndef f():\n    """A\n    b."""\n') == 2
    assert lines_of_code("x = 1\ndef cost():\n    return 2\n") == 1


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("[!_]*.py")))
def test_an_algorithm_has_at_most_a_quarter_of_the_papers_lines(name: str) -> None:
    lines = lines_of_code((FOLDER / f"{name}.py").read_text())
    assert lines <= PAPER.get(name, 256) / 4


ALGORITHMS = shuffle.names()
COUNTED = ["simple", "push", "magnet", "riffle", "two-level", "streaming"]


def cut(owned, *frames):
    """Map of a shuffle by ``k % R``; each part is a frame that exists already."""
    frame = pd.concat(frames)
    ids = (frame["k"] % owned[-1].stop).to_numpy().astype("uint16")
    nbytes = int(frame.memory_usage().sum())
    return [*pack(frame, ids, owned), Receipt(Tally(len(frame)), nbytes, seconds=1.0)]


def nodes(count: int, slots: int = 2, store: int = 10**9) -> tuple[Node, ...]:
    return tuple(Node(f"n{i}", slots, store) for i in range(count))


def run(frames, reducers, machines, **limits):
    f = InlineFutures(machines)
    spec = Spec(reducers, tuple(machines), cut, merge)
    shuffled = drive(f, run_shuffle(f, Refs([f.put(x) for x in frames]), spec, Limits(**limits)))
    parts = []
    for column in shuffled.inputs:
        blocks = [packed.block(column.slot) for packed in f.get(column.refs)]
        parts.append(pd.concat(blocks))
    return shuffled, parts, f


@st.composite
def inputs(draw: st.DrawFn):
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=9))
    total = sum(lengths)
    keys = draw(st.lists(st.integers(0, 50), min_size=total, max_size=total))
    whole = pd.DataFrame({"k": np.array(keys, "i8"), "n": range(total)})
    cuts = np.cumsum([0, *lengths])
    return [whole.iloc[a:b] for a, b in pairwise(cuts)], whole


@given(
    inputs(),
    st.integers(1, 12),
    st.integers(1, 7),
    st.sampled_from(ALGORITHMS),
    st.floats(0.000001, 1.0),
)
def test_every_row_arrives_once_and_in_input_order(data, reducers, count, algorithm, share) -> None:
    frames, whole = data
    machines = nodes(count, store=4000)
    _, parts, _ = run(
        frames, reducers, machines, algorithm=algorithm, round_fraction=share, bundle_target=2.0
    )
    assert len(parts) == reducers
    for r, part in enumerate(parts):
        expected = whole[whole["k"] % reducers == r]
        pd.testing.assert_frame_equal(part, expected)


@pytest.mark.parametrize("m", [1, 5, 40])
@pytest.mark.parametrize("w", [1, 3, 8])
@pytest.mark.parametrize("algorithm", COUNTED)
def test_an_algorithm_makes_as_many_objects_as_it_says(m: int, w: int, algorithm: str) -> None:
    frames = [pd.DataFrame({"k": range(20)}) for _ in range(m)]
    r = 7
    shuffled, _, f = run(frames, r, nodes(w), algorithm=algorithm, round_fraction=1e-9)
    choice, calls = shuffled.choice, shuffled.calls
    width, rounds, probes = choice.knobs["width"], -(-m // choice.per_round), min(m, 2 * w)
    after = -(-(m - probes) // choice.per_round)
    expected = {
        "simple": lambda: simple.packed_objects(calls, r, w, probes, choice.knobs["sharing"]),
        "push": lambda: merging_objects(calls, r, w, rounds, width),
        "magnet": lambda: merging_objects(calls, r, w, rounds, width),
        "streaming": lambda: merging_objects(calls, r, w, rounds, width),
        "riffle": lambda: merging_objects(
            calls, r, w, riffle_merges(m, w, probes, choice.knobs["factor"]), width
        ),
        "two-level": lambda: (
            two_level.packed_objects(calls, w, choice.knobs["groups"], probes)
            + (1 + after) * merged_objects(r, w, width)
        ),
    }
    assert f.objects - m == expected[algorithm]()


def riffle_merges(m: int, w: int, probes: int, factor: int) -> int:
    """The probed parts are merged first; then each node merges as many in every turn."""
    turns = -(-(m - probes) // (w * max(factor, 1)))
    return factor and 1 + min(turns * w, m - probes)


def test_map_outputs_of_push_are_dropped_when_they_are_merged() -> None:
    frames = [pd.DataFrame({"k": range(20)}) for _ in range(12)]
    shuffled, _, f = run(frames, 5, nodes(1), algorithm="push", round_fraction=1e-9)
    rounds = 12 // shuffled.choice.per_round
    assert f.live == rounds * -(-5 // shuffled.choice.knobs["width"])


def test_magnet_keeps_map_outputs_as_long_as_they_may_be_needed() -> None:
    frames = [pd.DataFrame({"k": range(20)}) for _ in range(12)]
    shuffled, _, f = run(frames, 5, nodes(2), algorithm="magnet", round_fraction=1e-9)
    rounds = -(-12 // shuffled.choice.per_round)
    merged = merging_objects(0, 5, 2, rounds, shuffled.choice.knobs["width"])
    assert f.live == merged + 12 * 2
    shuffled.inputs.clear()
    assert f.live == 0


def test_riffle_merges_on_the_node_of_its_maps() -> None:
    asked: list[tuple[str, str | None]] = []

    class Watched(InlineFutures):
        def split(self, count, fn, *args, node=None, options=None):
            asked.append(("map", node))
            return super().split(count, fn, *args, node=node, options=options)

        def stream(self, count, fn, *args, node=None, options=None):
            asked.append(("merge", node))
            return super().stream(count, fn, *args, node=node)

    machines = nodes(3, slots=1)
    f = Watched(machines)
    spec = Spec(4, tuple(machines), cut, merge)
    parts = [f.put(pd.DataFrame({"k": range(20)})) for _ in range(15)]
    limits = Limits(algorithm="riffle", bundle_target=1e-9)
    choice = drive(f, run_shuffle(f, Refs(parts), spec, limits)).choice
    assert choice.knobs["factor"] == 5
    asked = asked[6:]  # after those that were mapped to be measured, and their merges
    assert [node for kind, node in asked if kind == "map"] == ["n0", "n1", "n2"] * 4
    assert [node for kind, node in asked if kind == "merge"] == ["n0", "n1", "n2"]


def test_riffle_does_not_merge_large_blocks_in_memory() -> None:
    frames = [pd.DataFrame({"k": range(10**6)}) for _ in range(8)]
    for store, merges in ((10**9, False), (5 * 10**7, True)):
        shuffled, _, f = run(frames, 1, nodes(2, store=store), algorithm="riffle")
        assert shuffled.choice.knobs["factor"] == merges
        assert (f.objects - 8 > shuffled.calls * 3) is merges


def test_small_parts_share_calls_and_large_ones_do_not() -> None:
    frames = [pd.DataFrame({"k": range(20)}) for _ in range(40)]
    shuffled, _, _ = run(frames, 3, nodes(1), algorithm="simple", bundle_target=10.0)
    assert shuffled.calls == 2 + -(-38 // 10)
    shuffled, _, _ = run(frames, 3, nodes(1), algorithm="simple", bundle_target=0.5)
    assert shuffled.calls == 40


def test_the_totals_of_the_map_side_are_those_of_the_rows() -> None:
    frames = [pd.DataFrame({"k": range(n)}) for n in (3, 0, 7)]
    shuffled, parts, _ = run(frames, 4, nodes(2))
    assert shuffled.tally.rows == 10
    verify("s", shuffled.tally, Tally(sum(len(part) for part in parts)))
    with pytest.raises(IntegrityError):
        verify("s", shuffled.tally, Tally(9))


@given(st.floats(1e-7, 100), st.integers(0, 10**10), st.integers(0, 10**6), st.integers(1, 1000))
def test_a_batch_never_exceeds_its_share_time_or_bytes(seconds, nbytes, remaining, slots) -> None:
    size = batch_size(seconds=seconds, nbytes=nbytes, remaining=remaining, slots=slots, target=0.05)
    assert size >= 1
    assert size == 1 or size * seconds <= 0.05 + 1e-9
    assert size == 1 or size * nbytes <= 64 * 2**20
    assert size == 1 or size <= -(-remaining // (2 * slots))


@given(
    st.integers(1, 10**15), st.integers(1, 10**5), st.integers(1, 40), st.integers(10**8, 10**12)
)
def test_a_round_fits_its_share_unless_slots_would_idle(nbytes, parts, w, store) -> None:
    slots = 4 * w
    shape = Shape(nbytes, parts, 1, w, slots, w * store)
    choice, found = choose_algorithm(shape, Limits(round_fraction=0.15, most_objects=10**9))
    fits = nbytes <= 0.5 * w * store
    better = w == 1 or found["simple"].seconds <= found["push"].seconds
    assert choice.algorithm == ("simple" if fits and better else "push")
    assert 1 <= choice.per_round <= parts
    filled = choice.knobs["alive"] * (choice.per_round - 1) * (nbytes // parts)
    assert (
        filled <= 2 * 0.15 * w * store
        or choice.knobs["alive"] * (choice.per_round - 1) <= 2 * slots
    )
    assert filled <= 2 * 0.3 * w * store
    assert choice.reason


@given(st.integers(1, 10**6), st.integers(1, 5000), st.integers(1, 10**7))
def test_objects_beyond_the_cap_are_shuffled_in_two_levels(parts, w, most) -> None:
    shape, limits = Shape(10**15, parts, 1, w, w, w * 10**9), Limits(most_objects=most)
    choice, _ = choose_algorithm(shape, limits)
    assert (choice.algorithm == "two-level") == (parts * w > most)
    groups = two_level.tune(shape, limits)["groups"]
    assert groups**2 >= w > (groups - 1) ** 2


@given(st.integers(1, 10**10), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 64))
def test_blocks_out_of_core_are_not_in_the_memory_of_the_driver(nbytes, parts, reducers, w) -> None:
    shape = Shape(nbytes, parts, reducers, w, 2 * w, nbytes // 4)
    block, sharing = shape.part // reducers, simple.tune(shape, Limits())["sharing"]
    assert sharing == reducers or sharing * block >= 1.2 * INLINED


def test_the_users_word_is_taken() -> None:
    choice = choose_algorithm(Shape(1, 1, 1, 1, 1, 10), Limits("push"))[0]
    assert choice.algorithm == "push"
    assert "exo.shuffle.algorithm" in choice.reason


WORDS = [["a", "bb", "ccc"], [], ["dd"], ["e", "ff", "g"], ["hhh"]]


def by_length(words):
    return [[w for w in words if len(w) == r + 1] for r in range(3)]


def together(*lists):
    return [word for words in lists for word in words]


@pytest.mark.parametrize("combine", [None, together])
@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
def test_a_program_runs_by_every_algorithm(algorithm, combine) -> None:
    f = InlineFutures(nodes(3))
    program = shuffle.Program(3, by_length, together, combine)
    out = shuffle.run(WORDS, program, algorithm, futures=f)
    assert f.get(out) == [["a", "e", "g"], ["bb", "dd", "ff"], ["ccc", "hhh"]]
    del out
    assert f.live == 0


@pytest.mark.parametrize("combine", [None, together])
@pytest.mark.parametrize(("count", "slots"), [(1, 1), (3, 2)])
@given(st.lists(st.lists(st.sampled_from(["a", "bb", "cc", "ddd"])), min_size=1), st.integers(1, 9))
def test_a_stream_yields_the_result_so_far_after_each_round(
    combine, count, slots, parts, every
) -> None:
    f = InlineFutures(nodes(count, slots))
    program = shuffle.Program(3, by_length, together, combine)
    stops = [*range(every, len(parts), every), len(parts)]
    looks = shuffle.stream(parts, program, every=every, futures=f)
    for stop, seen in zip(stops, looks, strict=True):
        assert (seen.parts, seen.share) == (stop, stop / len(parts))
        blocks = zip(*map(by_length, parts[:stop]), strict=True)
        assert f.get(seen.outputs) == [together(*lists) for lists in blocks]
    del seen
    assert f.live == 0


def test_a_stream_holds_one_state_for_each_reducer() -> None:
    f = InlineFutures(nodes(2, slots=1))
    program = shuffle.Program(3, by_length, together, together)
    for seen in shuffle.stream(WORDS * 20, program, every=4, futures=f):
        assert len(seen.outputs) == 3
        # outputs, states, receipts of a window, and two maps that run ahead, of two blocks each
        assert f.live <= 3 + 3 + 6 + 2 * 2
    assert seen.share == 1


def test_a_stream_starts_maps_of_the_next_round_early() -> None:
    f = InlineFutures(nodes(1, slots=2))
    mapped = []

    def by_length_told(words):
        mapped.append(words)
        return by_length(words)

    program = shuffle.Program(3, by_length_told, together, together)
    looks = shuffle.stream(WORDS * 2, program, every=4, futures=f)
    assert mapped == []
    next(looks)
    assert len(mapped) == 4 + 2


def test_a_failing_part_ends_a_stream() -> None:
    def fail(words):
        raise ZeroDivisionError

    program = shuffle.Program(3, fail, together)
    with pytest.raises(ZeroDivisionError):
        list(shuffle.stream(WORDS, program, every=2, futures=InlineFutures(nodes(1))))


@pytest.mark.parametrize(
    ("parts", "every", "message"), [([], 1, "no parts"), (WORDS, 0, "every=0")]
)
def test_a_stream_of_nothing_is_an_error_at_once(parts, every, message) -> None:
    program = shuffle.Program(3, by_length, together)
    with pytest.raises(ValueError, match=message):
        shuffle.stream(parts, program, every=every, futures=InlineFutures())


def test_too_few_blocks_of_a_program_are_an_error() -> None:
    program = shuffle.Program(4, by_length, together)
    with pytest.raises(ValueError, match="map returned 3 blocks; there are 4 reducers"):
        shuffle.run(WORDS, program, futures=InlineFutures())
    with pytest.raises(ValueError, match="no parts"):
        shuffle.run([], program, futures=InlineFutures())
    with pytest.raises(ConfigError, match=r"'pull' is no shuffle algorithm: .* two-level"):
        shuffle.run(WORDS, program, "pull", futures=InlineFutures())


def test_an_algorithm_from_outside_is_run_by_its_name(monkeypatch) -> None:
    monkeypatch.setattr(algorithms, "_algorithms", dict(algorithms._algorithms))
    took = []

    @shuffle.register
    def one_by_one(futures, maps, spec, *, per_round):
        took.append(per_round)
        rows = yield from maps.take(len(maps))
        yield from maps.finish()
        return [
            ReducerInput([row[w] for row in rows], slot)
            for w, mine in enumerate(spec.owned)
            for slot in mine
        ]

    assert shuffle.names()[-1] == "one-by-one"
    out = shuffle.run(WORDS, shuffle.Program(3, by_length, together), "one-by-one",
                      futures=(f := InlineFutures(nodes(2))))  # fmt: skip
    assert f.get(out)[0] == ["a", "e", "g"]
    assert took == [5]


def test_an_algorithm_that_asks_for_an_unknown_knob_is_refused() -> None:
    def odd(futures, maps, spec, *, speed):
        yield []

    with pytest.raises(ConfigError, match="has unknown keywords: speed"):
        shuffle.register(odd)


def test_a_disk_that_is_too_small_is_an_early_error() -> None:
    frames = [pd.DataFrame({"k": range(1000)}) for _ in range(40)]  # 8 kB each
    small = [Node("a", 2, 50_000, disk=200_000), Node("b", 2, 50_000, disk=10_000)]
    f = InlineFutures(small)
    spec = Spec(5, tuple(small), cut, merge)
    steps = run_shuffle(f, Refs([f.put(x) for x in frames]), spec, Limits(), "sort-7")
    with pytest.raises(
        SpillError, match=r"shuffle sort-7 moves about 317.66 kiB .*\(exo\.spill-directory\)"
    ):
        drive(f, steps)
    assert f.calls == 4  # those that are measured
    roomy = [Node("a", 2, 50_000, disk=400_000), Node("b", 2, 50_000, disk=400_000)]
    unknown = [Node("a", 2, 50_000), Node("b", 2, 50_000, disk=0)]
    for machines in (roomy, unknown):
        shuffled, _, _ = run(frames, 5, machines)
        assert shuffled.choice.algorithm == "push"


def test_a_node_gets_reducers_as_it_has_slots_and_keeps_them() -> None:
    machines = (Node("small", 1, 10**9), Node("large", 3, 10**9))
    for algorithm in ALGORITHMS:
        frames = [pd.DataFrame({"k": range(20)}) for _ in range(6)]
        shuffled, _, _ = run(frames, 8, machines, algorithm=algorithm)
        assert [column.node for column in shuffled.inputs] == ["small"] * 2 + ["large"] * 6
