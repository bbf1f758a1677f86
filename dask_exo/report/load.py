"""Reports that were written before, read again."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dask_exo.errors import InputError
from dask_exo.report.summary import Figures, from_json

IN_A_PAGE = re.compile(r"<script type='application/json' id='figures'>(.*?)</script>", re.DOTALL)


def read(path: Path) -> Figures:
    """Read the figures of a page of `performance_report`, or of a file of ``Report.to_json()``.

    Raises
    ------
    InputError
        The file is neither.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    found = IN_A_PAGE.search(text)
    try:
        return from_json(json.loads(text if found is None else found[1]))
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{str(path)!r} is no report of this version of dask_exo: give a page that "
            f"performance_report has written, or a file with what to_json() of a report returns"
        ) from error
