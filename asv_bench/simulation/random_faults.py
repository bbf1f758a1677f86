"""Random weather for a simulated cluster: nodes that die and are back, slow ones, small stores.

A seed stands for one cluster and all that happens to it, so that a run can be replayed.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from dask_exo.cluster.futures import Node
from dask_exo.testing.simulated.futures import SimFutures
from dask_exo.testing.simulated.tasks import Call, Channels, Cost, NodeDeath

VALUE = 30_000  # bytes, as far as the stores are told
STORES = (10**5, 10**6, 10**8)
"""Bytes of a node's store: much is spilled, some, or nothing."""


class Weather(NamedTuple):
    """A cluster and what happens to it.

    Attributes
    ----------
    seed : int
    nodes : list of Node
    faults : list of NodeDeath
        Some come back at once, with nothing: a loss of what they had.
    slow : dict
        How many times longer tasks take, by node.
    noise : float
        How many times longer any task may take by chance: results come in any order.
    channels : Channels or None
        Disks and networks that take their time, so that values come late.
    """

    seed: int
    nodes: list[Node]
    faults: list[NodeDeath]
    slow: dict[str, float]
    noise: float
    channels: Channels | None

    def cluster(self) -> SimFutures:
        """The cluster, at its beginning; its tasks compute."""

        def cost(call: Call) -> Cost:
            return Cost(1.0 + sum(call.sizes) / VALUE, VALUE)

        chance = Random(self.seed)

        def slower(random: Random) -> float:
            return random.uniform(1.0, self.noise)

        stragglers = slower if self.noise > 1 else self.slow or None
        return SimFutures(
            self.nodes,
            cost,
            seed=chance.randrange(2**31),
            faults=self.faults,
            stragglers=stragglers,
            channels=self.channels,
        )


def weather(seed: int, *, deadly: bool = True) -> Weather:
    """Draw a cluster, and what happens to it.

    Parameters
    ----------
    seed : int
    deadly : bool
        Whether nodes may die for good, also all of them.

    Examples
    --------
    >>> weather(3) == weather(3), weather(3) == weather(4)
    (True, False)
    """
    random = Random(seed)
    store = random.choice(STORES)
    nodes = [Node(f"n{i}", random.randint(1, 3), store) for i in range(random.randint(1, 4))]
    faults = []
    for node in nodes:
        at = 0.0
        while random.random() < 0.4:
            at += random.uniform(0.5, 30)
            if deadly and random.random() < 0.1:
                faults.append(NodeDeath(at, node.id))
                break
            back = at + random.choice([0.001, 1.0, 10.0, 60.0])
            faults.append(NodeDeath(at, node.id, back))
            at = back
    slow = {node.id: random.uniform(1, 10) for node in nodes if random.random() < 0.3}
    noise = random.choice([1.0, 1.0, 1.5, 10.0])
    channels = Channels(disk=2 * VALUE, net=5 * VALUE) if random.random() < 0.3 else None
    return Weather(seed, nodes, sorted(faults, key=lambda f: f.at), slow, noise, channels)
