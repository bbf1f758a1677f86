"""``ddf.exo.epochs`` on a real cluster: consumers in several processes."""

from __future__ import annotations

import itertools
import os
import threading

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import ray

import dask_exo
from dask_exo.client import Event

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

ROWS = 120_000
FRAME = pd.DataFrame({"n": np.arange(ROWS), "x": np.arange(ROWS) / 2, "y": np.arange(ROWS) % 7})


def consume(batches, state=None, stop=None):
    """What a consumer has seen, in a process of its own, and where it stopped."""
    if state is not None:
        batches.load_state_dict(state)
    seen = []
    for batch in itertools.islice(batches, stop):
        assert (batch["x"] == batch["n"] / 2).all()
        seen.append((batches.epoch, batch["n"]))
    return os.getpid(), seen, batches.state_dict()


def consumers(ddf, count=2, epochs=3, **options):
    return ddf.exo.epochs(epochs, 10_000, seed=3, split=count, format="numpy", **options)


def rows(seen):
    return sorted(n for _, numbers in seen for n in numbers)


def submitted(client, *args, **kwargs):
    with dask.annotate(num_cpus=0):  # the shuffle gets all slots
        return client.submit(consume, *args, pure=False, **kwargs)


def test_processes_share_each_epoch(client) -> None:
    ddf = dd.from_pandas(FRAME, npartitions=5)
    futures = [submitted(client, one) for one in consumers(ddf, 3)]
    pids, seen, _ = zip(*client.gather(futures), strict=True)
    assert os.getpid() not in pids
    assert len(set(pids)) > 1
    for mine, other in zip(seen, consumers(ddf, 3), strict=True):
        assert [epoch for epoch, _ in mine] == [e for e in range(3) for _ in range(4)]
        for (_, got), expected in zip(mine, other, strict=True):
            np.testing.assert_array_equal(got, expected["n"])
    for epoch in range(3):
        assert rows(s for mine in seen for s in mine if s[0] == epoch) == list(range(ROWS))


def by_client(ones):
    with dask_exo.Client() as client, dask.annotate(num_cpus=0):
        return client.gather(client.map(consume, ones, pure=False))


def by_dask(ones):
    with dask.annotate(num_cpus=0):
        return dask.compute(*[dask.delayed(consume)(one) for one in ones])


def by_ray(ones):
    task = ray.remote(consume).options(num_cpus=0)
    return ray.get([task.remote(one) for one in ones])


@pytest.mark.parametrize("run", [by_client, by_dask, by_ray])
def test_consumers_go_wherever_tasks_go(run) -> None:
    done = run(consumers(dd.from_pandas(FRAME, npartitions=4), epochs=1))
    assert rows(s for _, mine, _ in done for s in mine) == list(range(ROWS))


def test_one_that_waits_for_ever_holds_nobody_up(client) -> None:
    gate = Event()

    def slow(batches, gate):
        first = next(batches)["n"]
        gate.wait()
        return [(batches.epoch, first), *consume(batches)[1]]

    first, second = consumers(dd.from_pandas(FRAME, npartitions=4), epochs=5)
    late = client.submit(slow, first, gate, pure=False)
    ahead = submitted(client, second).result()[1]
    gate.set()
    assert len(late.result()) == len(ahead) == 30
    assert rows([*late.result(), *ahead]) == sorted(list(range(ROWS)) * 5)


def test_one_goes_on_in_a_third_process(client) -> None:
    ddf = dd.from_pandas(FRAME, npartitions=4)
    whole = [list(one) for one in consumers(ddf)]
    first, second = consumers(ddf)
    _, seen, state = submitted(client, second, stop=8).result()
    seen += submitted(client, second, state).result()[1]
    assert len(submitted(client, first).result()[1]) == 18
    for (_, got), expected in zip(seen, whole[1], strict=True):
        np.testing.assert_array_equal(got, expected["n"])


def test_what_a_shuffle_raises_is_raised_in_every_process(client) -> None:
    def boom(part):
        raise ValueError("bad part")

    ddf = dd.from_pandas(FRAME, npartitions=4)
    for one in consumers(ddf.map_partitions(boom, meta=ddf._meta)):
        with pytest.raises(ValueError, match="bad part"):
            submitted(client, one).result()


def test_nothing_answers_any_more_when_all_have_ended(client) -> None:
    before = set(threading.enumerate())
    one, two = consumers(dd.from_pandas(FRAME, npartitions=2), epochs=1)
    futures = [submitted(client, one, stop=2), submitted(client, two)]
    client.gather(futures)
    new = set(threading.enumerate()) - before
    (desk,) = [thread for thread in new if thread.name == "dask_exo-shards"]
    one.close()
    client.submit(lambda batches: batches.close(), one, pure=False).result()
    desk.join(timeout=30)
    assert not desk.is_alive()
