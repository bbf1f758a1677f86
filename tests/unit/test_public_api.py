"""The public interface changes on purpose only.

``python -m tests.unit.test_public_api`` writes the file that it is compared with.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".txt")
PACKAGES = (
    "dask_exo",
    "dask_exo.checkpoint",
    "dask_exo.client",
    "dask_exo.pipeline",
    "dask_exo.report",
    "dask_exo.shuffle",
    "dask_exo.testing",
    "dask_exo.training",
)
ACCESSORS = ("dask_exo.dataframe.accessor", "FrameAccessor", "SeriesAccessor")


def interface() -> Iterator[str]:
    """Yield a line for each public name, and for each public member of a class."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            yield from described(f"{package}.{name}", getattr(module, name))
    module = importlib.import_module(ACCESSORS[0])
    for name in ACCESSORS[1:]:
        yield from described(f"ddf.exo: {name}", getattr(module, name))


def described(name: str, thing: Any) -> Iterator[str]:
    """Yield lines of one name; a class has those of its members, too."""
    if not getattr(thing, "__module__", "").startswith("dask_exo"):
        yield name  # of another library
        return
    if not inspect.isclass(thing):
        yield name + (signature(thing) if callable(thing) else "")
        return
    yield f"{name}: class"
    if dataclasses.is_dataclass(thing):
        yield from (f"{name}.{field.name}: {field.type}" for field in dataclasses.fields(thing))
    ours = [base for base in reversed(thing.__mro__) if base.__module__.startswith("dask_exo")]
    members = {member: value for base in ours for member, value in vars(base).items()}
    for member, value in sorted(members.items()):
        plain = inspect.unwrap(getattr(value, "__func__", value))
        if member.startswith("_") and member not in ("__init__", "__call__"):
            continue
        if isinstance(value, property):
            yield f"{name}.{member}: property"
        elif inspect.isfunction(plain) and (
            member != "__init__" or not dataclasses.is_dataclass(thing)
        ):
            yield f"{name}.{member}{signature(plain)}"


def signature(function: Any) -> str:
    """Return the parameters with their defaults, without types."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(…)"
    empty = inspect.Parameter.empty
    bare = [p.replace(annotation=empty) for p in found.parameters.values()]
    text = str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"<function .*? at 0x\w+>", "…", text)


def test_the_public_interface_is_what_it_was() -> None:
    lines = list(interface())
    written = FILE.read_text(encoding="utf-8").splitlines()
    gone, new = sorted(set(written) - set(lines)), sorted(set(lines) - set(written))
    assert (gone, new) == ([], []), f"write {FILE.name} anew, and say in the changelog what changed"


if __name__ == "__main__":
    FILE.write_text("\n".join(interface()) + "\n", encoding="utf-8")
