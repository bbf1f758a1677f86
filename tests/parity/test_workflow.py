"""Workflows: annotated tasks run as if nothing had failed."""

from __future__ import annotations

import logging
import sqlite3
import threading
import uuid
from pathlib import Path

import dask
import pytest

import dask_exo
from dask_exo import Rollback, Scheduler
from dask_exo.checkpoint import CheckpointStore
from dask_exo.errors import CheckpointError, ConfigError, NonDeterminismError, WorkflowError
from dask_exo.execution import accounting
from dask_exo.planning.workflow import StoredTask
from dask_exo.testing import InlineFutures

pytestmark = pytest.mark.usefixtures("_store")


@pytest.fixture
def _store(tmp_path):
    settings = {"exo.checkpoint.path": str(tmp_path / "kept"), "exo.checkpoint.keep": "marked"}
    with dask.config.set({"scheduler": Scheduler(InlineFutures()), **settings}):
        yield


class _Calls(logging.Handler):
    """Names of called functions; a log does not count as a part of a function."""

    def emit(self, record: logging.LogRecord) -> None:
        calls.append(record.getMessage())


calls: list[str] = []
log = logging.getLogger("calls")
log.propagate = False
log.addHandler(_Calls())
log.setLevel(logging.INFO)


@pytest.fixture(autouse=True)
def _no_calls():
    calls.clear()


def draw(*_) -> str:
    """Return another value in each run."""
    log.info("draw")
    return uuid.uuid4().hex


def join(*texts: str) -> str:
    log.info("join")
    return "-".join(texts)


def send(text: str, sink: Path) -> str:
    """Send a text; sending it twice has the same effect."""
    log.info("send")
    sink.mkdir(exist_ok=True)
    (sink / text).touch()
    return text


def task(func, *args, name, **annotations):
    with dask.annotate(**annotations):
        return dask.delayed(func)(*args, dask_key_name=name)


def sent(sink: Path) -> list[str]:
    return sorted(file.name for file in sink.iterdir())


@pytest.mark.parametrize("stored", [None, "draw", "join", "send"])
def test_an_external_output_needs_a_stored_value_before_it(stored, tmp_path) -> None:
    at = {name: {"checkpoint": True} if name == stored else {} for name in ("draw", "join", "send")}
    first = task(draw, name="draw", deterministic=False, **at["draw"])
    joined = task(join, first, "x", name="join", **at["join"])
    last = task(send, joined, tmp_path / "out", name="send", external=True, **at["send"])
    if stored in {"draw", "join"}:
        assert last.compute() == sent(tmp_path / "out")[0]
        return
    with pytest.raises(WorkflowError, match=r"'send' has an external output, .* if 'draw' before"):
        last.compute()
    assert calls == []


def test_every_way_to_an_external_output_needs_one(tmp_path) -> None:
    first = task(draw, name="draw", deterministic=False)
    ways = [task(join, first, name="left", checkpoint=True), task(join, first, name="right")]
    with pytest.raises(WorkflowError, match="'draw'"):
        task(send, task(join, *ways, name="both"), tmp_path, name="s", external=True).compute()


def test_what_is_rolled_back_must_be_stored_before_another_output(tmp_path) -> None:
    for stored in (False, True):
        first = task(join, "a", name=f"a{stored}", rollback=Rollback(join), checkpoint=stored)
        last = task(send, first, tmp_path / "out", name="send", external=True)
        if stored:
            assert last.compute() == "a"
        else:
            with pytest.raises(WorkflowError, match="'aFalse' before it returned another value"):
                last.compute()


def test_the_next_program_gets_stored_values_and_sends_no_more(tmp_path) -> None:
    def program(**last):
        first = [task(draw, name=f"draw-{i}", deterministic=False, checkpoint=True) for i in (1, 2)]
        joined = task(join, *first, name="join")
        return task(send, joined, tmp_path / "out", name="send", external=True, **last).compute()

    found = program()
    assert len(set(found.split("-"))) == 2  # equal tasks of different names are different
    assert program() == found
    assert calls == ["draw", "draw", "join", "send", "join", "send"]
    calls.clear()
    assert program(checkpoint=True) == found
    assert calls == ["join", "send"]
    assert program(checkpoint=True) == found
    assert calls == ["join", "send"]
    assert sent(tmp_path / "out") == [found]


def test_what_a_stored_value_was_made_of_does_not_run_again() -> None:
    first = task(draw, name="draw", deterministic=False, checkpoint=True)
    second = task(draw, first, name="second", deterministic=False, checkpoint=True)
    found = second.compute()
    CheckpointStore(dask.config.get("exo.checkpoint.path")).remove("draw")
    assert second.compute() == found
    assert calls == ["draw", "draw"]


def test_an_output_that_is_stored_needs_nothing_before_it(tmp_path) -> None:
    first = task(draw, name="draw", deterministic=False, checkpoint=True)
    last = task(send, first, tmp_path / "out", name="send", external=True, checkpoint=True)
    found = last.compute()
    CheckpointStore(dask.config.get("exo.checkpoint.path")).remove("draw")
    assert last.compute() == found
    assert calls == ["draw", "send"]


def test_an_external_output_waits_until_values_are_stored(tmp_path, monkeypatch) -> None:
    write, events = StoredTask.write, []

    def noted(self, value):
        write(self, value)
        events.append("stored")

    def noticed(text):
        events.append("sent")

    monkeypatch.setattr(StoredTask, "write", noted)
    first = task(draw, name="draw", deterministic=False, checkpoint=True)
    with dask.config.set(scheduler=dask_exo.get, **{"exo.engine": "local"}):
        task(noticed, task(join, first, name="join"), name="send", external=True).compute()
    assert events == ["stored", "sent"]


def test_others_read_a_value_while_it_is_stored(monkeypatch) -> None:
    read, write = threading.Event(), StoredTask.write

    def slow(self, value):
        assert read.wait(60), "the next task waited, too"
        write(self, value)

    def reads(value):
        read.set()
        return value

    monkeypatch.setattr(StoredTask, "write", slow)
    first = task(draw, name="draw", deterministic=False, checkpoint=True)
    second = task(reads, first, name="reads")
    with dask.config.set(scheduler=dask_exo.get, **{"exo.engine": "local"}):
        assert len(second.compute()) == 32


def pay(ledger: Path, amount: int) -> int:
    with sqlite3.connect(ledger) as db:
        db.execute("CREATE TABLE IF NOT EXISTS paid (amount INT)")
        db.execute("INSERT INTO paid VALUES (?)", (amount,))
    db.close()
    if ledger.with_name("broken").exists():
        raise ConnectionError("lost")
    return amount


def refund(ledger: Path, amount: int) -> None:
    log.info("refund")
    with sqlite3.connect(ledger) as db:
        db.execute("DELETE FROM paid WHERE amount = ?", (amount,))
    db.close()


def paid(ledger: Path) -> list[int]:
    with sqlite3.connect(ledger) as db:
        rows = [amount for (amount,) in db.execute("SELECT amount FROM paid ORDER BY amount")]
    db.close()
    return rows


def payment(ledger: Path, **annotations):
    return task(pay, ledger, 5, name="pay", rollback=Rollback(refund), **annotations)


def test_an_attempt_is_rolled_back_before_the_next_one(tmp_path) -> None:
    ledger, broken = tmp_path / "ledger", tmp_path / "broken"
    broken.touch()
    with pytest.raises(ConnectionError, match="lost"):
        payment(ledger, checkpoint=True).compute()
    assert paid(ledger) == [5]
    broken.unlink()
    assert payment(ledger, checkpoint=True).compute() == 5
    assert (paid(ledger), calls) == ([5], ["refund"])
    assert payment(ledger, checkpoint=True).compute() == 5
    assert (paid(ledger), calls) == ([5], ["refund"])


def test_retries_roll_back_too(tmp_path) -> None:
    ledger = tmp_path / "ledger"
    (tmp_path / "broken").touch()
    with pytest.raises(ConnectionError):
        payment(ledger, retries=2).compute()
    assert calls == ["refund", "refund"]
    assert paid(ledger) == [5]


def test_a_graph_is_repeated_if_a_task_has_returned_two_values(tmp_path, monkeypatch) -> None:
    compare, raised = accounting.OutputVersions.compare, []

    def differs(self):
        compare(self)
        if len(raised) < 2:
            raised.append(True)
            raise NonDeterminismError("a task ran again")

    monkeypatch.setattr(accounting.OutputVersions, "compare", differs)
    first = task(draw, name="draw", deterministic=False, checkpoint=True)
    text = task(send, first, tmp_path / "out", name="send", external=True).compute()
    assert sent(tmp_path / "out") == [text]
    assert calls.count("draw") == 1  # the stored value counts
    raised.clear()
    with pytest.raises(NonDeterminismError):  # nothing says that this one may change
        dask.delayed(join)("a").compute()


def test_what_is_missing_is_named(tmp_path) -> None:
    value = task(draw, name="draw", deterministic=False, checkpoint=True)
    with (
        dask.config.set({"exo.checkpoint.path": None}),
        pytest.raises(ConfigError, match=r"'draw' is annotated with checkpoint .* set exo\.check"),
    ):
        value.compute()
    with dask.annotate(checkpoint=True):
        unnamed = dask.delayed(draw)()
    with pytest.raises(
        CheckpointError, match=r"is a delayed value that is not pure.*dask_key_name"
    ):
        unnamed.compute()
    with pytest.raises(ConfigError, match=r"rollback=5 is no dask_exo.Rollback: give"):
        task(draw, name="draw", rollback=5).compute()
    with pytest.raises(ConfigError, match="give each as True or False"):
        task(draw, name="draw", deterministic="no").compute()
