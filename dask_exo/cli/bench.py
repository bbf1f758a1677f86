"""``dask exo bench``: the same jobs here and on what Dask brings, on this machine."""

from __future__ import annotations

import os

import click
from dask.utils import parse_bytes


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
    from dask_exo.cli.bench_jobs import SYSTEMS, Side, measure, table

    try:
        nbytes = int(parse_bytes(size))
    except ValueError as error:
        message = f"{size!r} is not a size: write for example 1GB or 64MiB"
        raise click.BadParameter(message, param_hint="--size") from error
    cores = num_cpus or os.cpu_count() or 1
    sides: list[Side] = []
    for system in SYSTEMS:
        click.echo(f"{system} …", err=True)
        sides.append(measure(system, nbytes, cores))
    text, right = table(sides)
    click.echo(text)
    raise click.exceptions.Exit(0 if right else 1)
