"""Advice: a pure decision over the figures of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from dask.utils import format_bytes

from dask_exo.report.summary import Figures

MOST = 3  # lines
SPILLED = 0.2  # of the shuffled bytes
SKEWED = 4.0  # times the mean
SHORT = 0.005  # seconds of a task
LONG = 5.0  # times the mean of all tasks
IDLE = 0.5  # share of slots or GPUs that were busy


class Advice(NamedTuple):
    """A line of text, and roughly the share of the time that it concerns."""

    weight: float
    text: str


def advise(figures: Figures) -> list[str]:
    """Return one to three lines of advice, most important first; none if nothing has run.

    Examples
    --------
    >>> print(*advise(Figures(runs=1, seconds=10.0, slots=2, work=19.0)))
    Nothing stands out: slots were busy 95 % of the time.
    """
    if not figures.runs:
        return []
    advice = [line for rule in RULES for line in rule(figures)]
    advice.sort(key=lambda advice: -advice[0])
    fine = f"Nothing stands out: slots were busy {_percent(figures.busy)} of the time."
    return [text for _, text in advice[:MOST]] or [fine]


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _failed(figures: Figures) -> Iterator[Advice]:
    if figures.failed:
        text = f"{figures.failed} of {figures.runs} computations raised: see the error above all."
        yield Advice(9.0, text)


def _spilled(figures: Figures) -> Iterator[Advice]:
    """Compare disk traffic with what had to move."""
    moved = max(figures.shuffled, 1)
    if figures.spilled <= SPILLED * moved or figures.spilled < 10**6:
        return
    need = format_bytes(2 * figures.shuffled or figures.peak_store + figures.spilled)
    yield Advice(
        min(1.0, figures.spilled / moved),
        f"{format_bytes(figures.spilled)} were spilled and {format_bytes(figures.restored)} read "
        f"back, with {format_bytes(figures.store)} of object store: about {need} of it "
        f"(exo.object-store-memory, or more nodes) would keep this in memory.",
    )


def _skewed(figures: Figures) -> Iterator[Advice]:
    for shuffle in figures.shuffles:
        if shuffle.skew >= SKEWED and shuffle.largest is not None:
            yield Advice(
                min(1.0, shuffle.skew / shuffle.reducers + 0.3),
                f"The largest output of shuffle {shuffle.name} has "
                f"{format_bytes(shuffle.largest)}, {shuffle.skew:.0f} times the mean: it has heavy "
                f"hitters. ddf.exo.merge and ddf.exo.groupby spread them over partitions.",
            )


def _small(figures: Figures) -> Iterator[Advice]:
    """Find groups of many tiny tasks."""
    for group in figures.groups:
        mean = group.seconds / max(group.count, 1)
        if group.count >= 50 * max(figures.slots, 1) and mean < SHORT:
            yield Advice(
                0.3,
                f"{group.count:,} tasks of {group.name} took {mean * 1000:.1f} ms each: larger "
                f"partitions (blocksize=, .repartition(partition_size=)) cost less to schedule.",
            )


def _idle(figures: Figures) -> Iterator[Advice]:
    most = max((group.count for group in figures.groups), default=0)
    if figures.seconds > 1 and figures.busy < IDLE and 0 < most < 2 * figures.slots:
        yield Advice(
            1 - figures.busy,
            f"Slots were busy {_percent(figures.busy)} of the time, with at most {most} tasks of a "
            f"kind for {figures.slots} slots: more partitions would use the others.",
        )


def _stands_out(figures: Figures) -> Iterator[Advice]:
    """Find a task that all others may have waited for."""
    if not figures.slowest or figures.tasks < 4:
        return
    slowest, mean = figures.slowest[0], figures.work / max(figures.tasks, 1)
    if slowest.seconds > LONG * mean and slowest.seconds > 0.1 * figures.seconds > 0.1:
        what = "smaller partitions there" if "-tree" not in slowest.name else "no split_out=1"
        yield Advice(
            slowest.seconds / figures.seconds,
            f"{slowest.name} took {slowest.seconds:.1f} s, {slowest.seconds / mean:.0f} times the "
            f"mean of all tasks: {what} would let others share its work.",
        )


def _gpus(figures: Figures) -> Iterator[Advice]:
    """Find GPUs that wait for an earlier stage."""
    busy = figures.gpu_busy
    if busy is None or busy >= IDLE or not figures.gpu_work:
        return
    cpu_stages = [stage for stage in figures.stages if not stage.gpus]
    busiest = max(cpu_stages, key=lambda stage: stage.seconds, default=None)
    hint = "" if busiest is None else f" {busiest.name} has most work: more CPUs would feed them."
    yield Advice(1 - busy, f"GPUs were busy {_percent(busy)} of the time.{hint}")


def _shared_gpus(figures: Figures) -> Iterator[Advice]:
    """Find actors that use more of a GPU than they requested."""
    for share in figures.shares:
        granted = format_bytes(int(share.requested * share.device))
        yield Advice(
            0.5,
            f"A worker of stage {share.name} needs {format_bytes(share.held)} of a GPU's "
            f"{format_bytes(share.device)}, and {share.requested:.2g} of it are {granted}: it "
            f"takes {share.share:.2g} now, so fewer share a GPU. Request that much from the start "
            f"(num_gpus=, exo.gpu.per-task), or let it use less (batch_size=, exo.gpu.memory).",
        )


def _held_back(figures: Figures) -> Iterator[Advice]:
    for stage in figures.stages:
        share = stage.waits.get("memory", 0.0)
        if share > IDLE:
            yield Advice(
                share / 2,
                f"Stage {stage.name} waited for memory most of the time: raise "
                f"exo.stream.memory-fraction, or let it give smaller partitions (target=).",
            )


def _recovered(figures: Figures) -> Iterator[Advice]:
    if figures.recovered:
        kinds = ", ".join(f"{kind}: {count}" for kind, count in figures.recovered.items())
        yield Advice(0.2, f"Work was repeated ({kinds}): a node may be slow, or short of memory.")


RULES: tuple[Callable[[Figures], Iterator[Advice]], ...] = (
    _failed,
    _spilled,
    _skewed,
    _small,
    _idle,
    _stands_out,
    _gpus,
    _shared_gpus,
    _held_back,
    _recovered,
)
