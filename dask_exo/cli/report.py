"""``dask exo report``: a report that was written before, in a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dask_exo.errors import InputError


@click.command(short_help="Show a report that was written to a file.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_numbers", is_flag=True, help="All numbers, with their units.")
def report(file: Path, *, as_numbers: bool) -> None:
    """Show what the computations of a report took, where there is no browser.

    FILE is a page that dask_exo.performance_report has written, or holds what to_json() of a report
    returns.
    """
    from dask_exo.report.load import read
    from dask_exo.report.summary import as_json
    from dask_exo.report.text import text

    try:
        figures = read(file)
    except InputError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(as_json(figures), indent=1) if as_numbers else text(figures))
