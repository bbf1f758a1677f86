"""What a function or class asks of the place where it runs, carried by a wrapper around it.

Dask's annotations do not reach dataframes, so the function itself has to say it: the scheduler
finds the wrapper in the tasks of a graph. Anywhere else a wrapper is just a function.
"""

from dask_exo.cluster.resources import ONE_CPU, ResourceRequest, combine_requests
from dask_exo.execution.requests.options import options
from dask_exo.execution.requests.wrapped_function import ResourceBoundFunction

__all__ = ["ONE_CPU", "ResourceBoundFunction", "ResourceRequest", "combine_requests", "options"]
