"""What a function or class asks of the place where it runs, carried by a wrapper around it.

Dask's annotations do not reach dataframes, so the function itself has to say it: the scheduler
finds the wrapper in the tasks of a graph. Anywhere else a wrapper is just a function.
"""

from dask_exo.asks.asking import Asking
from dask_exo.asks.decorator import options
from dask_exo.asks.request import ONE_CPU, Asks, together

__all__ = ["ONE_CPU", "Asking", "Asks", "options", "together"]
