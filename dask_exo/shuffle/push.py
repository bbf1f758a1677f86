"""Push-based shuffle, in two stages and in rounds: what it spills, it spills once.

While the maps of one round run, the merges of the round before combine their blocks on the
node of the reducers, one merge a node and round, and yield one object a reducer, or one for a
few neighbouring reducers that get little. The maps'
own outputs are dropped as soon as their merges are submitted and never reach the disk.
Rounds are strict: the merges of round k-1 end before the maps of round k+1 start, so that two
rounds of map output are alive at most.

References: Exoshuffle sections 3.4.1 and 3.4.2, listing 7 (ES-push*). The listing submits
each round's maps twice and waits for one merge only; both are corrected here.
"""

from __future__ import annotations

from dask_exo.futures import Futures, Ref, Steps, evenly
from dask_exo.shuffle.maps import Maps
from dask_exo.shuffle.spec import Column, Spec


def push(
    futures: Futures, maps: Maps, spec: Spec, *, per_round: int, width: int = 1
) -> Steps[list[Column]]:
    """Map ``per_round`` parts at a time; merge each round on the reducers' nodes.

    ``width`` neighbouring reducers read the same merged blocks.

    Returns
    -------
    list of Column : (R,)
        One object of each round.
    """
    blocks: list[list[Ref]] = [[] for _ in range(spec.reducers)]  # (R, rounds), shared by a few
    together = [_cut(len(mine), width) for mine in spec.owned]  # (W, G) ranges of slots
    merging: list[Ref] = []
    while maps:
        before, merging = merging, []
        rows = yield from maps.take(per_round)  # (T, W)
        yield before
        for w, mine in enumerate(spec.owned):
            if not mine:
                continue
            merged = futures.stream(
                len(together[w]),
                spec.merge,
                together[w],
                *[row[w] for row in rows],
                node=spec.nodes[w].id,
            )  # (G,)
            for slots, block in zip(together[w], merged, strict=True):
                blocks[mine[slots.start]].append(block)
            merging.append(merged[-1])
        del rows
    yield from maps.finish()
    yield merging
    return [
        Column(blocks[mine[slots.start]], slot)
        for mine, cut in zip(spec.owned, together, strict=True)
        for slots in cut
        for slot in range(len(slots))
    ]


def _cut(count: int, width: int) -> list[range]:
    return [range(start, min(start + width, count)) for start in range(0, count, width)]


def push_objects(calls: int, reducers: int, nodes: int, rounds: int, width: int = 1) -> int:
    """Packed blocks, receipts and merged blocks that `push` makes: M·(W + 1) + rounds·R.

    Where ``width`` reducers share merged blocks, there are as many times fewer of those.
    """
    merged = sum(-(-len(mine) // width) for mine in evenly(reducers, nodes))
    return calls * (nodes + 1) + rounds * merged
