"""A report as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dask.utils import format_bytes

from dask_exo.report.advice import advise
from dask_exo.report.summary import Figures

LINES = 12  # of one table


def text(figures: Figures) -> str:
    """Return the report as lines of text.

    Examples
    --------
    >>> print(text(Figures()))
    nothing has run on dask_exo in this process yet
    """
    if not figures.runs:
        return "\n".join(advise(figures)) or "nothing has run on dask_exo in this process yet"
    return "\n".join([*_totals(figures), *_shuffles(figures), *_work(figures), *_end(figures)])


def facts(figures: Figures) -> Iterator[tuple[str, str]]:
    """Yield the totals as pairs of name and text."""
    yield "time", duration(figures.seconds)
    yield "tasks", f"{figures.tasks:,} in {figures.calls:,} calls, {figures.objects:,} refs"
    where = f"{figures.nodes} node(s), {figures.slots} slots"
    yield "cluster", f"{where}, {format_bytes(figures.store)} object store"
    yield "busy", f"{100 * figures.busy:.0f} % of the slots' time in tasks"
    if figures.gpu_busy is not None:
        yield "GPUs busy", f"{100 * figures.gpu_busy:.0f} % of {figures.gpus:g}"
    if figures.shuffled:
        yield "shuffled", format_bytes(figures.shuffled)
    yield "spilled", f"{format_bytes(figures.spilled)}, {format_bytes(figures.restored)} restored"
    if figures.peak_store:
        yield "most in the store", format_bytes(figures.peak_store)
    if figures.peak_rss:
        yield "most of all workers", format_bytes(figures.peak_rss)
    if figures.cost is not None:
        per = figures.cost_per_terabyte
        each = "" if per is None else f", $ {per:.2f} per TB shuffled"
        yield "cost", f"{figures.node_hours:.4f} node-hours, $ {figures.cost:.4f}{each}"
    for what, count in figures.recovered.items():
        yield "done again", f"{what}: {count}"
    for group, reason in figures.refused.items():
        yield "no checkpoint", f"{group}: {reason}"


def duration(seconds: float) -> str:
    """Return a readable duration.

    Examples
    --------
    >>> duration(0.0123), duration(12.34), duration(3723.0)
    ('12 ms', '12.3 s', '1 h 02 min')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 600:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def describe_recovery(repeated: Mapping[str, int], total: int) -> str:
    """Describe recomputed partitions.

    Parameters
    ----------
    repeated : mapping
        Group → recomputed partitions.
    total : int
        Number of all partitions; 0 if unknown.

    Examples
    --------
    >>> describe_recovery({"read": 2, "merge": 1}, 100)
    'recovered 3 of 100 partitions after a loss of workers or nodes: read 2, merge 1'
    """
    count, of = sum(repeated.values()), f" of {total}" if total else ""
    names = ", ".join(f"{name} {n}" for name, n in repeated.items())
    return f"recovered {count}{of} partitions after a loss of workers or nodes: {names}"


def _totals(figures: Figures) -> Iterator[str]:
    runs = f"{figures.runs} computation(s)" + (f", {figures.failed} failed" * bool(figures.failed))
    yield runs
    for name, fact in facts(figures):
        yield f"  {name:<20} {fact}"


def _shuffles(figures: Figures) -> Iterator[str]:
    for one in figures.shuffles:
        yield (
            f"  shuffle {one.name}: {one.algorithm}, {one.maps:,} → {one.reducers:,}, "
            f"{format_bytes(one.nbytes)}, {one.rows:,} rows in {duration(one.seconds)}: "
            f"{one.reason}"
        )
        if one.largest is not None:
            yield f"    largest output {format_bytes(one.largest)}, {one.skew:.1f} x the mean"


def _work(figures: Figures) -> Iterator[str]:
    for group in sorted(figures.groups, key=lambda one: -one.seconds)[:LINES]:
        yield (
            f"  {group.count:>8,} x {group.name}: {duration(group.seconds)} of work, "
            f"{format_bytes(group.nbytes)}"
        )
    for stage in figures.stages:
        waits = ", ".join(f"{100 * share:.0f} % {why}" for why, share in stage.waits.items())
        yield (
            f"  {stage.outputs:>8,} x stage {stage.name}: {duration(stage.seconds)} of work, "
            f"{format_bytes(stage.nbytes)}" + (f", waited for {waits}" if waits else "")
        )


def _end(figures: Figures) -> Iterator[str]:
    for path, nbytes in figures.directories.items():
        if nbytes:
            yield f"  {format_bytes(nbytes)} were written to {path}"
    if figures.slowest:
        yield f"  slowest: {figures.slowest[0].name}, {duration(figures.slowest[0].seconds)}"
    if figures.largest:
        yield f"  largest: {figures.largest[0].name}, {format_bytes(figures.largest[0].nbytes)}"
    for line in advise(figures):
        yield f"  ▸ {line}"
