"""What a task of a graph will give, as a number that is the same in the next program.

The fingerprint of a task is a hash of its function and arguments as Dask's ``tokenize`` sees them,
of the versions of what computes, of the code and the files that it reads (`dask_exo.graph.inputs`),
and of the fingerprints of the tasks before it. Keys are left out but for the numbers in them:
Dask's names are not all the same in the next program. Equal fingerprints mean equal values, as far
as functions return the same for the same arguments.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata

from dask.tokenize import TokenizationError
from dask.utils import key_split

from dask_exo.dask_adapter import Alias, GraphNode
from dask_exo.graph.inputs import Inputs
from dask_exo.graph.normalize import Graph, Key
from dask_exo.graph.passes.unfuse import taken_apart
from dask_exo.graph.promise import promised

VERSIONS = ("dask-exo", "dask", "pandas", "numpy", "pyarrow")

# what Dask puts behind the name of a delayed value that is not pure
_RANDOM = re.compile(r"-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A task that has no fingerprint, and why."""

    reason: str


Fingerprint = str | Unknown


def fingerprints(graph: Graph, keys: Iterable[Key]) -> dict[Key, Fingerprint]:
    """Fingerprints of some tasks, and of all before them.

    Parameters
    ----------
    graph : dict
        Normalized; with all that ``keys`` need.
    keys : iterable of Key

    Returns
    -------
    dict
        32 hexadecimal digits for each, or why there are none.
    """
    graph, inputs = taken_apart(graph), Inputs()
    found: dict[Key, Fingerprint] = {}
    stack = list(keys)
    while stack:
        key = stack[-1]
        missing = [below for below in graph[key].dependencies if below not in found]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if key not in found:
            found[key] = _fingerprint(key, graph[key], found, inputs)
    return found


def _fingerprint(
    key: Key, node: GraphNode, known: Mapping[Key, Fingerprint], inputs: Inputs
) -> Fingerprint:
    below: dict[Key, str] = {}
    for source in node.dependencies:
        one = known[source]
        if isinstance(one, Unknown):
            return one
        below[source] = one
    if isinstance(node, Alias):
        return below[node.target]
    if (promise := promised(node)) is not None:
        unknown = Unknown("it is made of a persisted value that has no fingerprint itself")
        return promise.fingerprint or unknown
    name = str(key[0]) if isinstance(key, tuple) else str(key)
    if _RANDOM.search(name):
        return Unknown(f"{name!r} is a delayed value that is not pure: use dask.delayed(pure=True)")
    numbers = [n for n in key[1:] if isinstance(n, int)] if isinstance(key, tuple) else []
    try:
        content = inputs.text(node, below)
    except TokenizationError as error:
        return Unknown(f"Dask has no deterministic token for {name!r}: {str(error)[:200]}")
    whole = f"{_versions()}\n{key_split(key)} {numbers}\n{content}"
    return hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:32]


@functools.cache
def _versions() -> str:
    found = [f"{name} {metadata.version(name)}" for name in VERSIONS]
    return ", ".join([*found, f"python {platform.python_version()}"])
