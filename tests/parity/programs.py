"""Runs programs, each in a fork of a process that has imported everything already.

As a program of its own it reads orders from its standard input, a line of JSON each, and answers
with a line. Two of these processes, with other seeds for hashes, are two runs of one program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import Any

HEAD = """
import functools, json, os, sys
from pathlib import Path
import dask, dask.bag as db, dask.dataframe as dd, numpy as np, pandas as pd
frame = pd.DataFrame({"k": [1, 2, 3, 4, 5, 6], "v": [1, 10, 100, 1000, 10000, 100000]})
base = dd.from_pandas(frame, npartitions=3)
"""


class Programs:
    """A process that runs programs.

    Parameters
    ----------
    seed : int
        Of the hashes of strings.
    """

    def __init__(self, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def run(self, folder: Path, main: str, *, kept: Path | None, **env: str) -> dict[str, Any]:
        """Run ``main``, which defines ``result()``, in a folder.

        Returns
        -------
        dict
            ``rows``: the values of its column ``v``, as text; ``found`` and ``refused``: of the
            values that could be kept, how many were there, and why others are not kept.
        """
        order = {"folder": str(folder), "main": main, "kept": kept and str(kept), "env": env}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate("", timeout=30)


def main() -> None:
    """Run what the orders say."""
    import dask_exo  # noqa: F401  imported once, for all programs

    for line in sys.stdin:
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            os.close(read)
            try:
                answer = run(**json.loads(line))
            except BaseException:  # noqa: BLE001  whatever it is, the answer says it
                answer = {"error": traceback.format_exc()[-3000:]}
            with os.fdopen(write, "w") as pipe:
                pipe.write(json.dumps(answer))
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        print(text, flush=True)


def run(folder: str, main: str, kept: str | None, env: dict[str, str]) -> dict[str, Any]:
    """Run one program in this process."""
    import dask

    from dask_exo import Scheduler
    from dask_exo.report import recording
    from dask_exo.testing import InlineFutures

    os.chdir(folder)
    os.environ.update(env)
    sys.path.insert(0, folder)
    sys.argv = ["main.py"]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    dask.config.set({"scheduler": Scheduler(InlineFutures()), "exo.progress": False})
    dask.config.set({"exo.checkpoint.path": kept, "exo.checkpoint.keep": "all"})
    exec(compile(HEAD + main, "main.py", "exec", dont_inherit=True), vars(module))
    with recording() as stats:
        out = module.result().shuffle("k").compute()
    return {
        "rows": sorted(map(str, out.v.tolist())),
        "found": sum(one.found for one in stats.checkpoints),
        "refused": [one.refused for one in stats.checkpoints if one.refused],
    }


if __name__ == "__main__":
    main()
