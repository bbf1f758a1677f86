"""Functions, modules and classes, described by their code and by the values that they read."""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import islice, takewhile
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pandas as pd

from dask_exo.planning.fingerprint.objects import (
    ADDRESS,
    LONG,
    ObjectNode,
    UnfollowableError,
    maybe,
    package,
)

_DYNAMIC = (
    *(builtins.eval, builtins.exec, builtins.__import__, importlib.import_module),
    sys.modules,
)
_DYNAMIC_MODULES = ("importlib.resources", "pkgutil", "runpy", "pydoc")
_LOOKED_INTO = (os, sys, importlib)
"""Standard modules with functions that read what a string names."""
_UNCOUNTED_ATTRIBUTES = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__annotate__"),
    *("__static_attributes__", "__annotate_func__", "__annotations_cache__", "_abc_impl"),
    *("__abstractmethods__", "__dataclass_fields__", "__dataclass_params__"),
    "_value2member_map_",
}
"""Attributes that say where a class was written, or that follow from others."""
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)


def _function(value: types.FunctionType) -> ObjectNode:
    module = str(value.__globals__.get("__name__", value.__module__))
    code, version = analyze(value.__code__), package(module)
    node = ObjectNode("function", version)
    if version is not None:
        node.texts += [module, value.__qualname__]
    else:
        _add_code(node, value, code)
    node.add("defaults", value.__defaults__).add("defaults", value.__kwdefaults__)
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        _variable(node, name, _content(cell), code)
    if version is None:
        node.add("annotations", maybe(value, "__annotations__"))
    for name in sorted(vars(value)):
        node.add(name, vars(value)[name])
    return node


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "not bound yet"


def _add_code(node: ObjectNode, function: types.FunctionType, code: CodeFacts) -> None:
    """Add the code of a user function and the values that it reads."""
    node.texts.append(code.digest)
    node.effects |= code.effects
    space = function.__globals__
    file = str(space.get("__file__") or "")
    node.literals.update(code.strings)
    if "__file__" in code.reads and file:
        node.literals.update(_files_next_to(file, code.strings))
    for name in sorted(code.reads):
        if name in space:
            _variable(node, name, space[name], code)
        elif (value := vars(builtins).get(name)) is builtins.globals:
            node.add("globals()", sys.modules.get(str(space.get("__name__")), space))
        else:
            _refuse_dynamic(name, value)
    for statement in code.imports:
        _imported(node, statement, code, str(space.get("__package__") or ""))
    for name in sorted(code.attributes | {s for s in code.strings if s.isidentifier()}):
        node.all(_extensions(name), name)
    _add_named_in_strings(node, code, space)


def _add_named_in_strings(node: ObjectNode, code: CodeFacts, space: dict[str, Any]) -> None:
    """Add values that methods read by names inside strings."""
    if "__subclasses__" in code.attributes:
        raise UnfollowableError("__subclasses__(), which may be in any module")
    if {"parse_args", "parse_known_args"} & code.attributes:
        node.add("sys.argv", sys.argv)
    if {"query", "eval", "sql", "execute"} & code.attributes:
        for name in sorted(set(_WORD.findall(" ".join(node.literals))) & space.keys()):
            node.add(name, space[name], literal=True)


_WORD = re.compile(r"[A-Za-z_]\w*")


def _files_next_to(file: str, names: list[str]) -> Iterator[str]:
    """Yield files that code names relative to its own file."""
    for folder in list(Path(file).resolve().parents)[:3]:
        for name in names:
            if name.strip("./") and len(name) <= LONG and os.path.exists(folder / name):  # noqa: PTH110
                yield str(folder / name)


def _refuse_dynamic(name: str, value: Any) -> None:
    """Raise for functions that read or run whatever a string names."""
    module = str(maybe(value, "__module__") or "") if callable(value) else ""
    if any(value is dynamic for dynamic in _DYNAMIC) or module.startswith(_DYNAMIC_MODULES):
        raise UnfollowableError(f"{name}, which can read anything")


def _variable(node: ObjectNode, name: str, value: Any, code: CodeFacts) -> None:
    """Add a variable or, if it is a module, the attributes that code reads of it."""
    for path in sorted(code.reads.get(name, set()) | code.local_reads.get(name, set()) or {()}):
        read, label = value, name
        for attribute in path:
            if not isinstance(read, types.ModuleType) or _counts_by_version(read):
                break
            read, label = maybe(read, attribute, "missing"), f"{label}.{attribute}"
        if isinstance(read, types.ModuleType) and path and _counts_by_version(read):
            member = maybe(read, path[-1])  # an installed package that user code has patched
            _refuse_dynamic(f"{label}.{path[-1]}", member)
            if (
                isinstance(member, (types.FunctionType, type))
                and package(member.__module__) is None
            ):
                node.add(f"{label}.{path[-1]}", member)
        _read(node, label, read)


def _read(node: ObjectNode, name: str, value: Any) -> None:
    if value is os.environ or value is os.getenv:  # noqa: TID251  it is code that reads them
        node.effects.add("environ")
    elif any(value is out for out in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
        node.texts.append(name)
    else:
        _refuse_dynamic(name, value)
        node.add(name, value, literal=True)


def _counts_by_version(module: types.ModuleType) -> bool:
    return package(module.__name__) is not None and module not in _LOOKED_INTO


def _imported(node: ObjectNode, statement: Import, code: CodeFacts, parent: str) -> None:
    """Add the modules and names that a function imports when it runs."""
    try:
        module_name = importlib.util.resolve_name(statement.module, parent)
        version = package(module_name)
        if version is not None and module_name not in sys.modules:  # it may take long, and is known
            node.texts.append(f"{module_name} {version}")
            return
        module = importlib.import_module(module_name)
    except ModuleNotFoundError:
        node.texts.append(f"{statement.module} is not there")
        return
    except (Exception, SystemExit) as error:
        raise UnfollowableError(f"import {statement.module}: {error}") from error
    if not statement.names:
        read_module = module if statement.whole else sys.modules[module_name.partition(".")[0]]
        _variable(node, statement.name, read_module, code)
    for attribute in statement.names:
        sub = sys.modules.get(f"{module_name}.{attribute}", "missing")
        _read(node, f"{module_name}.{attribute}", maybe(module, attribute, sub))


def _extensions(name: str) -> Iterator[Any]:
    """Yield methods and accessors that user code has added to pandas under a name."""
    for kind in (pd.DataFrame, pd.Series, pd.Index):
        member = vars(kind).get(name)
        code = getattr(member, "_accessor", member)
        if isinstance(code, (type, types.FunctionType)) and package(code.__module__) is None:
            yield code


def _module(value: types.ModuleType) -> ObjectNode:
    version = package(value.__name__)
    node = ObjectNode("module", value.__name__, version)
    if version is not None:
        return node
    node.texts.append(_compiled(value))
    for name in sorted(vars(value)):
        if name == "__getattr__" or not (name.startswith("__") and name.endswith("__")):
            node.add(name, vars(value)[name], literal=True)
    return node


def _compiled(module: Any) -> str:
    """Return the digest of a compiled module's file; empty for other modules."""
    file = str(getattr(module, "__file__", None) or "")
    if not file.endswith(tuple(EXTENSION_SUFFIXES)):
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of all classes but some of those that C code makes


def _is_importable(value: type) -> bool:
    """Return whether a class is the one that its module has under its name."""
    named: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        named = maybe(named, name)
    return named is value or not value.__flags__ & _HEAP


def _class(value: type) -> ObjectNode:
    version = package(value.__module__)
    node = ObjectNode("class", value.__module__, value.__qualname__, version)
    if version is not None and _is_importable(value):
        return node
    node.texts.append(_compiled(sys.modules.get(value.__module__)))
    node.add("metaclass", type(value)).all(value.__bases__, "base")
    node.add("annotations", maybe(value, "__annotations__"))
    for member in (maybe(value, "__dataclass_fields__") or {}).values():
        node.add(member.name, dict(member.metadata))
    for name in sorted(vars(value).keys() - _UNCOUNTED_ATTRIBUTES):
        member = vars(value)[name]
        special = name.startswith("__") and name.endswith("__")
        if special and not callable(member) and not isinstance(member, _DESCRIPTORS):
            node.texts.append(f"{name}={ADDRESS.sub('', repr(member))}")
        else:
            node.add(f"{value.__qualname__}.{name}", member, literal=True)
    return node


KINDS: tuple[tuple[Any, Callable[[Any], ObjectNode | None]], ...] = (
    (types.FunctionType, _function),
    (type, _class),
    (types.ModuleType, _module),
)


AttributePath = tuple[str, ...]
"""Chain of attributes, as in ``module.sub.name``."""

_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"})
_NAMES |= {"LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF"}
_BUILDS = {"BUILD_STRING", "format", "join", "joinpath", "with_suffix", "with_name", "with_stem"}
_BUILDS |= {"parent", "dirname", "splitext", "replace", "strftime", "substitute"}
_OPENS = re.compile(
    "open|read|load|scan|imread|i?glob|memmap|fromfile|genfromtxt|parse|list_?dir|scandir|iterdir"
    "|exists|is_|stat|check_output|run|sql|connect|File|Dataset|ZipFile|TarFile"
)
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


class Import(NamedTuple):
    """An import statement: a module, with a dot for each level, and the imported ``names``.

    Without these, ``name`` is the variable that gets the module, or the first of its parents if
    not ``whole``.
    """

    module: str
    names: AttributePath = ()
    name: str = ""
    whole: bool = False


@dataclass
class CodeFacts:
    """Facts about the code of a function and of the functions inside it.

    ``reads`` (of global and closed-over variables) and ``local_reads`` (of local ones) have the
    attributes that are read of each variable; ``()`` is the variable itself. See `ObjectNode` for
    ``effects``.
    """

    digest: str = ""  # of everything except file names and line numbers
    reads: dict[str, set[AttributePath]] = field(default_factory=lambda: defaultdict(set))
    local_reads: dict[str, set[AttributePath]] = field(default_factory=lambda: defaultdict(set))
    imports: list[Import] = field(default_factory=list)
    attributes: set[str] = field(default_factory=set)  # all that it reads
    strings: list[str] = field(default_factory=list)  # its constants
    effects: set[str] = field(default_factory=set)


@lru_cache(10_000)
def analyze(code: CodeType) -> CodeFacts:
    """Return facts about some code.

    Examples
    --------
    >>> facts = analyze((lambda d: helper.clean(d) + helper.LIMIT + len(d)).__code__)
    >>> {name: sorted(paths) for name, paths in facts.reads.items()}
    {'helper': [('LIMIT',), ('clean',)], 'len': [()]}
    """
    digest, facts = hashlib.sha256(), CodeFacts()
    for inner in _nested(code):
        digest.update(_text(inner).encode(errors="surrogatepass"))
        facts.strings += [const for const in _constants(inner.co_consts) if isinstance(const, str)]
        facts.attributes.update(inner.co_names)
        instructions = list(dis.get_instructions(inner))
        for i, step in enumerate(instructions):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            if step.opname in _NAMES:
                facts.reads[str(step.argval)].add(_attribute_path(instructions, i + 1))
            elif step.opname.startswith("LOAD_FAST"):  # of several at once, one is followed
                facts.local_reads[str(names[-1])].add(_attribute_path(instructions, i + 1))
                for name in names[:-1]:
                    facts.local_reads[str(name)].add(())
            elif step.opname == "IMPORT_NAME":
                facts.imports.append(_import(instructions, i))
            if _builds_strings(step):
                facts.effects.add("builds")
    if any(_OPENS.match(name) for name in (*facts.attributes, *facts.reads)):
        facts.effects.add("opens")
    facts.digest = digest.hexdigest()[:32]
    facts.strings = list(dict.fromkeys(facts.strings))
    return facts


def _builds_strings(step: dis.Instruction) -> bool:
    adds = step.opname == "BINARY_OP" and step.argrepr in ("+", "%", "+=", "%=")
    return adds or not _BUILDS.isdisjoint((step.opname, step.argval))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _text(code: CodeType) -> str:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    constants = [repr(const) for const in _constants(code.co_consts)]
    return f"{(code.co_name, code.co_code, code.co_exceptiontable, counts, names, constants)}\n"


def _constants(values: tuple[object, ...]) -> Iterator[object]:
    """Yield constants, also those in containers, in a fixed order."""
    for value in values:
        if isinstance(value, tuple):
            yield len(value)
            yield from _constants(value)
        elif isinstance(value, frozenset):
            yield from _constants(tuple(sorted(value, key=repr)))
        elif isinstance(value, CodeType):
            yield "code"
        else:
            yield value


def _attribute_path(steps: list[dis.Instruction], start: int) -> AttributePath:
    """Return the attributes that follow a name."""
    path = takewhile(lambda step: step.opname in _ATTRIBUTES, islice(steps, start, None))
    return tuple(str(step.argval) for step in path)


def _import(steps: list[dis.Instruction], i: int) -> Import:
    """Return the import statement that begins with a step."""
    level = steps[i - 2].argval
    module = "." * (level if isinstance(level, int) else 0) + str(steps[i].argval)
    names, variable = [], ""
    for step in steps[i + 1 :]:
        if step.opname == "IMPORT_FROM":
            names.append(str(step.argval))
        elif step.opname.startswith("STORE_"):
            variable = variable or str(step.argval)
            if steps[i - 1].argval is None:  # no names to take: a module
                break
        elif step.opname not in ("SWAP", "POP_TOP"):
            break
    if steps[i - 1].argval is not None:
        return Import(module, tuple(names))
    return Import(module, (), variable, whole=bool(names) or "." not in module)
