"""When to stop waiting: what waits is looked at after a while, and a stall becomes an error.

`diagnose` decides from what a cluster says of itself; `watchdog` waits and asks it.
"""

from dask_exo.stall.watchdog import Watchdog, bring

__all__ = ["Watchdog", "bring"]
