"""The closure of code: everything that determines what a function does, as a digest.

A walk over live objects. A function counts with its bytecode, its defaults, what it has closed over
and every global that it reads: functions, classes, values, attributes of modules, through all
modules that are not installed packages. Installed packages count by their version. A class counts
with its bases and attributes, any other object with its class and its pickled state. Line numbers
and comments do not count.

Objects are numbered in the order of the walk, so that cycles end, and so that a digest is the same
in the next program.
"""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import dataclass
from typing import Any

from fsspec import AbstractFileSystem

from dask_exo.planning.fingerprint import code, objects
from dask_exo.planning.fingerprint.node import ObjectNode, UnfollowableError, constant

_KINDS = (*code.KINDS, *objects.KINDS)
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_UNORDERED = (set, frozenset, weakref.WeakSet, *_WEAK)


@dataclass(frozen=True, slots=True)
class Closure:
    """Everything that determines what an object does.

    Attributes
    ----------
    digest : str
        Equal where all of it is equal.
    given : frozenset of str
        Strings among its values: any may be the name of a file.
    literals : frozenset of str
        Strings in its code.
    systems : tuple of AbstractFileSystem
        File systems in it.
    does : frozenset of str
        See `ObjectNode`.
    """

    digest: str
    given: frozenset[str] = frozenset()
    literals: frozenset[str] = frozenset()
    systems: tuple[AbstractFileSystem, ...] = ()
    does: frozenset[str] = frozenset()


class Closures:
    """Closures of the objects of one graph, each walked once."""

    def __init__(self) -> None:
        # with the objects, which keep their identities
        self._known: dict[int, tuple[Any, Closure | UnfollowableError]] = {}
        self._nodes: dict[int, tuple[Any, ObjectNode]] = {}
        self._active: set[int] = set()

    def of(self, value: Any) -> Closure:
        """Return the closure of an object.

        Raises
        ------
        UnfollowableError
            Something in it is neither code nor a value that can be compared.
        """
        if id(value) in self._active:
            return Closure("cycle")
        if id(value) not in self._known:
            inside = bool(self._active)
            self._active.add(id(value))
            try:
                found: Closure | UnfollowableError = self._walk(value)
            except UnfollowableError as error:
                found = error
            finally:
                self._active.discard(id(value))
            if inside:  # it leaves out the object that contains it, which is only right here
                return _given(found)
            self._known[id(value)] = value, found
        return _given(self._known[id(value)][1])

    def _walk(self, root: Any) -> Closure:
        places = {id(root): 0}
        queue: list[tuple[Any, int, str]] = [(root, 0, "")]  # object, its reader, its label
        whole = hashlib.sha256()
        given: set[str] = set()
        literals: set[str] = set()
        systems: list[AbstractFileSystem] = []
        does: set[str] = set()
        for value, _, _ in queue:
            place = places[id(value)]
            try:
                node = self._node(value)
            except UnfollowableError as error:
                raise UnfollowableError(f"{_way(queue, place)}{error}") from error
            numbers = []
            for label, inner in node.inner:
                if id(inner) not in places:
                    places[id(inner)] = len(queue)
                    queue.append((inner, place, label))
                numbers.append(places[id(inner)])
            whole.update(f"{node.texts} {numbers}\n".encode(errors="surrogatepass"))
            given.update(node.given)
            literals.update(node.literals)
            systems += node.systems
            does |= node.does
        names = frozenset(given), frozenset(literals)
        return Closure(whole.hexdigest()[:32], *names, tuple(systems), frozenset(does))

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
                node.given += [value] if isinstance(value, str) else []
                continue
            inner = self.of(value)
            digests.append(inner.digest)
            node.given += inner.given
            node.literals += inner.literals
            node.systems += inner.systems
            node.does |= inner.does
        node.texts = ["set", *sorted(digests)]
        return node


def _given(found: Closure | UnfollowableError) -> Closure:
    if isinstance(found, UnfollowableError):
        raise found
    return found


def _way(queue: list[tuple[Any, int, str]], place: int) -> str:
    """Describe how the walk reached an object, for people."""
    labels: list[str] = []
    while place:
        _, place, label = queue[place]
        labels.append(label)
    way = " -> ".join(label for label in reversed(labels) if label)
    return f"{way}: " if way else ""
