"""``dask exo``: the commands bench, checkpoints, doctor, published, report, sort and top.

Dask imports this module for each of its own commands, so functions import slow modules.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import dask.config
from dask.utils import format_bytes, parse_bytes

from dask_exo import errors
from dask_exo.checkpoint.store import CheckpointStore
from dask_exo.config import Config
from dask_exo.shuffle import algorithms

if TYPE_CHECKING:
    from dask_exo.cli.sort import SortInput
    from dask_exo.report import Collector

_USAGE = (
    errors.CheckpointError,
    errors.ColumnError,
    errors.ConfigError,
    errors.InputError,
    errors.OutputError,
    errors.OutputExistsError,
    errors.SortKeyError,
)


class Commands(click.Group):
    """Commands that print an error as one line, and exit with 2 if the user can correct it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the requested command."""
        try:
            return super().invoke(ctx)
        except errors.ExoError as error:
            click.echo(f"dask exo: {error}", err=True)
            raise click.exceptions.Exit(2 if isinstance(error, _USAGE) else 1) from error


@click.group("exo", cls=Commands)
@click.version_option(package_name="dask-exo", prog_name="dask-exo")
def main() -> None:
    """Dask on Ray, with push-based shuffles."""


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


@main.command(short_help="Compare this machine's speed on dask_exo and on Dask alone.")
@click.option(
    "--size", type=Size(), default="400MB", show_default=True, help="Bytes of generated rows."
)
@click.option("--num-cpus", type=click.IntRange(min=1), help="Parallel tasks; default: all cores.")
def bench(*, size: int, num_cpus: int | None) -> None:
    """Sort, join and group the same rows on dask_exo, Dask's threads and a LocalCluster.

    Each system runs each job twice in a process of its own; the second run counts. Takes some
    minutes. Exits with 1 if a system fails or their results differ.
    """
    from dask_exo.cli.bench import SYSTEMS, BenchResult, measure, table

    results: list[BenchResult] = []
    for system in SYSTEMS:
        click.echo(f"{system} …", err=True)
        results.append(measure(system, size, num_cpus or os.cpu_count() or 1))
    text, equal = table(results)
    click.echo(text)
    raise click.exceptions.Exit(0 if equal else 1)


@main.command(short_help="Examine this machine, the configuration and the cluster.")
@click.option("--address", help="Examine the Ray cluster at this address.")
@click.option("--spill-directory", help="Spill directory of a private Ray.")
def doctor(*, address: str | None, spill_directory: str | None) -> None:
    """Examine this machine, Dask's configuration, and the Ray cluster that Dask would run on.

    Without an address a private Ray is started, as a program would do it, and stopped. Exits with
    1 if something will not work, else with 0.
    """
    from dask_exo import disable
    from dask_exo.cli.doctor import examine

    arguments = {"exo.address": address, "exo.spill-directory": spill_directory}
    with dask.config.set({key: value for key, value in arguments.items() if value is not None}):
        try:
            diagnosis = examine()
        finally:
            disable()
    click.echo(str(diagnosis))
    raise click.exceptions.Exit(1 if diagnosis.failed else 0)


@main.command(short_help="Show a report that was written to a file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_numbers", is_flag=True, help="All numbers, with their units.")
def report(file: Path, *, as_numbers: bool) -> None:
    """Show a report as text, where there is no browser.

    FILE is a page that dask_exo.performance_report has written, or holds what to_json() of a report
    returns.
    """
    from dask_exo.report.render import text
    from dask_exo.report.summary import as_json, read_summary

    try:
        figures = read_summary(file)
    except errors.InputError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(as_json(figures), indent=1) if as_numbers else text(figures))


@main.command()
@click.argument("url", required=False)
@click.option("--once", is_flag=True, help="Write it once, and exit.")
def top(url: str | None, *, once: bool) -> None:
    """Show the progress of one of your programs on this machine.

    URL is the address in the repr of its dask_exo.enable(). The default is the program that was
    started last.
    """
    from dask_exo.report.live import watch

    with contextlib.suppress(KeyboardInterrupt):
        watch(url, once=once)


@main.group()
def published() -> None:
    """List or delete collections that programs have published on a Ray cluster."""


_address = click.option(
    "--address", help="The Ray cluster; the default is exo.address, or the one of this machine."
)


@contextlib.contextmanager
def _joined(address: str | None) -> Iterator[None]:
    """Join a cluster, for a block."""
    import dask_exo

    with (
        dask.config.set({"exo.report.live": False}),
        dask_exo.enable(address or Config.current().address or "auto"),
    ):
        yield


@published.command("list")
@_address
def list_published(*, address: str | None) -> None:
    """List what is published on the cluster."""
    from dask_exo.cluster import on_ray

    with _joined(address):
        found = on_ray.publications()
    click.echo(f"{'partitions':>10}  {'rows':>14}  {'size':>12}  {'published':<16}  name")
    for one in found:
        rows = "?" if one.rows is None else f"{one.rows:,}"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.time))
        size = format_bytes(one.nbytes)
        click.echo(f"{one.partitions:>10,}  {rows:>14}  {size:>12}  {when:<16}  {one.name}")
    total = format_bytes(sum(one.nbytes for one in found))
    click.echo(f"{len(found)} collections, {total}")


@published.command("delete")
@click.argument("names", nargs=-1, required=True)
@_address
def delete_published(names: tuple[str, ...], *, address: str | None) -> None:
    """Delete publications; programs that read them keep the values until they end."""
    from dask_exo.cluster import on_ray

    with _joined(address):
        for name in names:
            one = on_ray.delete_publication(name)
            click.echo(f"deleted {name}, {format_bytes(one.nbytes)}")


@main.group()
def checkpoints() -> None:
    """List or delete stored checkpoints (exo.checkpoint.path)."""


def _store(path: str | None) -> CheckpointStore:
    place = path or Config.current().checkpoint_path
    if place is None:
        raise errors.InputError(
            "no checkpoint path: give PATH, or set exo.checkpoint.path in the config"
        )
    return CheckpointStore.existing(place)


@checkpoints.command("list")
@click.argument("path", required=False)
def list_groups(path: str | None) -> None:
    """List the collections that are stored at PATH, a directory or URL.

    The default is exo.checkpoint.path of Dask's configuration.
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

    The default is exo.checkpoint.path of Dask's configuration.
    """
    store = _store(path)
    groups = {group.name: group for group in store.groups()}
    if unknown := sorted(set(names) - groups.keys()):
        raise errors.InputError(
            f"no collection {unknown[0]!r} is stored at {store.url!r}: see "
            f"`dask exo checkpoints list`"
        )
    selected = [groups[name] for name in names] or list(groups.values())
    nbytes = format_bytes(sum(group.nbytes for group in selected))
    if not yes and selected:
        click.confirm(f"delete {len(selected)} collections ({nbytes})?", abort=True)
    for group in selected:
        store.remove(group.name)
    click.echo(f"deleted {len(selected)} collections, {nbytes}")


@main.command(short_help="Sort records or files into Parquet, and check the result.")
@click.option("--size", type=Size(), help="Sort this much of generated records (100 bytes each).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the records.")
@click.option(
    "--skew",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Skew of the keys: 0 is uniform, 1 is already high.",
)
@click.option("--input", "source", help="Sort Parquet or CSV: a file, directory, glob or URL.")
@click.option("--by", help="Columns to sort by, with commas between.")
@click.option("--output", help="Directory or URL to create; a temporary one if not given.")
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
@click.option(
    "--partition-size",
    type=Size(),
    help="Bytes in a partition; by default 4 partitions for each CPU, of 8 MB to 128 MB, and 32 "
    "or more that fit the object store.",
)
@click.option("--num-cpus", type=click.IntRange(min=1), help="Slots of the private Ray.")
@click.option("--object-store-memory", type=Size(), help="Bytes of its object store.")
@click.option("--spill-directory", help="Its spill directory.")
@click.option("--address", help="Use the Ray cluster at this address instead.")
@click.option(
    "--algorithm",
    type=click.Choice(["auto", *algorithms.names()]),
    default="auto",
    show_default=True,
    help="Shuffle algorithm.",
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
    algorithm: str,
    no_validate: bool,
    **cluster: Any,
) -> None:
    """Sort records or files into Parquet, check the result, and report times and sizes.

    Exits with 0 if the output is right, 1 if it is not or the run failed, 2 if the arguments do
    not allow it.
    """
    from dask_exo.cli.sort import file_input, generated_input, partition_bytes

    if (size is None) == (source is None):
        raise click.UsageError("give either --size (generated records) or --input (files)")
    if source is not None and by is None:
        raise click.UsageError("--input needs --by: the columns to sort by")
    cluster["shuffle.algorithm"] = algorithm
    slots = cluster["num_cpus"] or os.cpu_count() or 1

    def choose_size(nbytes: int) -> int:
        return partition_size or partition_bytes(nbytes, slots, cluster["object_store_memory"])

    with _output_directory(output) as place:
        if size:
            job = generated_input(size, seed, skew, choose_size(size))
        else:
            job = file_input(str(source), choose_size)
        if by is not None:
            job.by = [name.strip() for name in by.split(",")]
        _sort_job(job, place, cluster, slots=slots, overwrite=overwrite, check=not no_validate)


@contextlib.contextmanager
def _output_directory(output: str | None) -> Iterator[str]:
    """Yield the path of the output, by default a temporary one that is removed at the end."""
    if output is not None:
        yield output
        return
    with tempfile.TemporaryDirectory(prefix="dask-exo-sort-", ignore_cleanup_errors=True) as path:
        click.echo(f"no --output: writing to {path}, removed at the end")
        yield f"{path}/sorted"


Stages = list[tuple[str, float, int]]
"""Name and seconds of each stage, and the bytes that passed through it (0: none)."""


@contextlib.contextmanager
def _timed(stages: Stages, name: str, nbytes: int = 0) -> Iterator[None]:
    start = time.perf_counter()
    yield
    stages.append((name, time.perf_counter() - start, nbytes))


@contextlib.contextmanager
def _engine(nbytes: int, cluster: dict[str, Any], stages: Stages) -> Iterator[None]:
    """Run on threads if the data fit in memory four times and no Ray is described; else on Ray."""
    import dask_exo
    from dask_exo.scheduler import local_memory

    ray = cluster["address"] is not None or cluster["object_store_memory"] is not None
    if ray or 4 * nbytes > local_memory(Config.current()):
        with contextlib.ExitStack() as stack:
            with _timed(stages, "start Ray"):
                _ = stack.enter_context(dask_exo.enable(**cluster)).cluster  # waits
            yield
        return
    settings = {"exo." + name.replace("_", "-"): value for name, value in cluster.items()}
    settings.update({"exo.engine": "local", "dataframe.shuffle.method": "tasks"})
    with dask.config.set({**settings, "scheduler": dask_exo.get}):
        yield


def _sort_job(
    job: SortInput,
    output: str,
    cluster: dict[str, Any],
    *,
    slots: int,
    overwrite: bool,
    check: bool,
) -> None:
    from dask_exo.cli import sort, validate
    from dask_exo.report import recording
    from dask_exo.report.progress import progress

    # raises errors in the arguments before a cluster is started
    sort.check(job.frame, job.by, output, overwrite=overwrite, nbytes=job.expected)
    expected = None
    stages: Stages = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_engine(job.nbytes, cluster, stages))
        stats = stack.enter_context(recording())
        stack.enter_context(progress())
        if check:
            with _timed(stages, "input checksum", job.nbytes):
                expected = sort.input_checksum(job.frame)
        with _timed(stages, "sort + write", job.nbytes):
            sort.sort_to_parquet(
                job.frame, job.by, output, overwrite=overwrite, nbytes=job.expected, **job.options
            )
    if expected is None:
        _print_costs(job, stages, stats)
        click.echo("not validated")
        return
    with _timed(stages, "validate", job.nbytes):
        summary = validate.validate(output, job.by, workers=slots)
    _print_costs(job, stages, stats)
    validate.require(summary, expected, where=output)
    click.echo(
        f"validated: {summary.rows:,} rows in order, checksum equal, "
        f"{summary.duplicates:,} duplicate keys"
    )


def _print_costs(job: SortInput, stages: Stages, stats: Collector) -> None:
    from dask_exo.report.render import requests_text

    click.echo(f"data            {format_bytes(job.nbytes)}, {job.frame.npartitions} partitions")
    for name, seconds, nbytes in stages:
        rate = f"{nbytes / seconds / 1e9:8.2f} GB/s" if nbytes else ""
        click.echo(f"{name:<15} {seconds:8.2f} s {rate}".rstrip())
    ratio = stats.spilled / job.nbytes if job.nbytes else 0.0
    click.echo(f"objects         {stats.objects:,} in {stats.calls:,} calls")
    click.echo(
        f"spilled         {format_bytes(stats.spilled)} ({ratio:.2f} x the data), "
        f"{format_bytes(stats.restored)} restored"
    )
    if stats.repeated:
        names = ", ".join(f"{name} {n}" for name, n in stats.repeated.items())
        click.echo(
            f"recovered {stats.repeated.total()} of {sum(stats.tasks.values())} partitions after a "
            f"loss of workers or nodes: {names}"
        )
    if stats.requests:
        click.echo(f"object storage  {requests_text(stats.requests)}")
    for shuffle in stats.shuffles:
        click.echo(
            f"shuffle         {shuffle.algorithm}, {shuffle.maps} maps → "
            f"{shuffle.reducers} reducers in {shuffle.rounds} rounds, "
            f"{format_bytes(shuffle.nbytes)}: {shuffle.reason}"
        )
