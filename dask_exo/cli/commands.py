"""Commands of ``dask exo`` that only call another module: bench, checkpoints, doctor, report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import dask.config
from dask.utils import format_bytes, parse_bytes

from dask_exo.checkpoint.store import CheckpointStore
from dask_exo.config import Config
from dask_exo.errors import ExoError, InputError


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
