"""One system in processes of its own: ``python -m asv_bench.peers.worker SYSTEM CORES MEMORY``.

Reads a line of JSON for each job from standard input and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
import warnings
from pathlib import Path

from asv_bench.peers.h2o import QUESTIONS
from asv_bench.peers.jobs import MADE_UP
from asv_bench.peers.systems import SYSTEMS
from asv_bench.peers.tpch import QUERY_JOBS


def main() -> None:
    """Serve."""
    name, cores, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print does not mix with the answers
    with SYSTEMS[name].start(cores, memory) as run:
        print(json.dumps({"ready": True}), file=answers)
        for line in sys.stdin:
            asked = json.loads(line)
            out = Path(asked["out"])
            shutil.rmtree(out, ignore_errors=True)
            started = time.perf_counter()
            try:
                run({**MADE_UP, **QUERY_JOBS, **QUESTIONS}[asked["job"]], Path(asked["data"]), out)
                answer = {"seconds": time.perf_counter() - started}
            except BaseException as error:  # noqa: BLE001  that a peer fails is a result
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(json.dumps(answer), file=answers)
    answers.close()


if __name__ == "__main__":
    main()
