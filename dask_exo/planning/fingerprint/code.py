"""Functions, modules and classes: what they do, and what they read."""

from __future__ import annotations

import builtins
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pandas as pd

from dask_exo.planning.fingerprint.bytecode import CodeFacts, Import, analyze
from dask_exo.planning.fingerprint.node import ADDRESS, LONG, ObjectNode, UnfollowableError, maybe
from dask_exo.planning.fingerprint.packages import package

_DYNAMIC = (
    *(builtins.eval, builtins.exec, builtins.__import__, importlib.import_module),
    sys.modules,
)
_DYNAMIC_MODULES = ("importlib.resources", "pkgutil", "runpy", "pydoc")
_LOOKED_INTO = (os, sys, importlib)
"""Modules of Python with functions that read what a string says."""
_NOT_OF_A_CLASS = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__annotate__"),
    *("__static_attributes__", "__annotate_func__", "__annotations_cache__", "_abc_impl"),
    *("__abstractmethods__", "__dataclass_fields__", "__dataclass_params__"),
    "_value2member_map_",
}
"""Where it was written, and what follows from the rest."""
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)


def _function(value: types.FunctionType) -> ObjectNode:
    module = str(value.__globals__.get("__name__", value.__module__))
    code, known = analyze(value.__code__), package(module)
    node = ObjectNode("function", known)
    if known is not None:
        node.texts += [module, value.__qualname__]
    else:
        _runs(node, value, code)
    node.add("defaults", value.__defaults__).add("defaults", value.__kwdefaults__)
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        _variable(node, name, _content(cell), code)
    if known is None:
        node.add("annotations", maybe(value, "__annotations__"))
    for name in sorted(vars(value)):
        node.add(name, vars(value)[name])
    return node


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "not bound yet"


def _runs(node: ObjectNode, function: types.FunctionType, code: CodeFacts) -> None:
    """Add what a function of the user's own does, and what it reads."""
    node.texts.append(code.digest)
    node.does |= code.does
    space = function.__globals__
    file = str(space.get("__file__") or "")
    node.literals += [*code.strings, *_beside(file if "__file__" in code.reads else "", code)]
    for name in sorted(code.reads):
        if name in space:
            _variable(node, name, space[name], code)
        elif (value := vars(builtins).get(name)) is builtins.globals:
            node.add("globals()", sys.modules.get(str(space.get("__name__")), space))
        else:
            _refuse(name, value)
    for one in code.imports:
        _imported(node, one, code, str(space.get("__package__") or ""))
    for name in sorted(code.attributes | {one for one in code.strings if one.isidentifier()}):
        node.all(_extensions(name), name)
    _by_words(node, code, space)


def _by_words(node: ObjectNode, code: CodeFacts, space: dict[str, Any]) -> None:
    """Add what methods read without its name in the code."""
    if "__subclasses__" in code.attributes:
        raise UnfollowableError("__subclasses__(), which may be anywhere")
    if {"parse_args", "parse_known_args"} & code.attributes:
        node.add("sys.argv", sys.argv)
    if {"query", "eval", "sql", "execute"} & code.attributes:
        for name in sorted(set(_WORD.findall(" ".join(node.literals))) & space.keys()):
            node.add(name, space[name], literal=True)


_WORD = re.compile(r"[A-Za-z_]\w*")


def _beside(file: str, code: CodeFacts) -> Iterator[str]:
    """Files that code names by their place beside its own."""
    for above in list(Path(file).resolve().parents)[:3] if file else ():
        for one in code.strings:
            if one.strip("./") and len(one) <= LONG and os.path.exists(above / one):  # noqa: PTH110
                yield str(above / one)


def _refuse(name: str, value: Any) -> None:
    """Raise for what reads or runs whatever a string says."""
    module = str(maybe(value, "__module__") or "") if callable(value) else ""
    if any(value is one for one in _DYNAMIC) or module.startswith(_DYNAMIC_MODULES):
        raise UnfollowableError(f"{name}, by which anything can be read")


def _variable(node: ObjectNode, name: str, value: Any, code: CodeFacts) -> None:
    """Add a variable, or what code reads of the module that it is."""
    for way in sorted(code.reads.get(name, set()) | code.own.get(name, set()) or {()}):
        found, at = value, name
        for attribute in way:
            if not isinstance(found, types.ModuleType) or _closed(found):
                break
            found, at = maybe(found, attribute, "missing"), f"{at}.{attribute}"
        if isinstance(found, types.ModuleType) and way and _closed(found):
            given = maybe(found, way[-1])  # a package that code of the user's own has changed
            _refuse(f"{at}.{way[-1]}", given)
            if isinstance(given, (types.FunctionType, type)) and package(given.__module__) is None:
                node.add(f"{at}.{way[-1]}", given)
        _read(node, at, found)


def _read(node: ObjectNode, name: str, value: Any) -> None:
    if value is os.environ or value is os.getenv:  # noqa: TID251  it is code that reads them
        node.does.add("environ")
    elif any(value is one for one in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
        node.texts.append(name)
    else:
        _refuse(name, value)
        node.add(name, value, literal=True)


def _closed(module: types.ModuleType) -> bool:
    """Whether a module counts as a whole, by its version."""
    return package(module.__name__) is not None and module not in _LOOKED_INTO


def _imported(node: ObjectNode, one: Import, code: CodeFacts, parent: str) -> None:
    """Add what a function imports when it runs."""
    try:
        full = importlib.util.resolve_name(one.module, parent)
        known = package(full)
        if known is not None and full not in sys.modules:  # it may take long, and is known
            node.texts.append(f"{full} {known}")
            return
        module = importlib.import_module(full)
    except ModuleNotFoundError:
        node.texts.append(f"{one.module} is not there")
        return
    except (Exception, SystemExit) as error:
        raise UnfollowableError(f"import {one.module}: {error}") from error
    if not one.taken:
        bound = module if one.whole else sys.modules[full.partition(".")[0]]
        _variable(node, one.name, bound, code)
    for attribute in one.taken:
        sub = sys.modules.get(f"{full}.{attribute}", "missing")
        _read(node, f"{full}.{attribute}", maybe(module, attribute, sub))


def _extensions(name: str) -> Iterator[Any]:
    """Methods and accessors of a name that code of the user's own has given to pandas."""
    for kind in (pd.DataFrame, pd.Series, pd.Index):
        one = vars(kind).get(name)
        code = getattr(one, "_accessor", one)
        if isinstance(code, (type, types.FunctionType)) and package(code.__module__) is None:
            yield code


def _module(value: types.ModuleType) -> ObjectNode:
    known = package(value.__name__)
    node = ObjectNode("module", value.__name__, known, _compiled(value) if known is None else "")
    for name in sorted(vars(value)) if known is None else ():
        if name == "__getattr__" or not (name.startswith("__") and name.endswith("__")):
            node.add(name, vars(value)[name], literal=True)
    return node


def _compiled(module: Any) -> str:
    """The digest of a module that is compiled, and so has no code that could be looked at."""
    file = str(getattr(module, "__file__", None) or "")
    if not file.endswith(tuple(EXTENSION_SUFFIXES)):
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of all classes but some of those that C code makes


def _is_there(value: type) -> bool:
    """Whether a class is the one that its module has by its name, and not made by other code."""
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = maybe(found, name)
    return found is value or not value.__flags__ & _HEAP


def _class(value: type) -> ObjectNode:
    known = package(value.__module__)
    node = ObjectNode("class", value.__module__, value.__qualname__, known)
    if known is not None and _is_there(value):
        return node
    node.texts.append(_compiled(sys.modules.get(value.__module__)))
    node.add("metaclass", type(value)).all(value.__bases__, "base")
    node.add("annotations", maybe(value, "__annotations__"))
    for field in (maybe(value, "__dataclass_fields__") or {}).values():
        node.add(field.name, dict(field.metadata))
    for name in sorted(vars(value).keys() - _NOT_OF_A_CLASS):
        one = vars(value)[name]
        special = name.startswith("__") and name.endswith("__")
        if special and not callable(one) and not isinstance(one, _DESCRIPTORS):
            node.texts.append(f"{name}={ADDRESS.sub('', repr(one))}")
        else:
            node.add(f"{value.__qualname__}.{name}", one, literal=True)
    return node


KINDS: tuple[tuple[Any, Callable[[Any], ObjectNode | None]], ...] = (
    (types.FunctionType, _function),
    (type, _class),
    (types.ModuleType, _module),
)
