"""Reductions of segments: rows that follow each other in an order.

On a GPU, a warp reduces a piece of at most `PIECE` rows, always in the same order: the last bits of
a sum are the same in every run, as scattered additions by atomics would not have them. The pieces
of a segment are reduced again.
"""

from __future__ import annotations

from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from dask_exo.partitions.gpu import arrays

PIECE = 1024
_WARPS = 8  # in a block
_TYPES = {"b1": "bool", "i1": "signed char", "i2": "short", "i4": "int", "i8": "long long",
          "u1": "unsigned char", "u2": "unsigned short", "u4": "unsigned int",
          "u8": "unsigned long long", "f4": "float", "f8": "double"}  # fmt: skip
_STEPS = {  # NaN is skipped: it is not equal to itself
    "count": "result + (x == x)",
    "max": "x == x && !(x <= result) ? x : result",
    "min": "x == x && !(x >= result) ? x : result",
    "sum": "x == x ? result + x : result",
}
_SOURCE = """
extern "C" __global__ void {name}(
    const {value}* values, const long long* rows, const long long* starts, const long long* ends,
    {total}* results, const long long count) {{
  const long long segment = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
  if (segment >= count) return;
  {total} result = {neutral};
  for (long long i = starts[segment] + threadIdx.x % 32; i < ends[segment]; i += 32) {{
    const {value} x = values[rows[i]];
    result = {step};
  }}
  for (int distance = 16; distance; distance /= 2) {{
    const {total} x = __shfl_down_sync(0xffffffff, result, distance);
    result = {join};
  }}
  if (threadIdx.x % 32 == 0) results[segment] = result;
}}
"""


class Segments:
    """(s,) segments of (m,) ordered rows, each with a row, between (s + 1,) bounds.

    Examples
    --------
    >>> segments = Segments(np.array([2, 0, 1]), np.array([0, 1, 3]))
    >>> segments.sizes.tolist(), segments.reduce(np.array([5.0, np.nan, 7.0]), "sum").tolist()
    ([1, 2], [7.0, 5.0])
    """

    rows: Any
    starts: Any
    ends: Any

    def __init__(self, rows: Any, bounds: Any, most: int | None = None) -> None:
        self.rows, self.starts, self.ends = rows, bounds[:-1], bounds[1:]
        self._most = len(rows) if most is None else most  # rows of a segment

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.starts)

    @cached_property
    def sizes(self) -> Any:
        """(s,) number of rows of each segment."""
        return self.ends - self.starts

    def reduce(self, values: Any, operation: str) -> Any:
        """Reduce the (n,) values of the rows: "sum", "min", "max" or "count".

        NaN is skipped; the minimum of nothing else is NaN. Sums are of 64 bits.
        """
        dtype = _result_dtype(values.dtype, operation)
        if not len(self):
            return arrays.of(values).empty(0, dtype)
        if isinstance(values, np.ndarray):
            results = np.empty(len(self), dtype)
            reduce_on_host(operation, values, self.rows, self.starts, self.ends, results)
            return results
        starts, ends, pieces = self._pieces
        results = _reduce_on_gpu(operation, values, self.rows, starts, ends)
        if pieces is not None:
            results = pieces.reduce(results, "sum" if operation == "count" else operation)
        return results.astype(dtype, copy=False)

    @cached_property
    def _pieces(self) -> tuple[Any, Any, Segments | None]:
        """Start and end of each piece, and the segments of pieces if they are not the same."""
        if self._most <= PIECE:
            return self.starts, self.ends, None
        xp = arrays.of(self.rows)
        bounds = xp.zeros(len(self) + 1, np.int64)
        bounds[1:] = xp.cumsum((self.sizes + (PIECE - 1)) // PIECE)
        total = int(bounds[-1])
        if total == len(self):
            return self.starts, self.ends, None
        numbers = xp.arange(total)
        owner = xp.searchsorted(bounds[1:], numbers, side="right")
        starts = self.starts[owner] + (numbers - bounds[owner]) * PIECE
        ends = xp.minimum(starts + PIECE, self.ends[owner])
        return starts, ends, Segments(numbers, bounds, -(-self._most // PIECE))


def _result_dtype(dtype: np.dtype, operation: str) -> np.dtype:
    if operation in ("min", "max"):
        return dtype
    kind = "i" if operation == "count" or dtype.kind in "bi" else dtype.kind
    return np.dtype(f"{kind}8")


def _reduce_on_gpu(operation: str, values: Any, rows: Any, starts: Any, ends: Any) -> Any:
    kernel, dtype = _kernel(operation, values.dtype.str[1:])
    results = arrays.of(values).empty(len(starts), dtype)
    blocks = -(-len(starts) // _WARPS)
    kernel((blocks,), (32 * _WARPS,), (values, rows, starts, ends, results, np.int64(len(starts))))
    return results


@cache
def _kernel(operation: str, value: str) -> tuple[Any, str]:
    """Return the kernel for a dtype of values, and the dtype of its results, which warps share."""
    kind = value[0]
    if operation == "count":
        total, neutral = "i8", "0"
    elif operation == "sum":
        total, neutral = {"b": "i8", "i": "i8", "u": "u8", "f": "f8"}[kind], "0"
    elif kind == "f":
        total, neutral = value, "0.0 / 0.0"
    else:
        total = "u8" if kind == "u" else "i8"
        limits = np.iinfo(total)
        least = "0" if kind == "u" else f"{limits.min + 1}LL - 1"
        neutral = least if operation == "max" else f"{limits.max}{'U' if kind == 'u' else ''}LL"
    name = f"segment_{operation}__{value}"
    join = _STEPS["sum" if operation == "count" else operation]
    types = {"value": _TYPES[value], "total": _TYPES[total]}
    source = _SOURCE.format(name=name, neutral=neutral, step=_STEPS[operation], join=join, **types)
    return arrays.module(arrays.DEVICE).RawKernel(source, name), total


def reduce_on_host(  # noqa: PLR0917  the arguments of the kernel
    operation: str, values: Any, rows: Any, starts: Any, ends: Any, results: Any, *_: Any
) -> int:
    """Compute what a kernel does, and return the bytes that it moves."""
    ordered = values[rows]
    defined = ~np.isnan(ordered) if values.dtype.kind == "f" else np.ones(len(rows), bool)
    if operation == "count":
        results[:] = np.add.reduceat(defined, starts, dtype=np.int64)
    elif operation == "sum":
        results[:] = np.add.reduceat(np.where(defined, ordered, 0), starts, dtype=results.dtype)
    else:
        reduce = np.fmin if operation == "min" else np.fmax
        results[:] = reduce.reduceat(ordered, starts)
    return int(rows.nbytes + ordered.nbytes + starts.nbytes + ends.nbytes + results.nbytes)


HOST_KERNELS = {f"segment_{operation}": partial(reduce_on_host, operation) for operation in _STEPS}
"""What each kernel computes, by the beginning of its name; for `dask_exo.testing.strict_cupy`."""
