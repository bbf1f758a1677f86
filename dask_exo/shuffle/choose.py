"""Which shuffle, and with which knobs: decisions from numbers alone.

The guide is Exoshuffle section 3.5.1.2: data that stays in memory is shuffled fastest by
`simple`, which copies nothing twice; data that does not is shuffled by `push`, which writes
few large sequential pieces where `simple` would read back its spilled outputs R times.
"""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_BATCH = 64 * 2**20  # bytes; a call beyond this has enough to do by any measure

MERGED = 4 * 2**20  # bytes; a merged block this large costs more by its bytes than as an object

LARGEST_ROUND = 0.3  # of the store; two rounds of `push` are alive at a time, and must fit


@dataclass(frozen=True)
class Choice:
    """An algorithm, its knobs, and the reason in words.

    Attributes
    ----------
    algorithm : str
    per_round : int
        Parts in a round of `push`.
    reason : str
    width : int
        Neighbouring reducers that share merged blocks: one, if those are large enough.
    """

    algorithm: str
    per_round: int
    reason: str
    width: int = 1


def batch_size(*, seconds: float, nbytes: int, remaining: int, slots: int, target: float) -> int:
    """How many tasks of one kind share a call.

    Parameters
    ----------
    seconds, nbytes : float, int
        Mean time and output of one such task.
    remaining : int
        Tasks still to start.
    slots : int
        Tasks that run side by side: each slot shall get two calls at least.
    target : float
        Seconds that a call shall last.

    Examples
    --------
    >>> batch_size(seconds=0.001, nbytes=1000, remaining=400, slots=2, target=0.05)
    50
    >>> batch_size(seconds=1.0, nbytes=1000, remaining=400, slots=2, target=0.05)
    1
    """
    by_time = int(target / max(seconds, 1e-6))
    by_bytes = LARGEST_BATCH // max(nbytes, 1)
    by_balance = -(-remaining // (2 * slots))
    return max(1, min(by_time, by_bytes, by_balance))


def choose(  # noqa: PLR0913  each is a number of its own
    *,
    nbytes: int,
    parts: int,
    slots: int,
    store: int,
    memory_fraction: float,
    round_fraction: float,
    wanted: str = "auto",
    reducers: int = 1,
) -> Choice:
    """Pick the algorithm of one shuffle, and the number of parts per round of `push`.

    Parameters
    ----------
    nbytes : int
        Estimated size of all map outputs.
    parts : int
        M.
    slots : int
        Tasks that the cluster runs side by side.
    store : int
        Bytes of object store of the whole cluster.
    memory_fraction : float
        Share of the store that `simple` may fill.
    round_fraction : float
        Share of the store that one round of `push` should fill; it may fill up to `LARGEST_ROUND`
        where slots would idle otherwise.
    wanted : {'auto', 'simple', 'push'}
        The user's word, if not ``'auto'``.
    reducers : int
        R.

    Examples
    --------
    >>> few = dict(parts=100, slots=2, memory_fraction=0.5, round_fraction=0.08)
    >>> choose(nbytes=10**9, store=4 * 10**9, **few).algorithm
    'simple'
    >>> choose(nbytes=10**10, store=2 * 10**9, **few).per_round
    2
    >>> choose(nbytes=10**10, store=2 * 10**9, reducers=10_000, **few).width
    33
    """
    part = max(nbytes // max(parts, 1), 1)
    wanted_round = int(store * round_fraction) // part
    largest_round = int(store * LARGEST_ROUND) // part
    per_round = max(1, min(parts, max(wanted_round, min(slots, largest_round))))
    # what neighbours share is restored whole: a call must be able to take all of it at once
    output = max(nbytes // max(reducers, 1), 1)
    of_a_round = max(per_round * part // max(reducers, 1), 1)
    width = max(1, min(MERGED // of_a_round, LARGEST_BATCH // 2 // output, reducers))
    fits = nbytes <= memory_fraction * store
    if wanted != "auto":
        algorithm, why = wanted, "exo.shuffle.algorithm says so"
    elif fits:
        algorithm = "simple"
        why = f"{_size(nbytes)} fit into {memory_fraction:.0%} of the {_size(store)} store"
    else:
        algorithm = "push"
        why = f"{_size(nbytes)} exceed {memory_fraction:.0%} of the {_size(store)} store"
    return Choice(algorithm, per_round, why, width)


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 1000 or unit == "TB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    raise AssertionError
