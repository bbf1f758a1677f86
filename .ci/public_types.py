#!/usr/bin/env python3
"""Check how complete types are, as a type checker of users sees them.

Those of public names are complete, and of all names that they lead to at least 98 % are.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = ROOT / "tests" / "unit" / "test_public_api.txt"
INCOMPLETE = {"dask_exo.testing.SimFutures"}  # it shows the machines that it simulates
LEAST = 0.98
COMMAND = ["basedpyright", "--verifytypes", "dask_exo", "--ignoreexternal", "--outputjson"]


def main() -> int:
    """Print the public names whose types are incomplete; return 1 if there are any."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as empty:
        shutil.copytree(ROOT / "dask_exo", Path(folder) / "dask_exo")
        environment = {**os.environ, "PYTHONPATH": folder}
        found = subprocess.run(
            COMMAND, env=environment, cwd=empty, capture_output=True, text=True, check=False
        )
    report = json.loads(found.stdout)["typeCompleteness"]
    symbols = {symbol["name"]: symbol["isTypeKnown"] for symbol in report["symbols"]}
    lines = PUBLIC.read_text(encoding="utf-8").splitlines()
    public = {re.split(r"[ (:]", line)[0] for line in lines if line} & symbols.keys()
    wrong = sorted(name for name in public - INCOMPLETE if not symbols[name])
    print(f"{len(public)} public names, {100 * report['completenessScore']:.1f} % of all symbols")
    for name in wrong:
        print(f"    {name}: annotate the attributes and arguments that it shows")
    return int(bool(wrong) or not public or report["completenessScore"] < LEAST)


if __name__ == "__main__":
    sys.exit(main())
