"""Random pipelines on a virtual clock: everything once, within memory, without standing still.

``python -m asv_bench.benchmarks.streaming_swarm 10000`` runs so many of them, and prints how far
they are from a bound that no schedule goes below. ``--seed 7`` runs one, and says what it is.

One to four stages, up to 8 CPUs and 4 GPUs on up to three nodes, sizes, durations, memory and
faults are drawn from the seed. The source asks for a CPU, other stages for a CPU or a GPU; some put
pieces together. In a third of them processes die; in some a node does, and comes back or not.
With ``--graphs`` stages branch, take from several others, and there are up to three sources.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from asv_bench.simulation.pipeline import Fault, Outcome, Piece, SimPipeline, simulate
from dask_exo.pipeline.policies import POLICIES
from dask_exo.pipeline.streaming.blocks import StageSpec, links

ROOM = (0.5, 1, 1.5, 2, 4, 20)  # of what all stages need side by side


class Spec(NamedTuple):
    """What the tasks of a stage do: seconds, outputs and bytes of each output."""

    seconds: float
    outputs: int
    nbytes: int


class Case(NamedTuple):
    """A random pipeline."""

    stages: list[StageSpec]
    specs: list[Spec]
    nodes: list[dict[str, int]]
    inputs: list[int]
    noise: float
    uneven: float
    room: float
    faults: list[Fault]
    sinks: list[tuple[int, ...]] | None = None

    @property
    def target(self) -> int:
        """Bytes of the largest piece."""
        return max(spec.nbytes for spec in self.specs)

    @property
    def limit(self) -> int:
        """Bytes of memory."""
        together = sum(stage.least > 0 for stage in self.stages)
        return int(self.room * (len(self.stages) + 1 + 2 * together) * self.target)

    @property
    def total(self) -> dict[str, int]:
        """Resources of all nodes."""
        return {name: sum(node[name] for node in self.nodes) for name in self.nodes[0]}

    def seconds(self, name: str, busy: float) -> float:
        """When a resource can have been busy for so long, by when its nodes are there."""
        amount = self.total[name]
        for at, node, away in self.faults:
            gone = self.nodes[node][name]
            if away is not None and busy > at * amount:
                less = amount - gone
                if busy <= at * amount + away * less:
                    return at + (busy - at * amount) / less
                return (busy + away * gone) / amount
        return busy / amount


def case(seed: int, *, faults: bool = True) -> Case:
    """The pipeline of a seed."""
    rng = Random(seed)
    nodes = [{"CPU": 1, "GPU": 1}, *[{"CPU": 0, "GPU": 0} for _ in range(rng.randint(0, 2))]]
    for name, most in (("CPU", 7), ("GPU", 3)):
        for _ in range(rng.randint(0, most)):
            rng.choice(nodes)[name] += 1
    stages, specs = [], []
    for i in range(rng.randint(1, 4)):
        name = "CPU" if i == 0 or rng.random() < 0.6 else "GPU"
        stages.append(StageSpec(f"s{i}", {name: 1.0}, least=rng.choice([0, 0, 0, 3]) if i else 0))
        specs.append(_spec(rng))
    noise, uneven = rng.choice([0, 0.3, 0.8]), rng.choice([0, 0, 0.5])
    inputs, room = rng.randint(1, 60), rng.choice(ROOM)
    kind = rng.choice(["none", "processes", "node"]) if faults else "none"
    if kind == "processes":
        dying = [Fault(rng.uniform(0, 60), rng.randrange(len(nodes))) for _ in range(5)]
    elif kind == "node" and len(nodes) > 1:  # one is always there
        away = rng.choice([5.0, 60.0, 1e9])
        dying = [Fault(rng.uniform(0, 60), rng.randrange(1, len(nodes)), away)]
    else:
        dying = []
    return Case(stages, specs, nodes, [inputs], noise, uneven, room, dying)


def _spec(rng: Random) -> Spec:
    outputs, nbytes = rng.choice([1, 1, 1, 2, 5]), rng.choice([10, 50, 100, 100, 200])
    return Spec(rng.uniform(0.05, 5), outputs, nbytes)


def graph(seed: int, *, faults: bool = True) -> Case:
    """The same with two to six stages that take from any before them."""
    one, rng = case(seed, faults=faults), Random(-1 - seed)
    stages, specs = [one.stages[0]], [one.specs[0]]
    for i in range(1, rng.randint(2, 6)):
        takes = tuple(rng.sample(range(i), min(i, rng.choice([1, 1, 1, 2, 2, 3]))))
        if rng.random() < 0.15 and sum(stage.takes == () for stage in stages) < 2:
            takes = ()
        name = "CPU" if not takes or rng.random() < 0.6 else "GPU"
        least = rng.choice([0, 0, 0, 3]) if takes else 0
        stages.append(StageSpec(f"s{i}", {name: 1.0}, least=least, takes=takes))
        specs.append(_spec(rng)._replace(outputs=rng.choice([1, 1, 2])))
    found = links(stages)
    ends = [i for i, link in enumerate(found) if not link.after or rng.random() < 0.1]
    sinks = [(i,) for i in ends]
    if len(ends) > 1 and rng.random() < 0.3:
        sinks = [tuple(ends[:2]), *sinks[2:]]
    inputs = [rng.randint(1, 20) for link in found if not link.before]
    return one._replace(stages=stages, specs=specs, inputs=inputs, sinks=sinks)


class Ledger:
    """What the tasks of a case are, and what that says about any schedule.

    A piece counts from when its making begins until what is made of it takes its place.
    """

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self._rng = case, Random(seed + 1)
        self.busy = dict.fromkeys(case.total, 0.0)
        self.stay = self.longest = 0.0
        self.alone = [0.0] * len(case.stages)  # seconds of each stage
        self.least = [float("inf")] * len(case.stages)  # bytes of the smallest task of each
        self.taken, self.given = [0] * len(case.stages), [0] * len(case.stages)  # pieces
        found = links(case.stages, case.sinks)
        self._shares = [any(found[k].takers > 1 for k in link.before) for link in found]

    def work(self, stage: int, inputs: Sequence[Piece]) -> list[tuple[float, int]]:
        """See `asv_bench.simulation.pipeline.TaskCosts`."""
        case, spec, rng = self.case, self.case.specs[stage], self._rng
        mean = spec.seconds / spec.outputs * len(inputs)
        made = [
            (
                mean * rng.uniform(1 - case.noise, 1 + case.noise),
                max(1, int(spec.nbytes * rng.uniform(1 - case.uneven, 1))),
            )
            for _ in range(spec.outputs)
        ]
        seconds, taken = sum(one for one, _ in made), sum(piece.nbytes for piece in inputs)
        (name,) = case.stages[stage].request
        self.busy[name] += seconds
        of_outputs = sum(one * nbytes for one, nbytes in made)
        if self._shares[stage]:
            taken = 0  # it may count for another one
        if spec.outputs == 1:  # takes the place of the input
            taken, of_outputs = max(taken, made[0][1]), 0.0
        self.stay += taken * seconds + of_outputs
        self.alone[stage] += seconds
        held = taken + (min(nbytes for _, nbytes in made) if of_outputs else 0)
        self.least[stage] = min(self.least[stage], held)
        born = max((piece.born for piece in inputs), default=0.0)
        self.longest = max(self.longest, born + seconds)
        self.taken[stage] += len(inputs)
        self.given[stage] += spec.outputs
        return made

    def check(self, places: Sequence[tuple[int, ...]]) -> None:
        """Raise `AssertionError` unless every piece went wherever it had to go, once."""
        assert len(set(places)) == len(places)
        inputs, found = iter(self.case.inputs), links(self.case.stages, self.case.sinks)
        for i, link in enumerate(found):
            come = [self.given[k] for k in link.before] if link.before else [next(inputs)]
            assert self.taken[i] == sum(come)
        ends = self.case.sinks or [(len(found) - 1,)]
        for sink, end in enumerate(ends):
            came = sum(self.case.sinks is None or place[0] == sink for place in places)
            assert came == sum(self.given[k] for k in end)

    def bound(self) -> float:
        """Seconds that no schedule goes below.

        Of slots that there are; of memory, by what stays how long and by how many tasks of one
        stage fit side by side; of one piece after another.
        """
        limit = self.case.limit
        slots = max(self.case.seconds(name, busy) for name, busy in self.busy.items())
        fit = zip(self.alone, self.least, strict=True)
        beside = max(seconds / max(1, limit // least) for seconds, least in fit)
        return max(slots, beside, self.longest, self.stay / limit)


class Run(NamedTuple):
    """A case that has run."""

    case: Case
    out: Outcome
    ratio: float
    over: float


def run(
    seed: int,
    policy: str = "partition-admission",
    *,
    faults: bool = True,
    make: Callable[..., Case] = case,
) -> Run:
    """Run the pipeline of a seed, and check that everything comes out once.

    Returns
    -------
    Run
        With the time over the bound, and the bytes over the limit.
    """
    one = make(seed, faults=faults)
    ledger = Ledger(one, seed)
    runner = SimPipeline(one.stages, one.nodes, ledger.work, one.faults, one.sinks)
    out = simulate(runner, one.inputs, POLICIES[policy](), limit=one.limit, target=one.target)
    ledger.check(out.places)
    assert out.left == 0
    # pieces that are larger than those before could not be foreseen
    surprise = one.uneven * one.target * (1 + sum(one.total.values()))
    over = max(0.0, max(out.peak, out.live) - one.limit - surprise)
    return Run(one, out, out.seconds / ledger.bound(), over)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m asv_bench.benchmarks.streaming_swarm")
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--policy", choices=sorted(POLICIES), default="partition-admission")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--graphs", action="store_true", help="not only chains")
    options = parser.parse_args()
    make = graph if options.graphs else case
    if options.seed is not None:
        one = run(options.seed, options.policy, make=make)
        print(one.case, one.out, f"{one.ratio:.3f} of the bound", sep="\n")
        return
    seeds = range(options.first, options.first + options.count)
    runs = {i: run(i, options.policy, make=make) for i in seeds}
    print("| memory | pipelines | median | 90 % | most | over the limit | forced |")
    print("|---|---|---|---|---|---|---|")
    for room in (*ROOM, None):
        some = {i: one for i, one in runs.items() if room in (one.case.room, None)}
        ratios = sorted(one.ratio for one in some.values())
        worst = max(some, key=lambda i: some[i].ratio)
        print(
            f"| {room or 'all'} | {len(some)} | {statistics.median(ratios):.2f} "
            f"| {ratios[len(ratios) * 9 // 10]:.2f} | {ratios[-1]:.1f} (seed {worst}) "
            f"| {sum(one.over > 0 and not one.out.forced for one in some.values())} "
            f"| {sum(one.out.forced > 0 for one in some.values())} |"
        )
    dead = [one for one in runs.values() if one.case.faults]
    print(f"{len(dead)} with faults: {sum(one.out.lost for one in dead)} tasks started anew")


if __name__ == "__main__":
    main()
