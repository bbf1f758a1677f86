"""Python operators for classes with ``apply_operator``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_exo.errors import DeviceOperationError


def _dunder(name: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def apply(self: Any, other: Any) -> Any:
        return self.apply_operator(name, other, reflected=reflected)

    return apply


def _method(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    def apply(
        self: Any, other: Any, axis: Any = "columns", level: Any = None, fill_value: Any = None
    ) -> Any:
        if level is not None or fill_value is not None or axis not in ("columns", 1, 0, "index"):
            raise DeviceOperationError(
                f"{name}() with level={level!r}, fill_value={fill_value!r} does not exist on a "
                f"device: fill nulls with .fillna(...) before, or use .to_backend('pandas')"
            )
        return self.apply_operator(name, other, reflected=reflected)

    apply.__doc__ = f"Apply {name}, {'with sides changed, ' if reflected else ''}row by row."
    return apply


class Operators:
    """Mixin that maps operators to ``apply_operator(name, other, reflected=...)``."""

    __hash__ = None  # type: ignore[assignment]  # equality is row by row

    __add__, __radd__ = _dunder("add"), _dunder("add", reflected=True)
    __sub__, __rsub__ = _dunder("sub"), _dunder("sub", reflected=True)
    __mul__, __rmul__ = _dunder("mul"), _dunder("mul", reflected=True)
    __truediv__, __rtruediv__ = _dunder("truediv"), _dunder("truediv", reflected=True)
    __floordiv__, __rfloordiv__ = _dunder("floordiv"), _dunder("floordiv", reflected=True)
    __mod__, __rmod__ = _dunder("mod"), _dunder("mod", reflected=True)
    __pow__, __rpow__ = _dunder("pow"), _dunder("pow", reflected=True)
    __and__, __rand__ = _dunder("and_"), _dunder("and_", reflected=True)
    __or__, __ror__ = _dunder("or_"), _dunder("or_", reflected=True)
    __xor__, __rxor__ = _dunder("xor"), _dunder("xor", reflected=True)
    __eq__, __ne__ = _dunder("eq"), _dunder("ne")
    __lt__, __le__ = _dunder("lt"), _dunder("le")
    __gt__, __ge__ = _dunder("gt"), _dunder("ge")

    add, radd = _method("add"), _method("add", reflected=True)
    sub, rsub = _method("sub"), _method("sub", reflected=True)
    mul, rmul = _method("mul"), _method("mul", reflected=True)
    div = truediv = _method("truediv")
    rdiv = rtruediv = _method("truediv", reflected=True)
    floordiv, rfloordiv = _method("floordiv"), _method("floordiv", reflected=True)
    mod, rmod = _method("mod"), _method("mod", reflected=True)
    pow, rpow = _method("pow"), _method("pow", reflected=True)
    eq, ne, lt, le, gt, ge = map(_method, ("eq", "ne", "lt", "le", "gt", "ge"))


def refuse(owner: object, kind: type, name: str) -> Any:
    """Raise the error for an attribute that does not exist.

    Raises
    ------
    DeviceOperationError
        pandas has it.
    AttributeError
        Nobody has it.
    """
    what = type(owner).__name__
    if not name.startswith("_") and hasattr(kind, name):
        raise DeviceOperationError(
            f"{what} has no {name!r}, which {kind.__name__} of pandas has: do that step on the "
            f"host, between .to_backend('pandas') and .to_backend('exo-cupy')"
        )
    raise AttributeError(f"{what!r} object has no attribute {name!r}")
