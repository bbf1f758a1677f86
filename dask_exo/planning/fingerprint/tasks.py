"""The fingerprint of a task: a number that is the same in the next program.

It is a hash of the closure of the task's function and arguments, of the data that strings in them
name, of the versions of libraries, and of the fingerprints of the tasks that it reads. Of keys,
only the numbers count: Dask's names may differ in the next program. Equal fingerprints mean equal
values, as long as functions are deterministic.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import platform
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from dask.utils import key_split

from dask_exo.dask_adapter import Alias, DataNode, GraphNode, Task, TaskRef
from dask_exo.execution.persisted import promised
from dask_exo.planning.fingerprint import code, objects
from dask_exo.planning.fingerprint.objects import ObjectNode, UnfollowableError, constant
from dask_exo.planning.fingerprint.stamps import Stamps
from dask_exo.planning.graph_passes import unfuse_all
from dask_exo.planning.normalize import Graph, Key

VERSIONS = ("dask-exo", "dask", "pandas", "numpy", "pyarrow")

# what Dask puts behind the name of a delayed value that is not pure
_RANDOM = re.compile(r"-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")


@dataclass(frozen=True, slots=True)
class NoFingerprint:
    """The reason why a task has no fingerprint."""

    reason: str


Fingerprint = str | NoFingerprint


def fingerprints(
    graph: Graph,
    keys: Iterable[Key],
    excluded: str | None = None,
    given: Mapping[Key, str] | None = None,
    writers: Set[Key] = frozenset(),
) -> dict[Key, Fingerprint]:
    """Compute the fingerprints of some tasks, and of all that they depend on.

    Files in the directory ``excluded``, that of the checkpoints, do not count, nor files that only
    ``writers`` name. Fingerprints that are ``given`` are not computed. A fingerprint has 32
    hexadecimal digits.
    """
    graph, content, without_files = unfuse_all(graph), _Content(Stamps(excluded)), _Content(None)
    known: dict[Key, Fingerprint] = dict(given or {})
    stack = list(keys)
    while stack:
        key = stack[-1]
        unknown = [source for source in graph[key].dependencies if source not in known]
        if unknown:
            stack.extend(unknown)
            continue
        stack.pop()
        if key not in known:
            counted = without_files if key in writers else content
            known[key] = _fingerprint(key, graph[key], known, counted)
    return known


def _fingerprint(
    key: Key, node: GraphNode, known: Mapping[Key, Fingerprint], content: _Content
) -> Fingerprint:
    for source in node.dependencies:
        if isinstance(reason := known[source], NoFingerprint):
            return reason
    sources = {source: str(known[source]) for source in node.dependencies}
    if isinstance(node, Alias):
        return sources[node.target]
    if (promise := promised(node)) is not None:
        unknown = NoFingerprint("it is made of a persisted value that has no fingerprint itself")
        return promise.fingerprint or unknown
    return _of_task(key, node, sources, content)


def _of_task(
    key: Key, node: GraphNode, sources: Mapping[Key, str], content: _Content
) -> Fingerprint:
    name = str(key[0]) if isinstance(key, tuple) else str(key)
    if _RANDOM.search(name):
        return NoFingerprint(
            f"{name!r} is a delayed value that is not pure: use dask.delayed(pure=True)"
        )
    numbers = [n for n in key[1:] if isinstance(n, int)] if isinstance(key, tuple) else []
    try:
        text = content.of(node, sources)
    except UnfollowableError as error:
        return NoFingerprint(f"what {key_split(key)!r} reads cannot be followed: {error}")
    except Exception as error:  # noqa: BLE001  inspecting an object may run its own code
        return NoFingerprint(f"what {key_split(key)!r} reads cannot be followed: {error!r}")
    whole = f"{_versions()}\n{numbers}\n{text}"
    return hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()[:32]


@functools.cache
def _versions() -> str:
    libraries = [f"{name} {metadata.version(name)}" for name in VERSIONS]
    return ", ".join([*libraries, f"python {platform.python_version()}"])


class _Content:
    """Texts that describe the tasks of one graph, and with ``stamps`` the data that they name."""

    def __init__(self, stamps: Stamps | None) -> None:
        self._closures, self._stamps = Closures(), stamps
        self._texts: dict[ObjectNode, str] = {}

    def of(self, node: GraphNode, sources: Mapping[Key, str]) -> str:
        """Return the text of a task; ``sources`` has the fingerprints of those that it reads."""
        names: list[str] = []
        read = ObjectNode()
        own_text = self._text(node, sources, names, read)
        stamps = self._stamped(names, read)
        strings = {*names, *read.value_strings, *read.literals}
        if "environ" in read.effects:
            stamps.update(_environment(strings))
        if self._stamps is not None and {"builds", "opens"} <= read.effects:
            stamps |= self._stamps.near(strings)
        return "\n".join([own_text, *sorted(stamps - {""})])

    def _text(
        self, value: Any, sources: Mapping[Key, str], names: list[str], read: ObjectNode
    ) -> str:
        kind = type(value)
        if kind is str:
            names.append(value)
            return repr(value)
        if kind in _CONSTANTS:
            return str(constant(value))
        if kind is TaskRef:
            return sources[value.key]
        if kind is Alias:
            return sources[value.target]
        if (components := _parts(value)) is not None:
            known_names = len(names)
            texts = [self._text(item, sources, names, read) for item in components]
            if kind in _CONTAINERS:
                _no_pages(names[known_names:])
            texts = sorted(texts) if kind in _SETS else texts
            return f"{kind.__name__}({', '.join(texts)})"
        closure = self._closures.of(value)
        read.read_with(closure)
        return self._whole(closure)

    def _whole(self, closure: ObjectNode) -> str:
        """Return the text of a closure and of the data that it names."""
        if closure not in self._texts:
            named = sorted(closure.value_strings | closure.literals)
            _no_pages(closure.literals if closure.systems else named)
            stamps = self._stamped(named, closure)
            self._texts[closure] = "\n".join([*closure.texts, *sorted(stamps)])
        return self._texts[closure]

    def _stamped(self, names: Iterable[str], read: ObjectNode) -> set[str]:
        """Return the stamps of data that strings name, each with its name."""
        if self._stamps is None:
            return set()
        stamps = ((name, self._stamps.of(name, read.systems)) for name in names)
        return {f"{name} {stamp}" for name, stamp in stamps if stamp}


def _no_pages(names: Iterable[str]) -> None:
    """Raise `UnfollowableError` for URLs that may be plain data: no request is sent for these."""
    for name in names:
        if name.startswith(("http://", "https://")):
            raise UnfollowableError(
                f"{name} may have changed: only pages that are arguments are checked"
            )


def _environment(names: Iterable[str]) -> Iterator[str]:
    """Yield environment variables that begin with one of these names."""
    prefixes = tuple({name.upper() for name in names if len(name) > 1})
    for name in sorted(os.environ):  # noqa: TID251  code reads it
        if name.upper().startswith(prefixes):
            yield f"${name}={os.environ[name]}"  # noqa: TID251


SHORT = 32  # items of a container up to which each has its own text
_CONSTANTS = frozenset({bool, int, float, complex, type(None)})
_SETS = frozenset({set, frozenset})
_CONTAINERS = frozenset({list, tuple, dict}) | _SETS


def _parts(value: Any) -> Iterable[Any] | None:
    """Return the components of a task or container."""
    if isinstance(value, Task):
        func = getattr(value, "klass", value.func)  # of containers in tasks
        keywords = [item for item in value.kwargs.items() for item in item]
        return (func, *value.args, len(value.args), *keywords)
    if isinstance(value, DataNode):
        return [value.value]
    if type(value) in _CONTAINERS and (len(value) <= SHORT or _reads_others(value)):
        return [item for item in value.items() for item in item] if type(value) is dict else value
    return None


def _reads_others(value: Any) -> bool:
    """Return whether a container holds references to other tasks."""
    if type(value) is dict:
        value = [*value, *value.values()]
    elif type(value) not in _CONTAINERS:
        return isinstance(value, (GraphNode, TaskRef))
    return any(map(_reads_others, value))


_KINDS = (*code.KINDS, *objects.KINDS)
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_UNORDERED = (set, frozenset, weakref.WeakSet, *_WEAK)


class Closures:
    """Closures of the objects of one graph, each computed once by a walk over live objects.

    The closure of an object is everything that determines what it does, as one node without inner
    objects, whose text is a digest.

    A function counts with its bytecode, its defaults, its closed-over values and every global that
    it reads: functions, classes, values, attributes of modules, through all modules that are not
    installed packages. Installed packages count by their version. A class counts with its bases and
    attributes, any other object with its class and its pickled state. Line numbers and comments do
    not count.

    Objects are numbered in the order of the walk, so that cycles end, and so that a digest is the
    same in the next program.
    """

    def __init__(self) -> None:
        # with the objects, which keep their identities
        self._known: dict[int, tuple[Any, ObjectNode | UnfollowableError]] = {}
        self._nodes: dict[int, tuple[Any, ObjectNode]] = {}
        self._active: set[int] = set()

    def of(self, value: Any) -> ObjectNode:
        """Return the closure of an object, or raise `UnfollowableError`."""
        if id(value) in self._active:
            return ObjectNode("cycle")
        closure: ObjectNode | UnfollowableError
        if id(value) in self._known:
            _, closure = self._known[id(value)]
        else:
            self._active.add(id(value))
            try:
                closure = self._walk(value)
            except UnfollowableError as error:
                closure = error.with_traceback(None)
            finally:
                self._active.discard(id(value))
            if not self._active:  # else it leaves out an object that contains it
                self._known[id(value)] = value, closure
        if isinstance(closure, UnfollowableError):
            raise copy.copy(closure)  # its traceback refers to the frames of all callers
        return closure

    def _walk(self, root: Any) -> ObjectNode:
        places = {id(root): 0}
        queue: list[tuple[Any, int, str]] = [(root, 0, "")]  # object, its reader, its label
        digest = hashlib.sha256()
        closure = ObjectNode()
        for value, _, _ in queue:
            place = places[id(value)]
            try:
                node = self._node(value)
            except UnfollowableError as error:
                raise UnfollowableError(f"{_path_to(queue, place)}{error}") from error
            numbers = []
            for label, inner in node.inner:
                if id(inner) not in places:
                    places[id(inner)] = len(queue)
                    queue.append((inner, place, label))
                numbers.append(places[id(inner)])
            digest.update(f"{node.texts} {numbers}\n".encode(errors="surrogatepass"))
            closure.read_with(node)
        closure.texts = [digest.hexdigest()[:32]]
        return closure

    def _node(self, value: Any) -> ObjectNode:
        if id(value) in self._nodes:
            return self._nodes[id(value)][1]
        node = self._look(value)
        if not isinstance(value, _UNORDERED):  # their text depends on the root
            self._nodes[id(value)] = value, node
        return node

    def _look(self, value: Any) -> ObjectNode:
        if constant(value) is not None:
            return ObjectNode().add("", value)
        for kinds, look in _KINDS:
            if isinstance(value, kinds) and (node := look(value)) is not None:
                return node
        if isinstance(value, _UNORDERED):
            return self._unordered(value.items() if isinstance(value, _WEAK) else value)
        return objects.instance(value)

    def _unordered(self, values: Any) -> ObjectNode:
        """Describe a container without order by the sorted digests of its items."""
        node, digests = ObjectNode(), []
        for value in list(values):
            if (text := constant(value)) is not None:
                digests.append(text)
                node.value_strings |= {value} if isinstance(value, str) else set()
                continue
            inner = self.of(value)
            digests += inner.texts
            node.read_with(inner)
        node.texts = ["set", *sorted(digests)]
        return node


def _path_to(queue: list[tuple[Any, int, str]], place: int) -> str:
    """Describe how the walk reached an object, for people."""
    labels: list[str] = []
    while place:
        _, place, label = queue[place]
        labels.append(label)
    path = " -> ".join(label for label in reversed(labels) if label)
    return f"{path}: " if path else ""
