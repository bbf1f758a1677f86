"""What happened, as events; observers count, print and draw, and never decide."""

from dask_exo.events import (
    Event,
    RunFinished,
    RunStarted,
    ShuffleChosen,
    ShuffleFinished,
    StageSeen,
    TasksFinished,
    emit,
    listening,
    observing,
)
from dask_exo.report.stats import Stats, recording

__all__ = [
    "Event",
    "RunFinished",
    "RunStarted",
    "ShuffleChosen",
    "ShuffleFinished",
    "StageSeen",
    "Stats",
    "TasksFinished",
    "emit",
    "listening",
    "observing",
    "recording",
]
