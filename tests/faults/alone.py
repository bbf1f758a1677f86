"""The program of a user on a private Ray, which somebody is going to kill.

Run as ``python -m tests.faults.alone JOB DIRECTORY``; says ``same`` at its end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dask_exo
from tests.faults.jobs import JOBS, MAKES, check


def main() -> None:
    """Run it, and compare."""
    files = Path(sys.argv[2])
    files.mkdir(exist_ok=True)
    chosen = {"shuffle.algorithm": "push"}
    with dask_exo.enable(num_cpus=2, object_store_memory="100MB", **chosen):
        check(JOBS[sys.argv[1]](files, MAKES["part"]), "part")
    sys.stdout.write("same\n")


if __name__ == "__main__":
    main()
