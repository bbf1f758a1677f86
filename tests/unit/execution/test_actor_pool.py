"""Actor pools: which actors are stopped, and the resources that a pool takes."""

from __future__ import annotations

import pytest

from dask_exo.execution.actor_pool import ActorPool


class Pool(ActorPool):
    """A pool of numbered actors, with a clock that the test sets."""

    def __init__(self, actors: int):
        self.now, self.stopped = 0.0, []
        super().__init__({"CPU": 0.5}, self.stopped.append, lambda: self.now)
        for number in range(actors):
            self.add(number)


@pytest.fixture
def pool():
    return Pool(3)


def test_the_least_recently_used_idle_actors_are_stopped_first(pool):
    first = pool.actors[0]
    first.calls += 1
    pool.now = 5.0
    pool.release(first)
    assert pool.stop_idle(keep=1)
    assert pool.stopped == [1, 2]
    assert pool.idle == [first]


def test_busy_actors_and_those_idle_for_a_moment_stay(pool):
    pool.actors[0].calls += 1
    pool.actors[1].since = 8.0
    pool.now = 10.0
    assert pool.stop_idle(5.0)
    assert pool.stopped == [2]
    assert not pool.stop_idle(5.0)
    assert pool.resources(len(pool)) == {"CPU": 1.0}


def test_an_actor_that_died_is_not_stopped(pool):
    dead = pool.actors[1]
    pool.discard(dead)
    assert pool.stop_idle()
    assert pool.stopped == [0, 2]


def test_actors_started_before_the_request_grew_are_outgrown(pool):
    pool.request = {"CPU": 1.0}
    pool.add(3)
    assert [actor.outgrown for actor in pool.actors] == [True, True, True, False]


class Actor:
    """An actor that records how it was let go."""

    def __init__(self, ends: list[str]):
        self.retire = lambda: ends.append("retired")
        self.stop = lambda: ends.append("stopped")


@pytest.mark.parametrize(
    ("amounts", "ends"),
    [({"CPU": 1.0}, ["stopped"] * 2), ({"GPU": 1.0}, ["retired", "stopped"])],
)
def test_actors_with_gpus_that_did_not_fail_may_serve_the_next_computation(amounts, ends):
    got: list[str] = []
    pool = ActorPool(amounts, lambda actor: actor.stop(), lambda: 0.0)
    actors = [pool.add(Actor(got)) for _ in range(3)]
    actors[1].failed = True
    actors[2].calls = 1
    pool.retire()
    assert got == ends
    assert pool.actors == [actors[2]]
