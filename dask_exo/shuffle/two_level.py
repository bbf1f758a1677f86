"""Two-level shuffle: for so many maps and nodes that M·W objects are too many.

The W nodes form G groups. A map packs one object for each group instead of one for each node, and
a merge of each group, on each of its nodes in turn, takes a round apart for all reducers of the
group. With G = √W that makes M·√W objects. The price: what is merged on one node of a group travels
once more, to the node of its reducer. Rounds are bounded as in `push`.

References: the two-stage exchange of Exoshuffle-CloudSort, section 4, has W groups of one node;
the general one is that of multi-level sample sort (Axtmann et al., SPAA 2015).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count

from dask_exo.futures import Futures, Ref, Steps, evenly
from dask_exo.shuffle.maps import Maps
from dask_exo.shuffle.merged import Merged, merged_objects
from dask_exo.shuffle.spec import Column, Spec


def two_level(  # noqa: PLR0913  its knobs are its keywords
    futures: Futures,
    maps: Maps,
    spec: Spec,
    *,
    per_round: int,
    groups: int,
    alive: int = 2,
    width: int = 1,
) -> Steps[list[Column]]:
    """Map ``per_round`` parts at a time into G groups; merge each round within the groups.

    Returns
    -------
    list of Column : (R,)
        One object of each round.
    """
    merged = Merged(spec, width)
    merging: deque[list[Ref]] = deque()  # the merges of the rounds before
    alone = evenly(len(spec.nodes), len(spec.nodes))
    together = evenly(len(spec.nodes), groups)
    turns = count()
    while maps:
        turn = next(turns)
        # the parts that were mapped to be measured are packed for each node already
        teams = alone if maps.probed else together
        owned = [range(spec.owned[t.start].start, spec.owned[t.stop - 1].stop) for t in teams]
        rows = yield from maps.take(0 if maps.probed else per_round, owned=owned)  # (T, G)
        while len(merging) >= alive - 1:
            yield merging.popleft()
        merging.append([])
        for g, team in enumerate(teams):
            slots = [
                slots for w in team for slots in _moved(merged.slots[w], spec.owned[w], owned[g])
            ]
            if not slots:
                continue
            node = spec.nodes[team[turn % len(team)]].id
            blocks = futures.stream(
                len(slots), spec.merge, slots, *[row[g] for row in rows], node=node
            )
            merging[-1].append(blocks[-1])
            for w in team:
                mine, blocks = blocks[: len(merged.slots[w])], blocks[len(merged.slots[w]) :]
                merged.add(w, mine)
        del rows
    yield from maps.finish()
    yield [ref for ends in merging for ref in ends]
    return merged.columns()


def _moved(slots: Sequence[range], mine: range, ours: range) -> list[range]:
    """Slots that are counted from a node's first reducer, counted from its group's first."""
    first = mine.start - ours.start
    return [range(first + r.start, first + r.stop) for r in slots]


def two_level_objects(  # noqa: PLR0913  each is a number of its own
    calls: int,
    reducers: int,
    nodes: int,
    *,
    groups: int,
    rounds: int,
    width: int = 1,
    probes: int = 0,
) -> int:
    """Objects that `two_level` makes: M·(G + 1) + rounds·R, with probes·(W - G) more.

    Parameters
    ----------
    calls, probes : int
        Map calls, and those among them that were made to measure.
    rounds : int
        Of merges, that of the probes included.
    """
    packed = calls * (groups + 1) + probes * (nodes - groups)
    return packed + rounds * merged_objects(reducers, nodes, width)
