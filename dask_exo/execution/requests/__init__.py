"""Resource requests of functions and classes, carried by a wrapper around them.

Dask's annotations do not reach dataframes, so the function itself carries its request: the
scheduler finds the wrapper in the tasks of a graph. Elsewhere a wrapper is a plain function.
"""

from dask_exo.cluster.resources import ONE_CPU, ResourceRequest, combine_requests
from dask_exo.execution.requests.options import options
from dask_exo.execution.requests.wrapped_function import ResourceBoundFunction

__all__ = ["ONE_CPU", "ResourceBoundFunction", "ResourceRequest", "combine_requests", "options"]
