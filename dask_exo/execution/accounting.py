"""Account of what tasks return: rows on both sides of a shuffle, and digests of outputs.

Where a node is lost with a value that some tasks have read, the cluster recomputes the value for
the others. If the second value differs, no run without a fault could have the result: it must not
be returned without a word.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable

from dask_exo import events
from dask_exo.cluster.task_status import OutputDigest
from dask_exo.errors import IntegrityError, NonDeterminismError
from dask_exo.execution import messages
from dask_exo.execution.admission import write_seconds
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Stage
from dask_exo.shuffle.spec import Tally, verify


class OutputVersions:
    """Digests of the first outputs of calls, to compare recomputed ones with.

    Parameters
    ----------
    repeats : callable
        Returns the digests of calls that ran again; see `dask_exo.cluster.futures.Futures.repeats`.
    mode : str
        Reaction to a different output: ``"error"``, ``"warn"`` or ``"ignore"``.

    Examples
    --------
    >>> versions = OutputVersions(lambda: [OutputDigest("call-1", "read", 3, digest=230)], "error")
    >>> versions.record(OutputDigest("call-2", "read", 3, digest=11))
    >>> versions.compare()
    >>> versions.record(OutputDigest("call-1", "read", 3, digest=11))
    >>> versions.compare()
    Traceback (most recent call last):
    ...
    dask_exo.errors.NonDeterminismError: a task 'read' ran again, ...
    """

    def __init__(self, repeats: Callable[[], Iterable[OutputDigest]], mode: str) -> None:
        self._repeats, self._mode = repeats, mode
        self._first: dict[str, int] = {}

    def record(self, made: OutputDigest | None) -> None:
        """Record an output that tasks may read from now on."""
        if made is not None and made.digest is not None:
            self._first.setdefault(made.call, made.digest)

    def compare(self) -> None:
        """Compare the outputs of calls that ran again with the first ones.

        Raises
        ------
        NonDeterminismError
            An output differs, and the mode is ``"error"``.
        """
        if self._mode == "ignore" or not self._first:
            return
        for again in self._repeats():
            if again.digest not in (None, self._first.get(again.call, again.digest)):
                text = _said(again)
                if self._mode == "error":
                    raise NonDeterminismError(text)
                warnings.warn(text, stacklevel=2)


class ShuffleAccounting:
    """Account of the rows that shuffles sent and tasks assembled, and of the seconds it took.

    Parameters
    ----------
    versions : OutputVersions
        Digests of the outputs of all tasks of the computation.
    """

    def __init__(self, versions: OutputVersions) -> None:
        self.versions = versions
        self._sent: dict[str, Tally] = {}
        self._arrived: dict[Key, Tally] = defaultdict(Tally)
        self._stages: dict[str, Stage] = {}
        self._exempt: set[Key] = set()
        self._work, self._spent = 0.0, 0.0

    def add_sent(self, stage: Stage, tally: Tally) -> None:
        """Record the rows that the maps of a shuffle sent."""
        name = f"shuffle {stage.name} ({stage.key[0]})"
        self._sent[name], self._stages[name] = tally, stage

    def add_assembled(self, arrived: Iterable[messages.AssembledTally]) -> None:
        """Add the rows that a task assembled."""
        for one in arrived:
            self._arrived[one.stage] += one.tally

    def add_work(self, seconds: float, spent: float = 0.0) -> None:
        """Add the seconds of tasks, of which ``spent`` went into checkpoints."""
        self._work += seconds
        self._spent += spent

    def should_checkpoint(self, stage: Stage, nbytes: int) -> bool:
        """Decide whether to checkpoint the outputs of a shuffle; if so, count its cost as spent."""
        if stage.keeping is None:
            return False
        kept = stage.keeping.worth(nbytes, self._work, self._spent)
        self._spent += write_seconds(nbytes) if kept else 0.0
        events.emit(events.ShuffleKept(stage.name, kept, nbytes, self._work))
        return kept

    def exempt(self, stage: Key) -> None:
        """Exclude a shuffle from `verify`: a task failed that would have assembled its outputs."""
        self._exempt.add(stage)

    def verify(self) -> None:
        """Compare both sides of every shuffle; raise `IntegrityError` where they differ."""
        for name, sent in self._sent.items():
            stage = self._stages[name]
            if stage.key in self._exempt:
                continue
            try:
                verify(name, sent, self._arrived[stage.key])
            except IntegrityError:
                if stage.keeping is not None:
                    stage.keeping.forget()  # no later program may read it
                raise


def _said(again: OutputDigest) -> str:
    return (
        f"a task {again.name!r} ran again, since a worker or a node was lost, and has made "
        f"something else than before: tasks may have read both versions of its {again.parts} "
        f"partition(s). "
        f"Let it depend on its arguments only: no clock, no random numbers without a seed, no "
        f"outside state. If the difference does no harm, set exo.fault.nondeterminism to 'warn' or "
        f"'ignore'"
    )
