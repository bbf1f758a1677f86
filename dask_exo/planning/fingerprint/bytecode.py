"""The code of a function: a digest without its lines, and the names that it reads."""

from __future__ import annotations

import dis
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

Way = tuple[str, ...]
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
    """An import statement: a module, with a dot for each level, and what is taken of it.

    Without anything that is taken, ``name`` is the variable that gets the module, or the first
    of its parents if not ``whole``.
    """

    module: str
    taken: Way = ()
    name: str = ""
    whole: bool = False


@dataclass(frozen=True)
class CodeFacts:
    """Facts about the code of a function and of the functions inside it.

    Attributes
    ----------
    digest : str
        Of everything except file names and line numbers.
    reads : dict
        Global or closed-over variable → attributes that are read of it, ``()`` for itself.
    own : dict
        Local variable → attributes that are read of it.
    imports : tuple of Import
        Imports that it runs.
    attributes : frozenset of str
        All attributes that it reads.
    strings : tuple of str
        Its constants.
    does : frozenset of str
        See `dask_exo.planning.fingerprint.node.ObjectNode`.
    """

    digest: str
    reads: dict[str, frozenset[Way]]
    own: dict[str, frozenset[Way]]
    imports: tuple[Import, ...]
    attributes: frozenset[str]
    strings: tuple[str, ...]
    does: frozenset[str]


@lru_cache(10_000)
def analyze(code: CodeType) -> CodeFacts:
    """Return facts about some code.

    Examples
    --------
    >>> found = analyze((lambda d: helper.clean(d) + helper.LIMIT + len(d)).__code__)
    >>> {name: sorted(ways) for name, ways in found.reads.items()}
    {'helper': [('LIMIT',), ('clean',)], 'len': [()]}
    """
    whole = hashlib.sha256()
    reads: dict[str, set[Way]] = defaultdict(set)
    own: dict[str, set[Way]] = defaultdict(set)
    imports: list[Import] = []
    attributes: set[str] = set()
    strings: list[str] = []
    builds = False
    for one in _nested(code):
        whole.update(_text(one).encode(errors="surrogatepass"))
        strings += [const for const in _constants(one.co_consts) if isinstance(const, str)]
        attributes.update(one.co_names)
        instructions = list(dis.get_instructions(one))
        for i, step in enumerate(instructions):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            if step.opname in _NAMES:
                reads[str(step.argval)].add(_way(instructions, i + 1))
            elif step.opname.startswith("LOAD_FAST"):  # of several at once, one is followed
                own[str(names[-1])].add(_way(instructions, i + 1))
                own.update({str(name): own[str(name)] | {()} for name in names[:-1]})
            elif step.opname == "IMPORT_NAME":
                imports.append(_import(instructions, i))
        builds = builds or any(map(_builds_strings, instructions))
    opens = any(_OPENS.match(name) for name in (*attributes, *reads))
    does = {"builds": builds, "opens": opens}
    return CodeFacts(
        whole.hexdigest()[:32],
        {name: frozenset(ways) for name, ways in reads.items()},
        {name: frozenset(ways) for name, ways in own.items()},
        tuple(imports),
        frozenset(attributes),
        tuple(dict.fromkeys(strings)),
        frozenset(name for name, is_done in does.items() if is_done),
    )


def _builds_strings(step: dis.Instruction) -> bool:
    adds = step.opname == "BINARY_OP" and step.argrepr in ("+", "%", "+=", "%=")
    return (
        adds or step.opname in _BUILDS or (isinstance(step.argval, str) and step.argval in _BUILDS)
    )


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


def _text(code: CodeType) -> str:
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    constants = [repr(const) for const in _constants(code.co_consts)]
    return (
        f"{code.co_name} {code.co_code!r} {code.co_exceptiontable!r} {counts} {names} {constants}\n"
    )


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


def _way(steps: list[dis.Instruction], start: int) -> Way:
    """Return the attributes that follow a name."""
    found = []
    for step in steps[start:]:
        if step.opname not in _ATTRIBUTES:
            break
        found.append(str(step.argval))
    return tuple(found)


def _import(steps: list[dis.Instruction], i: int) -> Import:
    """Return the import statement that begins with a step."""
    level = steps[i - 2].argval
    module = "." * (level if isinstance(level, int) else 0) + str(steps[i].argval)
    taken, stored = [], ""
    for step in steps[i + 1 :]:
        if step.opname == "IMPORT_FROM":
            taken.append(str(step.argval))
        elif step.opname.startswith("STORE_"):
            stored = stored or str(step.argval)
            if steps[i - 1].argval is None:  # no names to take: a module
                break
        elif step.opname not in ("SWAP", "POP_TOP"):
            break
    if steps[i - 1].argval is not None:
        return Import(module, tuple(taken))
    return Import(module, (), stored, whole=bool(taken) or "." not in module)
