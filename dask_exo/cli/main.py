"""``dask exo``: the group of commands, and ``dask exo sort``."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from dask.utils import format_bytes, parse_bytes

from dask_exo import errors
from dask_exo.shuffle import registry

if TYPE_CHECKING:
    import dask.dataframe as dd

    from dask_exo.report import Collector
import json

import dask.config

from dask_exo.checkpoint.store import CheckpointStore
from dask_exo.config import Config
from dask_exo.errors import ExoError, InputError

_USAGE = (
    errors.ConfigError,
    errors.InputError,
    errors.OutputError,
    errors.OutputExistsError,
    errors.SortKeyError,
)


class Size(click.ParamType[int]):
    """A number of bytes: ``1GB``, ``64MiB``, ``1000``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a positive number of bytes."""
        try:
            nbytes = int(parse_bytes(value))
        except ValueError:
            self.fail(f"{value!r} is not a size: write for example 1GB or 64MiB", param, ctx)
        if nbytes <= 0:
            self.fail(f"{value!r} is not above 0", param, ctx)
        return nbytes


@dataclass
class StageTimer:
    """Seconds of each stage, and the bytes that passed through it (0: none)."""

    done: list[tuple[str, float, int]] = field(default_factory=list)

    @contextlib.contextmanager
    def stage(self, name: str, nbytes: int = 0) -> Iterator[None]:
        """Time one stage."""
        start = time.perf_counter()
        yield
        self.done.append((name, time.perf_counter() - start, nbytes))

    def lines(self) -> Iterator[str]:
        """One line for each stage."""
        for name, seconds, nbytes in self.done:
            rate = f"{nbytes / seconds / 1e9:8.2f} GB/s" if nbytes else ""
            yield f"{name:<15} {seconds:8.2f} s {rate}".rstrip()


@click.group("exo")
@click.version_option(package_name="dask-exo", prog_name="dask-exo")
def main() -> None:
    """Dask on Ray, with push-based shuffles."""


main.add_command(doctor)
main.add_command(bench)
main.add_command(report)
main.add_command(checkpoints)


@main.command()
@click.argument("url", required=False)
@click.option("--once", is_flag=True, help="Write it once, and end.")
def top(url: str | None, *, once: bool) -> None:
    """Show what a program of yours on this machine does.

    URL is the address in the repr of its dask_exo.enable(); by default, that of the one which was
    started last.
    """
    from dask_exo.report.live import watch

    with _errors_as_lines(), contextlib.suppress(KeyboardInterrupt):
        watch(url, once=once)


@main.command(short_help="Sort records or files into Parquet, and check the result.")
@click.option("--size", type=Size(), help="Sort this much of made-up records (100 bytes each).")
@click.option("--seed", type=int, default=0, show_default=True, help="Which records.")
@click.option(
    "--skew",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Crowd the low keys: 0 is uniform, 1 already much.",
)
@click.option("--input", "source", help="Sort Parquet or CSV: a file, a directory or a glob.")
@click.option("--by", help="Columns to sort by, with commas between.")
@click.option("--output", help="Directory to make; a temporary one if not given.")
@click.option("--overwrite", is_flag=True, help="Replace the output if it is there.")
@click.option(
    "--partition-size",
    type=Size(),
    help="Bytes in a partition; by default 4 partitions for each CPU, of 8 MB to 128 MB, and 32 "
    "or more that fit the object store.",
)
@click.option("--num-cpus", type=click.IntRange(min=1), help="Tasks of the private Ray.")
@click.option("--object-store-memory", type=Size(), help="Bytes of its object store.")
@click.option("--spill-directory", help="Where it puts what does not fit.")
@click.option("--address", help="Use the Ray cluster at this address instead.")
@click.option(
    "--algorithm",
    type=click.Choice(["auto", *registry.names()]),
    default="auto",
    show_default=True,
    help="How to shuffle.",
)
@click.option("--no-validate", is_flag=True, help="Do not check the output against the input.")
def sort(
    *,
    size: int | None,
    seed: int,
    skew: float,
    source: str | None,
    by: str | None,
    output: str | None,
    overwrite: bool,
    partition_size: int | None,
    num_cpus: int | None,
    object_store_memory: int | None,
    spill_directory: str | None,
    address: str | None,
    algorithm: str,
    no_validate: bool,
) -> None:
    """Sort records or files into Parquet, check the result, and report what it took.

    Exits with 0 when the output is right, 1 when it is not or the run failed, 2 when it
    cannot be done as asked.
    """
    if (size is None) == (source is None):
        raise click.UsageError("give either --size (made-up records) or --input (files)")
    if source is not None and by is None:
        raise click.UsageError("--input needs --by: the columns to sort by")
    cluster = {
        "address": address,
        "num_cpus": num_cpus,
        "object_store_memory": object_store_memory,
        "spill_directory": spill_directory,
        "shuffle.algorithm": algorithm,
    }
    slots = num_cpus or os.cpu_count() or 1
    with _errors_as_lines(), _place(output) as place:

        def each(nbytes: int) -> int:
            return partition_size or partition_bytes(nbytes, slots, object_store_memory)

        job = _records(size, seed, skew, each(size)) if size else None
        job = job or _files(str(source), str(by), each)
        if by is not None:
            job.by = [name.strip() for name in by.split(",")]
        _sort_job(job, place, cluster, slots=slots, overwrite=overwrite, check=not no_validate)


@dataclass
class _Job:
    """Input of a sort, its bytes, and options of its Parquet files."""

    frame: dd.DataFrame
    by: list[str]
    nbytes: int
    expected: int | None
    options: dict[str, Any]


def partition_bytes(nbytes: int, slots: int, store: int | None = None) -> int:
    """Choose a partition size: 4 for each slot, but of 8 MB to 128 MB, and 32 in a small store.

    Examples
    --------
    >>> partition_bytes(10**9, 8), partition_bytes(10**6, 8), partition_bytes(10**12, 8)
    (31250000, 8000000, 128000000)
    >>> partition_bytes(10**12, 8, store=2 * 10**9)
    62500000
    """
    most = 128_000_000 if store is None else min(128_000_000, store // 32)
    return min(max(nbytes // (4 * slots), 8_000_000), max(most, 8_000_000))


def _records(size: int, seed: int, skew: float, each: int) -> _Job:
    from dask_exo.testing import gensort

    frame = gensort.frame(size, seed=seed, skew=skew, partition_bytes=each)
    nbytes = size // gensort.RECORD_BYTES * gensort.RECORD_BYTES
    # random bytes: compressing them, or looking for repeated values, is only a waste of time
    plain = {"compression": None, "use_dictionary": False}
    return _Job(frame, list(gensort.KEYS), nbytes, nbytes, plain)


def _files(source: str, by: str, each: Callable[[int], int]) -> _Job:
    from dask_exo.cli.sort import files, read

    nbytes = sum(f.stat().st_size for f in files(source))
    frame = read(source, partition_bytes=each(nbytes))
    return _Job(frame, [by], nbytes, None, {})


def _sort_job(
    job: _Job,
    output: Path,
    cluster: dict[str, Any],
    *,
    slots: int,
    overwrite: bool,
    check: bool,
) -> None:
    from dask_exo.cli import sort, validate
    from dask_exo.report import recording
    from dask_exo.report.progress import progress

    # what can be refused is refused before a cluster is started
    sort.check(job.frame, job.by, output, overwrite=overwrite, nbytes=job.expected)
    stages, expected, summary = StageTimer(), None, None
    with contextlib.ExitStack() as stack:
        with stages.stage("start Ray"):
            stack.enter_context(session(cluster))
        stats = stack.enter_context(recording())
        stack.enter_context(progress())
        if check:
            with stages.stage("input checksum", job.nbytes):
                expected = sort.input_checksum(job.frame)
        with stages.stage("sort + write", job.nbytes):
            sort.sort_to_parquet(
                job.frame, job.by, output, overwrite=overwrite, nbytes=job.expected, **job.options
            )
    if expected is not None:
        with stages.stage("validate", job.nbytes):
            summary = validate.validate(output, job.by, workers=slots)
    _report(job, stages, stats)
    if summary is None or expected is None:
        click.echo("not validated")
        return
    validate.require(summary, expected, where=output)
    click.echo(
        f"validated: {summary.rows:,} rows in order, checksum equal, "
        f"{summary.duplicates:,} duplicate keys"
    )


def session(cluster: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Make Dask run on the Ray cluster described by the options of `dask_exo.enable`."""
    import dask_exo

    return dask_exo.enable(**cluster)


def _report(job: _Job, stages: StageTimer, stats: Collector) -> None:
    from dask_exo.report.render import describe_recovery

    click.echo(f"data            {format_bytes(job.nbytes)}, {job.frame.npartitions} partitions")
    for line in stages.lines():
        click.echo(line)
    ratio = stats.spilled / job.nbytes if job.nbytes else 0.0
    click.echo(f"objects         {stats.objects:,} in {stats.calls:,} Ray calls")
    click.echo(
        f"spilled         {format_bytes(stats.spilled)} ({ratio:.2f} x the data), "
        f"{format_bytes(stats.restored)} restored"
    )
    for path, nbytes in stats.directories.items():
        if not nbytes:
            continue
        click.echo(f"                {format_bytes(nbytes)} to {path}")
    if stats.repeated:
        click.echo(describe_recovery(stats.repeated, sum(stats.tasks.values())))
    for one in stats.shuffles:
        click.echo(
            f"shuffle         {one.algorithm}, {one.maps} maps → {one.reducers} reducers in "
            f"{one.rounds} rounds, {format_bytes(one.nbytes)}: {one.reason}"
        )


@contextlib.contextmanager
def _place(output: str | None) -> Iterator[Path]:
    """Yield the path of the output, by default a temporary one that is removed at the end."""
    if output is not None:
        yield Path(output)
        return
    directory = tempfile.mkdtemp(prefix="dask-exo-sort-")
    click.echo(f"no --output: writing to {directory}, removed at the end")
    try:
        yield Path(directory) / "sorted"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _errors_as_lines() -> Iterator[None]:
    try:
        yield
    except errors.ExoError as error:
        click.echo(f"dask exo: {error}", err=True)
        raise click.exceptions.Exit(2 if isinstance(error, _USAGE) else 1) from error


@click.command(short_help="Compare this machine's speed on dask_exo and on Dask alone.")
@click.option("--size", default="400MB", show_default=True, help="Bytes of made-up rows.")
@click.option(
    "--num-cpus", type=click.IntRange(min=1), help="Tasks side by side; all cores by default."
)
def bench(*, size: str, num_cpus: int | None) -> None:
    """Sort, join and group the same rows on dask_exo, Dask's threads and a LocalCluster.

    Each system has a process of its own and runs each job twice; the second time counts. Takes
    some minutes. Exits with 1 if a system fails or their results differ.
    """
    from dask_exo.cli.bench import SYSTEMS, BenchResult, measure, table

    try:
        nbytes = int(parse_bytes(size))
    except ValueError as error:
        message = f"{size!r} is not a size: write for example 1GB or 64MiB"
        raise click.BadParameter(message, param_hint="--size") from error
    cores = num_cpus or os.cpu_count() or 1
    sides: list[BenchResult] = []
    for system in SYSTEMS:
        click.echo(f"{system} …", err=True)
        sides.append(measure(system, nbytes, cores))
    text, right = table(sides)
    click.echo(text)
    raise click.exceptions.Exit(0 if right else 1)


@click.command(short_help="Examine this machine, the configuration and the cluster.")
@click.option("--address", help="Examine the Ray cluster at this address.")
@click.option("--spill-directory", help="Where a private Ray would put what does not fit.")
def doctor(*, address: str | None, spill_directory: str | None) -> None:
    """Examine this machine, Dask's configuration, and the Ray cluster it would run on.

    Without an address a private Ray is started, as a program would do it, and stopped. Exits with
    1 if something will not work, else with 0.
    """
    from dask_exo import disable
    from dask_exo.cli.doctor import examine

    named = {"exo.address": address, "exo.spill-directory": spill_directory}
    with dask.config.set({key: value for key, value in named.items() if value is not None}):
        try:
            found = examine()
        finally:
            disable()
    click.echo(str(found))
    raise click.exceptions.Exit(1 if found.failed else 0)


@click.command(short_help="Show a report that was written to a file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_numbers", is_flag=True, help="All numbers, with their units.")
def report(file: Path, *, as_numbers: bool) -> None:
    """Show what the computations of a report took, where there is no browser.

    FILE is a page that dask_exo.performance_report has written, or holds what to_json() of a report
    returns.
    """
    from dask_exo.report.render import text
    from dask_exo.report.summary import as_json, read_summary

    try:
        figures = read_summary(file)
    except InputError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(as_json(figures), indent=1) if as_numbers else text(figures))


class Commands(click.Group):
    """Commands whose errors are one line each."""

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the requested command; print an error as one line."""
        try:
            return super().invoke(ctx)
        except ExoError as error:
            click.echo(f"dask exo: {error}", err=True)
            raise click.exceptions.Exit(2) from error


@click.group(cls=Commands)
def checkpoints() -> None:
    """List or delete stored checkpoints (exo.checkpoint.path)."""


def _store(path: str | None) -> CheckpointStore:
    """Return the store at a path, by default at the configured one."""
    place = path or Config.current().checkpoint_path
    if place is None:
        raise InputError("no checkpoint path: give PATH, or set exo.checkpoint.path in the config")
    return CheckpointStore.existing(place)


@checkpoints.command("list")
@click.argument("path", required=False)
def list_groups(path: str | None) -> None:
    """List the collections that are stored at PATH, a directory or URL.

    By default it is exo.checkpoint.path, as Dask's configuration has it.
    """
    groups = list(_store(path).groups())
    click.echo(f"{'values':>8}  {'size':>12}  collection")
    for group in groups:
        more = f" and {group.partial} files that do not count" if group.partial else ""
        click.echo(f"{group.values:>8,}  {format_bytes(group.nbytes):>12}  {group.name}{more}")
    total = sum(group.nbytes for group in groups)
    click.echo(f"{len(groups)} collections, {format_bytes(total)}")


@checkpoints.command("clean")
@click.argument("path", required=False)
@click.option("--group", "names", multiple=True, help="Only this collection; may be repeated.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def clean(path: str | None, names: tuple[str, ...], *, yes: bool) -> None:
    """Delete the checkpoints at PATH, a directory or URL; other files there stay.

    By default it is exo.checkpoint.path, as Dask's configuration has it.
    """
    store = _store(path)
    groups = {group.name: group for group in store.groups()}
    if unknown := sorted(set(names) - groups.keys()):
        raise InputError(
            f"no collection {unknown[0]!r} is kept at {store.url!r}: look at "
            f"`dask exo checkpoints list`"
        )
    chosen = [groups[name] for name in names] or list(groups.values())
    nbytes = format_bytes(sum(group.nbytes for group in chosen))
    if not yes and chosen:
        click.confirm(f"delete {len(chosen)} collections ({nbytes})?", abort=True)
    for group in chosen:
        store.remove(group.name)
    click.echo(f"deleted {len(chosen)} collections, {nbytes}")
