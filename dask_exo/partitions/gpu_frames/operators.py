"""Python operators for classes with ``apply_operator``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_exo.errors import DeviceOperationError


def _operator(name: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
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

    __add__, __radd__ = _operator("add"), _operator("add", reflected=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", reflected=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", reflected=True)
    __truediv__, __rtruediv__ = _operator("truediv"), _operator("truediv", reflected=True)
    __floordiv__, __rfloordiv__ = _operator("floordiv"), _operator("floordiv", reflected=True)
    __mod__, __rmod__ = _operator("mod"), _operator("mod", reflected=True)
    __pow__, __rpow__ = _operator("pow"), _operator("pow", reflected=True)
    __and__, __rand__ = _operator("and_"), _operator("and_", reflected=True)
    __or__, __ror__ = _operator("or_"), _operator("or_", reflected=True)
    __xor__, __rxor__ = _operator("xor"), _operator("xor", reflected=True)
    __eq__, __ne__ = _operator("eq"), _operator("ne")
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")

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
