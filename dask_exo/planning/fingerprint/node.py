"""One object of a walk: a text that describes it, and the objects that belong to it."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import hashlib
import os
import re
import types
import uuid
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, Self

import numpy as np
import pandas as pd
from fsspec import AbstractFileSystem

from dask_exo.planning.fingerprint.packages import package

LONG = 4096  # characters above which a string is not the name of anything
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_REPEATABLE = (
    *(type(None), type(...), type(NotImplemented), bool, int, float, complex, range),
    *(dt.date, dt.time, dt.timedelta, dt.tzinfo, decimal.Decimal, uuid.UUID),
    *(np.generic, np.dtype, types.GenericAlias, pd.api.typing.NAType),
)
"""Types whose `repr` describes a value completely."""


class UnfollowableError(Exception):
    """A value that code reads, and of which no digest can be computed."""


class ObjectNode:
    """An object, and others that belong to it in the order in which they are added.

    Parameters
    ----------
    *texts : object
        Description of it.

    Attributes
    ----------
    inner : list of (str, object)
        Labels and objects that belong to it.
    given : list of str
        Strings among its values.
    literals : list of str
        Strings in its code.
    systems : list of AbstractFileSystem
        File systems in it.
    does : set of str
        Of code: ``"builds"`` (strings of others), ``"opens"`` (files), ``"environ"`` (reads it).
    """

    __slots__ = ("does", "given", "inner", "literals", "systems", "texts")

    def __init__(self, *texts: object) -> None:
        self.texts = list(map(str, texts))
        self.inner: list[tuple[str, Any]] = []
        self.given: list[str] = []
        self.literals: list[str] = []
        self.systems: list[AbstractFileSystem] = []
        self.does: set[str] = set()

    def add(self, label: str, value: Any, *, literal: bool = False) -> Self:
        """Add an object that belongs to it; a constant becomes a part of the text."""
        text = constant(value)
        if text is None:
            self.inner.append((label, value))
            self.texts.append(f"{label}=>")
            return self
        self.texts.append(f"{label}={text}")
        if isinstance(value, (str, bytes, PurePath)):
            names = self.literals if literal else self.given
            names.append(os.fsdecode(value) if isinstance(value, bytes) else str(value))
        return self

    def all(self, values: Iterable[Any], label: str = "") -> Self:
        """Add several."""
        for value in values:
            self.add(label, value)
        return self


def maybe(value: Any, name: str, default: Any = None) -> Any:
    """Return an attribute, or the default if reading it raises anything."""
    try:
        return getattr(value, name, default)
    except Exception:  # noqa: BLE001  it is the object's own code
        return default


def constant(value: Any) -> str | None:
    """Return the text of a constant; None for what is not one.

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
