"""``dask exo doctor``: what is well here, what is not, and what to do about it."""

from __future__ import annotations

import click
import dask.config


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
