"""Objects as a walk sees them: a text that describes each, and the objects that belong to it."""

from __future__ import annotations

import concurrent.futures
import copyreg
import datetime as dt
import decimal
import enum
import functools
import hashlib
import logging
import multiprocessing.synchronize
import os
import platform
import re
import site
import sys
import sysconfig
import threading
import types
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from importlib import metadata, util
from pathlib import Path, PurePath
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from dask.tokenize import TokenizationError, tokenize
from fsspec import AbstractFileSystem
from pandas.api.extensions import ExtensionArray, ExtensionDtype
from pandas.api.types import infer_dtype, is_object_dtype, is_string_dtype

from dask_exo.dask_adapter import CoreExpr

LONG = 4096  # characters above which a string is not the name of anything
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_REPEATABLE = (
    *(type(None), type(...), type(NotImplemented), bool, int, float, complex, range),
    *(dt.date, dt.time, dt.timedelta, dt.tzinfo, decimal.Decimal, uuid.UUID),
    *(np.generic, np.dtype, types.GenericAlias, pd.api.typing.NAType),
)
"""Types whose `repr` describes a value completely."""


class UnfollowableError(Exception):
    """Code reads a value whose digest cannot be computed."""


class ObjectNode:
    """An object: texts that describe it, and the objects that belong to it, in their order.

    Effects of code are ``"builds"`` (strings of others), ``"opens"`` (files) and ``"environ"``
    (reads it).
    """

    __slots__ = ("effects", "inner", "literals", "systems", "texts", "value_strings")

    def __init__(self, *texts: object) -> None:
        self.texts: list[str] = list(map(str, texts))
        self.inner: list[tuple[str, Any]] = []  # labels and objects
        self.value_strings: set[str] = set()  # strings among its values
        self.literals: set[str] = set()  # strings in its code
        self.systems: list[AbstractFileSystem] = []
        self.effects: set[str] = set()

    def add(self, label: str, value: Any, *, literal: bool = False) -> Self:
        """Add an object that belongs to it; a constant becomes a part of the text."""
        text = constant(value)
        if text is None:
            self.inner.append((label, value))
            self.texts.append(f"{label}=>")
            return self
        self.texts.append(f"{label}={text}")
        if isinstance(value, (str, bytes, PurePath)):
            names = self.literals if literal else self.value_strings
            names.add(os.fsdecode(value) if isinstance(value, bytes) else str(value))
        return self

    def all(self, values: Iterable[Any], label: str = "") -> Self:
        """Add several objects under one label."""
        for value in values:
            self.add(label, value)
        return self

    def read_with(self, other: ObjectNode) -> None:
        """Count what another object reads: strings, file systems and effects."""
        self.value_strings |= other.value_strings
        self.literals |= other.literals
        self.systems += other.systems
        self.effects |= other.effects


def maybe(value: Any, name: str, default: Any = None) -> Any:
    """Return an attribute, or the default if reading it raises anything."""
    try:
        return getattr(value, name, default)
    except Exception:  # noqa: BLE001  it is the object's own code
        return default


def constant(value: Any) -> str | None:
    """Return the text of a constant; None for any other value.

    Examples
    --------
    >>> constant(10), constant(True), constant([1])
    ('int 0xa', 'bool True', None)
    """
    kind = type(value)
    if kind is str or kind is bytes:
        if len(value) <= LONG:
            return repr(value)
        data = value if kind is bytes else value.encode(errors="surrogatepass")
        return f"{kind.__name__} {hashlib.sha256(data).hexdigest()}"
    if kind is int:
        return f"int {value:#x}"  # of any length
    says_all = isinstance(value, (PurePath, *_REPEATABLE)) and not isinstance(value, enum.Enum)
    if not says_all or package(kind.__module__) is None:
        return None
    text = repr(str(value)) if isinstance(value, PurePath) else repr(value)
    return None if ADDRESS.search(text) else f"{kind.__name__} {text}"


_DATA = (
    *(np.ndarray, pd.DataFrame, pd.Series, pd.Index, ExtensionArray, ExtensionDtype),
    *(pa.Array, pa.ChunkedArray, pa.Table, pa.RecordBatch, pa.Schema, pa.DataType, pa.Scalar),
)
_BUILTIN = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.MethodWrapperType, types.ClassMethodDescriptorType, types.GetSetDescriptorType),
    types.MemberDescriptorType,
)
_WITHOUT_STATE = (
    *(type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition),
    *(threading.Semaphore, threading.local, threading.Thread, logging.Handler),
    *(concurrent.futures.Executor, multiprocessing.synchronize.SemLock),
)
"""Types that affect when code runs, and not what it returns."""
_SAFE_CELLS = {"string", "bytes", "integer", "floating", "boolean", "decimal", "date", "empty"}
_REDUCED = ("made by", "arguments", "state", "items", "pairs")


def instance(value: Any) -> ObjectNode:
    """Describe any object by its class and its pickled state."""
    kind = type(value)
    if kind.__module__ == "typing":
        inner = [maybe(value, name) for name in ("__origin__", "__args__", "__metadata__")]
        return ObjectNode(kind.__name__, ADDRESS.sub("", repr(value))).all(inner)
    node = ObjectNode("object").add("class", kind)
    if isinstance(code := maybe(value, "py_func"), types.FunctionType):  # of numba
        return node.add(code.__name__, code)
    if callable(maybe(kind, "__dask_graph__")):
        expr = maybe(value, "expr")
        return node.add("", dict(value.__dask_graph__()) if expr is None else expr)
    return _pickled(_stands_for(node, value), value)


def _pickled(node: ObjectNode, value: Any) -> ObjectNode:
    """Add the pickled state of an object."""
    kind = type(value)
    if (kind.__module__.partition(".")[0], kind.__name__) == ("polars", "LazyFrame"):
        raise UnfollowableError("a lazy frame of polars, which may read files")
    try:
        reducer = copyreg.dispatch_table.get(kind)
        reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
    except Exception as error:
        if callable(token := maybe(value, "__dask_tokenize__")):
            return node.add("token", token())
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise UnfollowableError(f"an object of {name} has no state to compare: {error}") from error
    if isinstance(reduced, str):
        return _by_name(node, value, reduced)
    for label, item in zip(_REDUCED, reduced, strict=False):
        iterates = label in ("items", "pairs") and item is not None
        node.add(label, list(item) if iterates else item)
    return node


def _by_name(node: ObjectNode, value: Any, name: str) -> ObjectNode:
    """Describe an object that is pickled by name by the module of that name."""
    module = str(getattr(value, "__module__", None) or type(value).__module__)
    node.texts.append(name)
    node.add("module", sys.modules.get(module, module))
    return node.add("state", getattr(value, "__dict__", None))


def _stands_for(node: ObjectNode, value: Any) -> ObjectNode:
    """Add the content of an object that may be pickled by name only."""
    if isinstance(fragment := maybe(value, "fragment"), ds.Fragment):
        info = fragment.filesystem.get_file_info(fragment.path)
        node.texts.append(f"{info.path} {info.size} {info.mtime_ns}")
        node.value_strings.add(fragment.path)
    attributes = maybe(value, "__dict__")
    if isinstance(attributes, dict) and "__wrapped__" in attributes:
        node.add("wrapped", attributes["__wrapped__"])
    return node


def _mapping(value: Any) -> ObjectNode | None:
    if type(value) not in (dict, types.MappingProxyType):
        return None
    node = ObjectNode("dict")
    for key, item in value.items():
        node.add("key", key).add(key if type(key) is str else "", item)
    return node


def _sequence(value: Any) -> ObjectNode | None:
    return ObjectNode(type(value).__name__).all(value) if type(value) in (list, tuple) else None


def _data(value: Any) -> ObjectNode | None:
    """Describe data by Dask's token, or by its cells if these may be any objects."""
    if package(type(value).__module__) is None:
        return None
    columns = _columns(value)
    if not any(map(_any_objects, columns)):
        try:
            node = ObjectNode("data", tokenize(value, ensure_deterministic=True))
        except TokenizationError:
            return None
        node.value_strings.update(path for column in columns for path in _paths(column))
        return node
    if isinstance(value, pd.DataFrame):
        columns = [value.iloc[:, place] for place in range(value.shape[1])]
        return ObjectNode("frame").all((value.index, value.columns, *columns))
    if isinstance(value, pd.Series):
        return ObjectNode("series").all((value.index, value.name, value.array))
    name, shape = getattr(value, "name", None), getattr(value, "shape", "")
    return ObjectNode("cells", shape).all((name, np.asarray(value, dtype=object).ravel().tolist()))


def _columns(value: Any) -> list[Any]:
    """Return the columns of strings or of any objects."""
    if isinstance(value, pd.DataFrame):
        places = [place for place, dtype in enumerate(value.dtypes) if is_string_dtype(dtype)]
        return [value.iloc[:, place] for place in places]
    return [value] if is_string_dtype(getattr(value, "dtype", None)) else []


def _paths(column: Any) -> Iterator[str]:
    """Yield the cells of a column of strings, if the first is a path or a URL."""
    if not isinstance(column, (pd.Series, pd.Index)):
        return
    first = next(iter(column[:100].dropna()), None)
    if isinstance(first, str) and ("://" in first or os.path.exists(first)):  # noqa: PTH110
        yield from map(str, column.dropna().unique())


def _any_objects(column: Any) -> bool:
    """Return whether the cells of a column may be any objects."""
    if not is_object_dtype(column.dtype):
        return False
    cells = np.asarray(column, dtype=object).ravel()
    return infer_dtype(cells, skipna=True) not in _SAFE_CELLS


def _builtin(value: Any) -> ObjectNode:
    owner = getattr(value, "__self__", None)
    node = ObjectNode("builtin", getattr(value, "__qualname__", value.__name__))
    if owner is None or isinstance(owner, types.ModuleType):
        module = str(getattr(value, "__module__", None) or "builtins")
        return node.add("module", sys.modules.get(module, module))
    return node.add("self", owner)


def _ufunc(value: np.ufunc) -> ObjectNode:
    for module in (np, sys.modules.get("scipy.special")):
        if module is not None and getattr(module, value.__name__, None) is value:
            return ObjectNode("ufunc", value.__name__, package(module.__name__))
    raise UnfollowableError(f"numpy does not show what {value!r} calls")


def _described(value: Any, names: tuple[str, ...]) -> ObjectNode:
    """Describe an object by some of its attributes."""
    node = ObjectNode(type(value).__name__)
    if isinstance(value, AbstractFileSystem):
        node.systems.append(value)
    for name in names:
        node.add(name, getattr(value, name))
    return node


_ATTRIBUTES: dict[Any, tuple[str, ...]] = {
    functools.partial: ("func", "keywords", "args"),
    functools._lru_cache_wrapper: ("__wrapped__",),
    np.vectorize: ("pyfunc", "otypes", "signature", "excluded"),
    (staticmethod, classmethod): ("__func__",),
    types.MethodType: ("__func__", "__self__"),
    property: ("fget", "fset", "fdel"),
    AbstractFileSystem: ("__class__", "storage_args", "storage_options"),
    CoreExpr: ("__class__", "operands"),
    logging.Logger: ("name",),
    _WITHOUT_STATE: (),
}
"""Attributes that determine what an object of a type does."""

KINDS: tuple[tuple[Any, Callable[[Any], ObjectNode | None]], ...] = (
    ((dict, types.MappingProxyType), _mapping),
    ((list, tuple), _sequence),
    (_DATA, _data),
    (_BUILTIN, _builtin),
    (np.ufunc, _ufunc),
    (weakref.ref, lambda value: ObjectNode("reference").add("", value())),
    (memoryview, lambda value: ObjectNode("memory").add("", bytes(value))),
    *((kind, partial(_described, names=names)) for kind, names in _ATTRIBUTES.items()),
)
"""Types, and the functions that describe objects of them."""


def package(module: str) -> str | None:
    """Return the name and version of the package that a module belongs to, by its full name.

    Other modules count by their code: the main program, files next to it, editable installs,
    archives, modules that a program creates. For these it returns None.

    Examples
    --------
    >>> package("json.decoder").startswith("python 3."), package("__main__")
    (True, None)
    >>> package("pandas.core.frame").startswith("pandas ")
    True
    """
    if module == "__main__":
        return None
    loaded = sys.modules.get(module)
    return _package(module, None if loaded is None else getattr(loaded, "__file__", None))


@lru_cache(10_000)
def _package(module: str, file: str | None) -> str | None:
    top = module.partition(".")[0]
    if top == "dask_exo":
        return f"dask-exo {metadata.version('dask-exo')}"
    if top.startswith("_cython_"):  # module of the class of compiled functions
        return top
    if file is None and module not in sys.modules:
        file = _origin(module)
    if file is None:
        return _PYTHON if module in sys.builtin_module_names or top in _FROZEN else None
    path = Path(file)
    if any(map(path.is_relative_to, _INSTALLED)):
        return _version(top)
    return _PYTHON if any(map(path.is_relative_to, _STANDARD)) else None


_INSTALLED = {*site.getsitepackages(), site.getusersitepackages()}
_INSTALLED |= {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
_STANDARD = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
_PYTHON = f"python {platform.python_version()}"
_FROZEN = {"builtins", "importlib", "zipimport", "_frozen_importlib", "_frozen_importlib_external"}


def _origin(module: str) -> str | None:
    """Return the file of a module that has not been imported."""
    try:
        spec = util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return None if spec is None else spec.origin


@lru_cache(10_000)
def _version(top: str) -> str | None:
    """Return name and version of an installed package; None for files that are not of one."""
    try:
        return f"{top} {metadata.version(top)}"
    except metadata.PackageNotFoundError:
        pass
    names = sorted(set(_distributions().get(top, ())))
    return ", ".join(f"{name} {metadata.version(name)}" for name in names) or None


_distributions = lru_cache(1)(metadata.packages_distributions)
