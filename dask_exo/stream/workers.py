"""Which workers start before there is anything for them to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dask_exo.stream.pieces import Stage

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


def places(stage: Stage, total: Mapping[str, float]) -> int:
    """Workers of a stage that a cluster has room for, and that may work side by side.

    Examples
    --------
    >>> places(Stage("model", {"GPU": 0.5}), {"CPU": 1.0, "GPU": 2.0})
    4
    """
    room = [int(total.get(name, 0) / need + 1e-9) for name, need in stage.needs.items() if need]
    most = [] if stage.limit is None else [stage.limit]
    return min([*room, *most], default=0)
