"""The shuffles of a run that are under way, side by side."""

from __future__ import annotations

import traceback
from collections.abc import Collection

from dask_exo.cluster.failpoints import reach
from dask_exo.cluster.futures import Futures, Ref
from dask_exo.config import Config
from dask_exo.execution.actor_maps import Mappers
from dask_exo.execution.actor_pool import Pools
from dask_exo.execution.observer import Watcher, inside
from dask_exo.execution.ready_queue import State
from dask_exo.execution.shuffle_stage import Ledger, Shuffling
from dask_exo.execution.values import Values


class Shufflings:
    """Starts shuffles, resumes those that have what they waited for, and takes what they make.

    Parameters
    ----------
    futures : Futures
    pools : Pools
    state : State
        Of the run.
    values : Values
    ledger : Ledger
    config : Config
    watcher : Watcher
    """

    def __init__(  # noqa: PLR0913, PLR0917  parts of one run
        self,
        futures: Futures,
        pools: Pools,
        state: State,
        values: Values,
        ledger: Ledger,
        config: Config,
        watcher: Watcher,
    ) -> None:
        self._futures, self._pools = futures, pools
        self._state, self._values = state, values
        self._ledger, self._config, self._watcher = ledger, config, watcher
        self._shuffling: list[Shuffling] = []

    @property
    def calls(self) -> int:
        """What they wait for, each for itself."""
        return sum(len(s.waiting.refs) for s in self._shuffling)

    @property
    def refs(self) -> set[Ref]:
        """What they wait for."""
        return {ref for s in self._shuffling for ref in s.waiting.refs}

    @property
    def resumed(self) -> list[Shuffling]:
        """Those that need not wait any more."""
        now = self._futures.now if self._shuffling else 0.0
        return [s for s in self._shuffling if s.waiting.over(now)]

    @property
    def timeouts(self) -> list[float | None]:
        """Seconds after which each of them goes on in any case."""
        return [s.waiting.timeout(self._futures.now) for s in self._shuffling]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._shuffling)

    def begin(self) -> None:
        """Start those whose inputs exist."""
        while self._state.stages:
            stage = self._state.stages.pop(0)
            self._watcher.started(inside(stage))
            mappers = None
            if stage.asked.pool is not None:
                mappers = Mappers(self._futures, self._pools, stage.asked.pool)
            started = Shuffling.start(
                stage, self._futures, self._values, self._ledger, self._config, mappers=mappers
            )
            self._shuffling.append(started)

    def advance(self) -> None:
        """Resume each that has what it waited for."""
        for shuffling in self.resumed:
            stage = shuffling.stage
            try:
                shuffled = shuffling.advance(self._futures.now)
            except Exception as error:  # noqa: BLE001  raised there unless somebody takes it
                self._remove(shuffling)
                self._fail(shuffling, error)
                continue
            if shuffled is not None:
                reach("between", stage.name)
                self._remove(shuffling)
                self._ledger.sent(stage, shuffled.tally)
                self._state.left -= 1
                self._watcher.finished(stage.key, inside(stage), None)
                for key, pile in shuffling.outputs(shuffled):
                    self._state.have(key, pile)

    def finished(self, refs: Collection[Ref]) -> None:
        """Take note of what is done."""
        for shuffling in self._shuffling:
            shuffling.waiting.finished(refs)
            if shuffling.mappers is not None:
                shuffling.mappers.settle()

    def name(self, ref: Ref) -> str:
        """Which of them waits for a task."""
        names = (f"shuffle {s.stage.name}" for s in self._shuffling if ref in s.waiting.refs)
        return next(names, "")

    def stop(self) -> None:
        """End all of them."""
        for shuffling in self._shuffling:
            shuffling.steps.close()
        self._shuffling.clear()

    def _remove(self, shuffling: Shuffling) -> None:
        self._shuffling.remove(shuffling)
        if shuffling.mappers is not None:
            shuffling.mappers.close()

    def _fail(self, shuffling: Shuffling, error: Exception) -> None:
        """One has ended with an exception."""
        error.add_note(f"dask_exo: in shuffle {shuffling.stage.name} ({shuffling.stage.key[0]})")
        traceback.clear_frames(error.__traceback__)  # whoever keeps it would keep the blocks
        self._futures.cancel(shuffling.waiting.refs)
        self._state.left -= 1
        for part in shuffling.stage.parts:
            self._state.excuse(part)
        for column in shuffling.stage.columns:
            self._state.lose(column, error)
