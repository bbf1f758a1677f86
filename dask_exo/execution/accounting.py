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
from dask_exo.execution.checkpoints.cost import write_seconds
from dask_exo.execution.tasks import messages
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Stage
from dask_exo.shuffle.integrity import Tally, verify


class OutputVersions:
    """The first version of what calls have made.

    Parameters
    ----------
    repeats : callable
        What calls have made that ran again; see `dask_exo.cluster.futures.Futures.repeats`.
    mode : str
        What happens where it is something else: ``"error"``, ``"warn"`` or ``"ignore"``.

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
        """A call has made something that tasks may read from now on."""
        if made is not None and made.digest is not None:
            self._first.setdefault(made.call, made.digest)

    def compare(self) -> None:
        """Ask what ran again, and compare.

        Raises
        ------
        NonDeterminismError
            It has made something else, and this is to be an error.
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
    """What each shuffle sent, what the tasks after it have assembled, and what all that took.

    Parameters
    ----------
    versions : OutputVersions
        Of what the maps, and other tasks of the computation, have made.
    """

    def __init__(self, versions: OutputVersions) -> None:
        self.versions = versions
        self._sent: dict[str, Tally] = {}
        self._arrived: dict[Key, Tally] = defaultdict(Tally)
        self._stages: dict[str, Stage] = {}
        self._exempt: set[Key] = set()
        self._work, self._spent = 0.0, 0.0

    def add_sent(self, stage: Stage, tally: Tally) -> None:
        """Note what the maps of a shuffle have sent."""
        name = f"shuffle {stage.name} ({stage.key[0]})"
        self._sent[name], self._stages[name] = tally, stage

    def add_assembled(self, arrived: Iterable[messages.AssembledTally]) -> None:
        """Add what a task has assembled."""
        for one in arrived:
            self._arrived[one.stage] += one.tally

    def add_work(self, seconds: float, spent: float = 0.0) -> None:
        """Add what tasks took, and what of it went into keeping values."""
        self._work += seconds
        self._spent += spent

    def should_checkpoint(self, stage: Stage, nbytes: int) -> bool:
        """Whether the outputs of a shuffle are worth keeping; from then on that is spent."""
        if stage.keeping is None:
            return False
        kept = stage.keeping.worth(nbytes, self._work, self._spent)
        self._spent += write_seconds(nbytes) if kept else 0.0
        events.emit(events.ShuffleKept(stage.name, kept, nbytes, self._work))
        return kept

    def exempt(self, stage: Key) -> None:
        """Some outputs of a shuffle will not be assembled, since a task failed."""
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
                    stage.keeping.forget()  # another program must not take it for right
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
