"""Installed packages, which count by their version; other modules count by their code."""

from __future__ import annotations

import platform
import site
import sys
import sysconfig
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path


def package(module: str) -> str | None:
    """Return the name and version of the package that a module belongs to.

    Parameters
    ----------
    module : str
        Its full name.

    Returns
    -------
    str or None
        None for a module of no installed package: the main program, files next to it, editable
        installs, archives, modules that a program creates.

    Examples
    --------
    >>> package("json.decoder").startswith("python 3."), package("__main__")
    (True, None)
    >>> package("pandas.core.frame").startswith("pandas ")
    True
    """
    if module == "__main__":
        return None
    found = sys.modules.get(module)
    return _package(module, None if found is None else getattr(found, "__file__", None))


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
    if any(path.is_relative_to(folder) for folder in _installed()):
        return _version(top)
    return _PYTHON if any(path.is_relative_to(folder) for folder in _standard()) else None


_PYTHON = f"python {platform.python_version()}"
_FROZEN = {"builtins", "importlib", "zipimport", "_frozen_importlib", "_frozen_importlib_external"}


def _origin(module: str) -> str | None:
    """Return the file of a module that has not been imported."""
    try:
        spec = util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    return None if spec is None else spec.origin


@lru_cache(1)
def _installed() -> tuple[Path, ...]:
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({Path(folder) for folder in folders})


@lru_cache(1)
def _standard() -> tuple[Path, ...]:
    return tuple({Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib")})


@lru_cache(10_000)
def _version(top: str) -> str | None:
    """Return name and version of an installed package; None for files that are not of one."""
    try:
        return f"{top} {metadata.version(top)}"
    except metadata.PackageNotFoundError:
        pass
    names = _distributions().get(top, ())
    return ", ".join(f"{name} {metadata.version(name)}" for name in sorted(names)) or None


@lru_cache(1)
def _distributions() -> dict[str, set[str]]:
    return {top: set(names) for top, names in metadata.packages_distributions().items()}
