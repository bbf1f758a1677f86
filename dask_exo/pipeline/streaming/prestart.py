"""Which workers start before there is anything for them to do, and for how many there is room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask_exo.cluster.resources import Amounts

Kind = frozenset[tuple[str, float]]
"""What a worker has; workers of one kind run the tasks of all stages that ask for it."""


def early(i: int, kinds: Sequence[Kind], alone: Sequence[bool]) -> bool:
    """Whether workers of stage ``i`` may start early: they take nothing that others could use.

    Parameters
    ----------
    i : int
    kinds : sequence of Kind
        (S,) what each stage asks for.
    alone : sequence of bool
        (S,) whether the tasks of a stage have no workers.

    Examples
    --------
    >>> cpu, gpu = frozenset({("CPU", 1.0)}), frozenset({("GPU", 1.0)})
    >>> [early(i, [cpu, gpu, cpu, gpu], [True, False, False, False]) for i in range(4)]
    [False, True, False, False]
    """
    same = [kind == kinds[i] and not one for kind, one in zip(kinds, alone, strict=True)]
    names = {name for name, _ in kinds[i]}
    taken = {name for kind, one in zip(kinds, same, strict=True) if not one for name, _ in kind}
    return same[i] and i == same.index(True) and not names & taken


def places(needs: Amounts, limit: int | None, total: Mapping[str, float]) -> int:
    """Workers that a cluster has room for, and that may work side by side.

    A share of a GPU is one of a single GPU.

    Parameters
    ----------
    needs : mapping
        Of each.
    limit : int, optional
        How many there may be.
    total : mapping
        Of the cluster.

    Examples
    --------
    >>> places({"GPU": 0.5}, None, {"CPU": 1.0, "GPU": 2.0})
    4
    >>> places({"GPU": 0.4}, None, {"CPU": 1.0, "GPU": 2.0})
    4
    """
    room = [_places(name, need, total.get(name, 0)) for name, need in needs.items() if need]
    most = [] if limit is None else [limit]
    return min([*room, *most], default=0)


def _places(name: str, need: float, total: float) -> int:
    if name != "GPU" or need >= 1:
        return int(total / need + 1e-9)
    whole, rest = divmod(total, 1.0)
    return int(whole) * int(1 / need + 1e-9) + int(rest / need + 1e-9)
