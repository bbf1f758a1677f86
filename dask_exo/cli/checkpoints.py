"""``dask exo checkpoints …``: see what is kept, and delete it."""

from __future__ import annotations

from typing import Any

import click
from dask.utils import format_bytes

from dask_exo.checkpoint.store import Store
from dask_exo.config import Config
from dask_exo.errors import ExoError, InputError


class Commands(click.Group):
    """Commands whose errors are one line each."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the one that is asked for."""
        try:
            return super().invoke(ctx)
        except ExoError as error:
            click.echo(f"dask exo: {error}", err=True)
            raise click.exceptions.Exit(2) from error


@click.group(cls=Commands)
def checkpoints() -> None:
    """See or delete what programs have kept (exo.checkpoint.path)."""


def _store(path: str | None) -> Store:
    """The store at a path, by default at the configured one."""
    place = path or Config.current().checkpoint_path
    if place is None:
        raise InputError("where? Give a PATH, or set exo.checkpoint.path in Dask's configuration")
    return Store.existing(place)


@checkpoints.command("list")
@click.argument("path", required=False)
def list_groups(path: str | None) -> None:
    """List the collections that are kept at PATH, a directory or URL.

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
    """Delete what is kept at PATH, a directory or URL; files of others there stay.

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
