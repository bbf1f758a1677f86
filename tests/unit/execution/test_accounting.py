"""Looks at the object stores cost no run its life, and short runs nothing."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from dask_exo import events
from dask_exo.cluster.futures import StoreUsage
from dask_exo.cluster.task_status import OutputDigest
from dask_exo.errors import ClusterError, NonDeterminismError
from dask_exo.execution.accounting import RETRY_INTERVAL, OutputVersions, observed
from dask_exo.report import recording
from dask_exo.testing import InlineFutures


class Clocked(InlineFutures):
    """Has a clock that is set, and stores that say what they are told to, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.asked, self.dead = 0.0, 0, False

    @property
    def now(self) -> float:
        return self.time

    def store(self) -> StoreUsage:
        self.asked += 1
        if self.dead:
            raise ClusterError("no answer")
        return StoreUsage(10, self.asked * 100, self.asked)


def seen(futures: Clocked, seconds: int) -> list[events.Event]:
    """What is heard of a run of some seconds that looks ten times a second."""
    heard: list[events.Event] = []
    with events.observing(heard.append, closely=False), observed(futures) as sampler:
        for step in range(10 * seconds):
            futures.time = step / 10
            sampler.sample(lambda: (3, "slots"))
    return heard


def test_a_short_run_asks_nothing() -> None:
    futures = Clocked()
    with observed(futures) as sampler:
        sampler.sample(lambda: (1, "slots"))
    assert futures.asked == 0


def test_a_long_run_looks_once_a_second_and_at_its_end() -> None:
    futures = Clocked()
    heard = seen(futures, 5)
    samples = [event for event in heard if isinstance(event, events.ClusterSeen)]
    assert len(samples) == 5
    assert {(one.in_flight, one.waits) for one in samples} == {(3, "slots")}
    assert heard[-1].spilled == 500  # from the first look to that at the end
    assert len({event.run for event in heard}) == 1


def test_who_listens_closely_knows_what_a_short_run_spilled() -> None:
    with recording() as stats, observed(Clocked()):
        pass
    assert stats.spilled == 100


def test_stores_that_do_not_answer_are_left_alone_for_a_while() -> None:
    futures = Clocked()
    futures.dead = True
    heard = seen(futures, int(RETRY_INTERVAL) + 3)
    assert futures.asked == 2
    assert not [event for event in heard if isinstance(event, events.ClusterSeen)]
    assert heard[-1].spilled == 0


def test_the_error_of_a_run_is_not_hidden_by_that_of_the_stores() -> None:
    futures = Clocked()

    def run() -> None:
        with observed(futures) as sampler:
            futures.time = 9.0
            sampler.sample(lambda: (1, "slots"))
            futures.dead = True
            raise KeyError("the user's")

    with pytest.raises(KeyError):
        run()
    assert futures.asked == 1


@pytest.mark.parametrize(("digest", "differs"), [(11, False), (None, False), (230, True)])
def test_a_recomputed_output_that_differs_is_an_error(digest: int | None, differs: bool) -> None:
    versions = OutputVersions(lambda: [OutputDigest("call-1", "read", 3, digest)], "error")
    versions.record(OutputDigest("call-1", "read", 3, digest=11))
    error = pytest.raises(NonDeterminismError, match="'read' ran again")
    with error if differs else nullcontext():
        versions.compare()
