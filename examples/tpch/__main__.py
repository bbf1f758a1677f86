"""Run the queries, one line for each: seconds, rows, and whether DuckDB finds the same.

python -m examples.tpch --scale 1 --check
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

import dask
from dask.utils import parse_bytes

from examples.tpch.answers import Answers
from examples.tpch.queries import QUERIES
from examples.tpch.tables import generate, read

SCHEDULERS = ["exo", "threads", "processes", "sync", "distributed"]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.tpch", description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="scale factor: gigabytes, roughly")
    parser.add_argument("--data", type=Path, help="where the tables are; made if they are not")
    parser.add_argument("--partition-size", type=parse_bytes, default="75MB", metavar="BYTES")
    parser.add_argument(
        "--queries", type=numbers, default=list(QUERIES), metavar="1,3,..", help="all, if not given"
    )
    parser.add_argument("--scheduler", choices=SCHEDULERS, default="exo")
    parser.add_argument("--check", action="store_true", help="compare with DuckDB")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    found = [int(number) for number in text.split(",")]
    if not set(found) <= set(QUERIES):
        raise ValueError(text)
    return found


def running_on(scheduler: str) -> AbstractContextManager:
    """Everything that is special about a scheduler."""
    if scheduler == "exo":
        import dask_exo

        return dask_exo.enable()
    if scheduler == "distributed":
        from distributed import Client

        return Client()
    return dask.config.set(scheduler=scheduler)


def main() -> int:
    """How many of the queries found something else than DuckDB."""
    args = options()
    folder = args.data or Path(tempfile.gettempdir()) / f"tpch-{args.scale:g}"
    if not (folder / "region").exists():  # it is written last
        print(f"writing scale factor {args.scale:g} to {folder}")
        generate(folder, args.scale, args.partition_size)
    tables = read(folder, args.scale)
    answers = Answers(folder, args.scale) if args.check else None
    different = 0
    with running_on(args.scheduler):
        for number in args.queries:
            start = time.perf_counter()
            found = QUERIES[number](tables).compute()
            line = f"q{number:<2} {time.perf_counter() - start:9.2f} s {len(found):6d} rows"
            if answers is not None:
                try:
                    answers.check(number, found)
                    line += "  equal"
                except AssertionError as error:
                    different += 1
                    line += f"  DIFFERENT: {error}"
            print(line, flush=True)
    return different


if __name__ == "__main__":
    raise SystemExit(main())
