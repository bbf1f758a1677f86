"""Reports of runs: observers of events, which count, print and draw, and never decide."""

from dask_exo.events import observing
from dask_exo.report.collector import Collector, recording

__all__ = ["Collector", "observing", "recording"]
