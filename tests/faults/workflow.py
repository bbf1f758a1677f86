"""A workflow that is killed again and again, and the check that each of its outputs exists once.

``python -m tests.faults.workflow --drivers 150 --workers 50`` kills programs, which are forked from
this one and run on threads, and workers of a private Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import dask

import dask_exo
from dask_exo.errors import WorkerLostError

WIDTH = 4  # tasks of each kind
LONG = 1.0  # seconds until the last kill of a program that runs on threads
DEADLY = 30  # of 256 moments of a worker


def pause() -> None:
    """Take a moment; with a directory of deaths, this may be the end of a worker."""
    time.sleep(0.01 + os.urandom(1)[0] / 5000)
    deaths = dask.config.get("deaths", None)
    if deaths is not None and os.urandom(1)[0] < DEADLY:
        Path(deaths, uuid.uuid4().hex).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def draw(*_: Any) -> str:
    """Return another text in each run."""
    pause()
    return uuid.uuid4().hex[:8]


def price(drawn: str, i: int) -> str:
    pause()
    return f"{drawn}-{i}"


def pay(text: str, ledger: Path) -> str:
    """Append to a ledger; a second call appends once more."""
    pause()
    write(ledger, "INSERT INTO paid VALUES (?)", text)
    pause()
    return text


def refund(text: str, ledger: Path) -> None:
    write(ledger, "DELETE FROM paid WHERE text = ?", text)


def write(ledger: Path, statement: str, text: str) -> None:
    with closing(sqlite3.connect(ledger, timeout=60)) as db, db:
        db.execute(statement, (text,))


def notify(text: str, sink: Path) -> str:
    """Make a file; a second call makes the same one."""
    pause()
    (sink / text).touch()
    pause()
    return text


def task(func: Callable[..., Any], name: str, *args: Any, **annotations: Any) -> Any:
    with dask.annotate(**annotations):
        return dask.delayed(func)(*args, dask_key_name=name)


def program(folder: Path, settings: dict[str, Any]) -> None:
    """Run the workflow; write its result to a file."""
    ledger, sink = folder / "ledger", folder / "sink"
    sink.mkdir(exist_ok=True)
    with closing(sqlite3.connect(ledger, timeout=60)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS paid (text TEXT)")
    first = task(draw, "begin", deterministic=False, checkpoint=True)
    sent = []
    for i in range(WIDTH):
        drawn = task(draw, f"draw-{i}", first, deterministic=False)
        priced = task(price, f"price-{i}", drawn, i, checkpoint=True)
        done = task(
            pay, f"pay-{i}", priced, ledger, rollback=dask_exo.Rollback(refund), checkpoint=True
        )
        sent.append(task(notify, f"notify-{i}", done, sink, external=True))
    keep = {"exo.checkpoint.path": str(folder / "kept"), "exo.checkpoint.keep": "marked"}
    with dask.config.set({**keep, **settings, "scheduler": dask_exo.get, "exo.progress": False}):
        found = dask.compute(*sent)
    (folder / "result.new").write_text("\n".join(found))
    (folder / "result.new").rename(folder / "result")


def check(folder: Path) -> None:
    """Compare all outputs with the result."""
    result = sorted((folder / "result").read_text().split())
    with closing(sqlite3.connect(folder / "ledger")) as db:
        paid = sorted(text for (text,) in db.execute("SELECT text FROM paid"))
    assert len(set(result)) == WIDTH, result
    assert paid == result, (paid, result)
    assert sorted(file.name for file in (folder / "sink").iterdir()) == result


def forked(folder: Path, settings: dict[str, Any]) -> int:
    """Run the program in another process; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        program(folder, settings)
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  the parent looks at the code
        print(repr(error)[:500], flush=True)
        os._exit(1)


def kill_drivers(folder: Path, rng: random.Random, kills: int) -> int:
    """Run the program until it ends, after so many kills at most; return their number."""
    settings, done = {"exo.engine": "local", "exo.num-cpus": 2}, 0
    while not (folder / "result").exists():
        child = forked(folder, settings)
        end = time.monotonic() + (rng.uniform(0.05, LONG) if done < kills else 600)
        while time.monotonic() < end:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                assert status == 0, "the program has failed"
                break
            time.sleep(0.005)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            done += 1
    check(folder)
    return done


def kill_workers(folder: Path) -> int:
    """Run the program on Ray, while its workers die; return how many did."""
    deaths = folder / "deaths"
    deaths.mkdir()
    while not (folder / "result").exists():
        with contextlib.suppress(WorkerLostError):  # a task has died more often than Ray retries
            program(folder, {"exo.engine": "ray", "deaths": str(deaths)})
    check(folder)
    return len(list(deaths.iterdir()))


def repeat(kill: Callable[[Path], int], kills: int, what: str) -> None:
    """Run programs until there were so many kills."""
    programs = done = 0
    while done < kills:
        with tempfile.TemporaryDirectory() as folder:
            done += kill(Path(folder))
            programs += 1
    print(f"{programs} programs, {done} kills of {what}: each output once", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drivers", type=int, default=150)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    repeat(lambda path: kill_drivers(path, rng, rng.randint(1, 8)), options.drivers, "drivers")
    if options.workers:
        with dask_exo.enable(num_cpus=2):
            repeat(kill_workers, options.workers, "workers")


if __name__ == "__main__":
    main()
