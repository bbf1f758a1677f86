"""Pipelines of the thesis on a virtual clock, by every policy and by the best schedule there is.

``python -m asv_bench.benchmarks.streaming_sim`` prints the tables of
``docs/performance-pipelines.md``: time under limits of memory beside the optimum, and workloads
that change while they run beside the best fixed parallelism. Virtual time is exact: the same tables
come out everywhere.

References: thesis section 2.5, figures 2.6, 2.7 and 2.11 to 2.15.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

from asv_bench.simulation.optimal_schedule import Chain, Operator, lower_bound, search
from asv_bench.simulation.pipeline import Outcome, Piece, SimPipeline, simulate
from asv_bench.simulation.static_policy import Static
from dask_exo.pipeline.policies import Adaptive, Conservative, PartitionAdmission, StagedPolicy
from dask_exo.pipeline.streaming.blocks import StageSpec
from dask_exo.pipeline.streaming.snapshot import Policy

LIMITS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 40, 160)  # partitions
PART = 100  # bytes of one


class Workload(NamedTuple):
    """A pipeline whose durations are known.

    ``seconds(stage, number)`` gives those of the outputs of a task, by the number of the source's
    input.
    """

    needs: Sequence[str]
    inputs: int
    slots: dict[str, float]
    seconds: Callable[[int, int], Sequence[float]]

    def run(self, policy: Policy, partitions: int = 1000) -> Outcome:
        """Run it with room for so many partitions."""
        stages = [StageSpec(f"s{i}", {name: 1.0}) for i, name in enumerate(self.needs)]
        runner = SimPipeline(stages, self.slots, self.work)
        return simulate(runner, self.inputs, policy, limit=partitions * PART, target=PART)

    def work(self, stage: int, inputs: Sequence[Piece]) -> list[tuple[float, int]]:
        """See `asv_bench.simulation.pipeline.TaskCosts`."""
        return [(one, PART) for one in self.seconds(stage, inputs[0].place[0])]

    def static(self) -> tuple[Sequence[int], Outcome]:
        """The fixed numbers of slots that are best for it, by trying all."""
        each = [range(1, int(self.slots[name]) + 1) for name in self.needs]
        fits = [
            some
            for some in product(*each)
            if all(
                sum(n for n, name in zip(some, self.needs, strict=True) if name == slot) == total
                for slot, total in self.slots.items()
            )
        ]
        runs = {some: self.run(Static(some)) for some in fits}
        best = min(runs, key=lambda some: runs[some].seconds)
        return best, runs[best]


def evenly(*seconds: float, outputs: int = 1) -> Callable[[int, int], Sequence[float]]:
    """So many seconds a task of each stage; the source gives so many outputs."""
    return lambda stage, _: [seconds[stage] / outputs] * outputs if stage == 0 else [seconds[stage]]


CHAIN = ["CPU", "CPU", "GPU"]
WORKLOADS: dict[str, Workload] = {
    # figure 2.6: decode, generate, encode
    "images": Workload(["CPU", "GPU", "CPU"], 200, {"CPU": 8, "GPU": 1}, evenly(0.8, 0.25, 0.4)),
    # figure 2.11
    "inference": Workload(CHAIN, 160, {"CPU": 8, "GPU": 4}, evenly(5.0, 0.5, 0.5, outputs=5)),
    # figure 2.13: 4,500 frames of one video, 16 at a time
    "one video": Workload(
        ["CPU", "CPU"], 1, {"CPU": 8}, lambda i, _: [0.01] * 282 if i == 0 else [0.5]
    ),
    # figure 2.14
    "videos, light": Workload(
        ["CPU", "CPU"], 20, {"CPU": 8}, lambda i, _: [0.25] * 4 if i == 0 else [1.0]
    ),
    "videos, heavy": Workload(
        ["CPU", "CPU"], 20, {"CPU": 8}, lambda i, _: [0.5] * 4 if i == 0 else [0.25]
    ),
    # figure 2.15
    "two stages": Workload(["CPU", "CPU"], 160, {"CPU": 8}, evenly(1.0, 2.0)),
    # figure 2.7: after 40 % of them, videos take three times as long to read and give three times
    "changing": Workload(
        ["CPU", "CPU"],
        200,
        {"CPU": 8},
        lambda i, n: [1.0] * (1 if n < 80 else 3) if i == 0 else [1.0 if n < 80 else 0.2],
    ),
}


def of_size(rows: int, call: float = 0.01) -> Workload:
    """Figure 2.12: 8,192 rows of 10 ms in each of two stages, so many a task; and 10 ms a task."""
    each = call + 0.01 * rows
    return Workload(["CPU", "CPU"], 8192 // rows, {"CPU": 8}, lambda *_: [each])


def fused(work: Workload) -> Outcome:
    """All stages in one task, which holds what each of them asks for."""

    def together(_: int, inputs: Sequence[Piece]) -> list[tuple[float, int]]:
        n = inputs[0].place[0]
        first = work.seconds(0, n)
        later = sum(sum(work.seconds(i, n)) for i in range(1, len(work.needs)))
        return [(one + later, PART) for one in first]

    stage = StageSpec("all", dict.fromkeys(work.needs, 1.0))
    runner = SimPipeline([stage], work.slots, together)
    return simulate(runner, work.inputs, StagedPolicy(), limit=PART, target=PART)


def whole(work: Workload, policy: Policy, partitions: int) -> Outcome:
    """Without streaming repartition: a source gives all that it has made at its end."""

    def at_once(stage: int, inputs: Sequence[Piece]) -> list[tuple[float, int]]:
        if stage == 0:
            each = work.seconds(0, inputs[0].place[0])
            return [(sum(each), PART * len(each))]
        count = inputs[0].nbytes // PART
        return [(sum(work.seconds(stage, inputs[0].place[0])) * count, inputs[0].nbytes)]

    stages = [StageSpec(f"s{i}", {name: 1.0}) for i, name in enumerate(work.needs)]
    runner = SimPipeline(stages, work.slots, at_once)
    return simulate(runner, work.inputs, policy, limit=partitions * PART, target=PART)


def policies() -> dict[str, Callable[[Workload, int], Outcome]]:
    """All systems: what runs a workload in so many partitions."""

    def by(make: Callable[[], Policy]) -> Callable[[Workload, int], Outcome]:
        return lambda work, partitions: work.run(make(), partitions)

    return {
        "partition admission": by(PartitionAdmission),
        "adaptive": by(Adaptive),
        "conservative (no adaptation)": by(Conservative),
        "no streaming repartition": lambda work, n: whole(work, PartitionAdmission(), n),
        "static 5 + 3 + 4": by(lambda: Static([5, 3, 4])),
        "staged": by(StagedPolicy),
        "fused": lambda work, _: fused(work),
    }


def inference(memory: int, loads: int = 160, *, gated: bool = True) -> Chain:
    """Figure 2.11 in half seconds."""
    ops = (Operator("CPU", 2, 5), Operator("CPU", 1), Operator("GPU", 1))
    return Chain(ops, loads, {"CPU": 8, "GPU": 4}, memory, gated)


def by_memory(limits: Sequence[int], width: int) -> None:
    """Print the seconds of each policy under each limit, beside the best schedule."""
    print(f"| memory, partitions | {' | '.join(map(str, limits))} |")
    print("|---|" + "---|" * len(limits))
    print("| bound | " + " | ".join(f"{lower_bound(inference(n)) / 2:.0f}" for n in limits) + " |")
    # more memory does no harm, and neither does giving outputs away at once
    best = {True: float("inf"), False: float("inf")}
    rows: dict[bool, list[str]] = {True: [], False: []}
    for n in limits:
        for gated in (True, False):
            if n > 1 or not gated:
                found = search(inference(n, gated=gated), width) / 2
                best[gated] = min(best[True], best[gated], found)
            rows[gated].append(f"{best[gated]:.0f}" if n > 1 or not gated else "-")
    print(f"| best schedule found | {' | '.join(rows[True])} |")
    print(f"| where outputs need not wait | {' | '.join(rows[False])} |", flush=True)
    for name, run in policies().items():
        cells = []
        for n in limits:
            out = run(WORKLOADS["inference"], n)
            over = out.peak > n * PART
            cells.append(f"{out.seconds:.0f}" + (f" ({out.peak / PART:.0f})" if over else ""))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def by_workload() -> None:
    """Print each workload by policy: seconds, and in brackets those to the first output."""
    print("| | no less than | partition admission | adaptive | best static | staged | fused |")
    print("|---|---|---|---|---|---|---|")
    for name, work in WORKLOADS.items():
        if name == "inference":
            continue
        slots, best = work.static()
        cells = [
            f"{out.seconds:.1f} ({out.first:.1f})"
            for out in (work.run(PartitionAdmission()), work.run(Adaptive()), best)
        ]
        cells[-1] += f" {'-'.join(map(str, slots))}"
        cells += [
            f"{o.seconds:.1f} ({o.first:.1f})" for o in (work.run(StagedPolicy()), fused(work))
        ]
        print(f"| {name} | {bound(work):.1f} | {' | '.join(cells)} |", flush=True)


def by_size() -> None:
    """Print the seconds by the rows of a partition."""
    sizes = (1, 4, 16, 64, 256, 1024, 2048)
    print(f"| rows a partition | {' | '.join(map(str, sizes))} |")
    print("|---|" + "---|" * len(sizes))
    cells = [f"{of_size(rows).run(PartitionAdmission()).seconds:.1f}" for rows in sizes]
    print(f"| partition admission | {' | '.join(cells)} |", flush=True)


def bound(work: Workload) -> float:
    """Seconds that the slots need."""
    busy = dict.fromkeys(work.slots, 0.0)
    for n in range(work.inputs):
        pieces = 1
        for i, name in enumerate(work.needs):
            each = work.seconds(i, n)
            busy[name] += pieces * sum(each)
            pieces *= len(each)
    return max(busy[name] / slots for name, slots in work.slots.items())


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m asv_bench.benchmarks.streaming_sim")
    parser.add_argument(
        "--limits", type=lambda text: [int(n) for n in text.split(",")], default=LIMITS
    )
    parser.add_argument("--width", type=int, default=20, help="states that the search keeps")
    options = parser.parse_args()
    by_workload()
    by_size()
    by_memory(options.limits, options.width)


if __name__ == "__main__":
    main()
