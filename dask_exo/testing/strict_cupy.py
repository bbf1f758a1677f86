"""Stand-in for cupy without a GPU: numpy's results, cupy's refusals, and counters.

Arrays are no ``np.ndarray`` and never become one implicitly. Functions have the signatures and the
dtypes of cupy 14; those that are not listed here do not exist. Integers are divided, and indices
wrap, as on a GPU. `counters` has kernel launches, bytes that kernels read and write, waits of the
host, and copies. Memory belongs to a stream, as in cupy's pool: work of another stream that nobody
waits for is a race, which is counted, too.

References: cupy 14.2, ``cupy/_core/core.pyx``, ``cupy/cuda/memory.pyx``.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import operator
import os
import sys
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

VERSION = "14.2.0"
KINDS = "biufc"
_SCALARS = (int, float, bool, complex)


@dataclass
class Counters:
    """Work that a GPU would have done since `reset`."""

    launches: int = 0
    moved: int = 0  # bytes that kernels read or wrote
    waits: int = 0  # of the host for the GPU
    to_device: int = 0  # bytes
    to_host: int = 0  # bytes
    allocated: int = 0  # bytes
    unordered_sums: int = 0  # sums of floats whose last bits differ from run to run
    races: list[str] = field(default_factory=list)

    def reset(self) -> None:
        """Set all to zero."""
        for each in fields(self):
            setattr(self, each.name, [] if each.name == "races" else 0)


counters = Counters()


class Stream:
    """Work in order. It has waited for others up to some of their work."""

    current: list[Stream] = []  # noqa: RUF012  the innermost context is last

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        self.done = 0
        self.seen: dict[Stream, int] = defaultdict(int)

    def record(self, event: Any = None) -> StreamMark:  # noqa: ARG002
        """Mark the work so far."""
        return StreamMark(self, self.done, dict(self.seen))

    def wait_event(self, event: StreamMark) -> None:
        """Let later work wait."""
        for stream, done in {**event.seen, event.stream: event.done}.items():
            self.seen[stream] = max(self.seen[stream], done)

    def synchronize(self) -> None:
        """Let the host wait for all work."""
        self.record().synchronize()

    def __enter__(self) -> Stream:
        Stream.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        Stream.current.pop()


@dataclass(frozen=True)
class StreamMark:
    """Mark in a stream, and what the stream had waited for."""

    stream: Stream
    done: int
    seen: dict[Stream, int]

    def synchronize(self) -> None:
        """Let the host wait."""
        counters.waits += 1
        _host.wait_event(self)


_host = Stream()  # what the host has waited for
_default = Stream()


def get_current_stream(device_id: int = -1) -> Stream:  # noqa: ARG001
    """Return the stream of new work."""
    return Stream.current[-1] if Stream.current else _default


class Memory:
    """Block of a stream's pool, and the last work of each stream that used it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.allocation: Allocation | None = None  # if it is of no pool
        self.used: dict[Stream, int] = {stream: stream.done}  # its former user may still be working
        weakref.finalize(self, _freed, stream, self.used).atexit = False

    def use(self, stream: Stream) -> None:
        """Record work of a stream; it must have waited for that of others."""
        _check_order(stream, self.used, "used")
        stream.done += 1
        self.used[stream] = stream.done


def _check_order(stream: Stream, used: dict[Stream, int], what: str) -> None:
    for other, done in used.items():
        if other is not stream and max(stream.seen[other], _host.seen[other]) < done:
            counters.races.append(f"memory is {what} while another stream works on it")


def _freed(stream: Stream, used: dict[Stream, int]) -> None:
    _check_order(stream, used, "freed")


def _launch(*operands: Any, launches: int = 1, more: int = 0) -> None:
    counters.launches += launches
    counters.moved += sum(getattr(each, "nbytes", 0) for each in operands) + more
    stream = get_current_stream()
    for each in operands:
        if isinstance(each, ndarray):
            each.memory.use(stream)


def _wait() -> None:
    get_current_stream().synchronize()


def _checked(dtype: Any) -> np.dtype:
    dtype = np.dtype(dtype)
    if dtype.kind not in KINDS or not dtype.isnative:
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype


def _wrap(values: Any, memory: Memory | None = None) -> ndarray:
    values = np.asarray(values)
    _checked(values.dtype)
    made = object.__new__(ndarray)
    made.on_host = values
    made.memory = Memory(get_current_stream()) if memory is None else memory
    made.base = None
    if memory is None:
        counters.allocated += values.nbytes
    return made


def _plain(operand: Any) -> Any:
    """Return an operand for numpy, or raise the error of cupy."""
    if isinstance(operand, ndarray):
        return operand.on_host
    if type(operand) in _SCALARS or (
        isinstance(operand, np.generic) and operand.dtype.kind in KINDS
    ):
        return operand
    raise TypeError(f"Unsupported type {type(operand)}")


def _floor_divide(x: Any, y: Any) -> Any:
    if np.result_type(x, y).kind == "f":  # the quotient is rounded first
        return np.floor(np.true_divide(x, y)).astype(np.result_type(x, y))
    return np.floor_divide(x, y)


def _remainder(x: Any, y: Any) -> Any:
    if np.result_type(x, y).kind == "f":
        return (x - _floor_divide(x, y) * y).astype(np.result_type(x, y))
    return np.remainder(x, y)


def _power(x: Any, y: Any) -> Any:
    if np.result_type(x, y).kind == "i":  # no error for a negative exponent
        x, y = np.broadcast_arrays(x, y)
        whole = np.power(x, np.where(y < 0, 0, y))
        return np.where(y < 0, np.where(np.abs(x) == 1, x ** (y & 1), 0), whole)
    return np.power(x, y)


_OTHER_RESULTS = {"floor_divide": _floor_divide, "remainder": _remainder, "power": _power}


class ufunc:  # noqa: N801  cupy's name
    """Elementwise function."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self._compute = _OTHER_RESULTS.get(name) or getattr(np, name)

    def __call__(self, *operands: Any, out: Any = None, casting: Any = "same_kind") -> Any:
        """Apply it to arrays and scalars."""
        values = [_plain(each) for each in operands]
        with np.errstate(all="ignore"):
            result = np.asarray(self._compute(*values))
        made = _wrap(result) if out is None else out
        if out is not None:
            np.copyto(out.on_host, result, casting=casting)
        _launch(*operands, made)
        return made


_NAMES = """
add subtract multiply true_divide divide floor_divide remainder power fmod minimum maximum fmin fmax
bitwise_and bitwise_or bitwise_xor left_shift right_shift equal not_equal less less_equal greater
greater_equal copysign logical_and logical_or logical_xor arctan2 hypot negative absolute sqrt
square exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh floor
ceil rint trunc sign isnan isinf isfinite invert logical_not signbit
"""
UFUNCS = tuple(_NAMES.split())
_ufuncs: dict[str, Any] = {name: ufunc(name) for name in UFUNCS}


class ndarray:  # noqa: N801  cupy's name and methods
    """Array on the GPU that is none."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]
    on_host: Any
    memory: Memory
    base: ndarray | None  # which owns the memory of a view

    dtype = property(lambda self: self.on_host.dtype)
    shape = property(lambda self: self.on_host.shape)
    ndim = property(lambda self: self.on_host.ndim)
    size = property(lambda self: self.on_host.size)
    nbytes = property(lambda self: self.on_host.nbytes)
    itemsize = property(lambda self: self.on_host.itemsize)
    flags = property(lambda self: self.on_host.flags)
    data = property(lambda self: SimpleNamespace(ptr=self.on_host.ctypes.data, mem=self.memory))

    def __new__(cls, shape: tuple[int, ...], dtype: Any, memptr: Allocation) -> ndarray:
        """Return an array in memory that is already allocated."""
        values = memptr.values.view(dtype)[: math.prod(shape)]
        made = _wrap(values.reshape(shape), Memory(get_current_stream()))
        made.memory.allocation = memptr  # which lives as long
        memptr.users.append(made.memory)
        return made

    def _viewed(self, values: np.ndarray) -> ndarray:
        view = _wrap(values, self.memory)
        view.base = self if self.base is None else self.base
        return view

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.on_host.__array_interface__, "version": 3, "array": self}

    def __dlpack__(self, **_: Any) -> Any:
        return self.on_host.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        mine = _ufuncs.get(function.__name__)
        if mine is None or method != "__call__":
            return NotImplemented
        if any(isinstance(each, np.ndarray) and each.ndim for each in inputs):
            return NotImplemented
        return mine(*inputs, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        mine = FUNCTIONS.get(function.__name__)
        if mine is None or not all(issubclass(each, ndarray) for each in types):
            return NotImplemented
        return mine(*args, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return asarray, (self.get(),)

    def __len__(self) -> int:
        return len(self.on_host)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __invert__(self) -> Any:
        return _ufuncs["invert"](self)

    def __neg__(self) -> Any:
        return _ufuncs["negative"](self)

    def item(self) -> Any:
        """Copy the only value to the host."""
        _wait()
        return self.on_host.item()

    def tolist(self) -> Any:
        """Copy to a list."""
        return self.get().tolist()

    def get(
        self,
        stream: Any = None,
        order: str = "C",  # noqa: ARG002
        out: Any = None,
        blocking: bool = True,  # noqa: FBT001, FBT002
    ) -> np.ndarray:
        """Copy to the host."""
        counters.to_host += self.nbytes
        with stream or contextlib.nullcontext():
            self.memory.use(get_current_stream())
            if blocking:
                _wait()
        if out is None:
            return self.on_host.copy()
        assert (out.dtype, out.shape) == (self.dtype, self.shape)
        out[...] = self.on_host
        return out

    def set(self, values: np.ndarray, stream: Any = None) -> None:
        """Copy from the host."""
        if not isinstance(values, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        assert (values.dtype, values.shape) == (self.dtype, self.shape)
        counters.to_device += self.nbytes
        with stream or contextlib.nullcontext():
            self.memory.use(get_current_stream())
        self.on_host[...] = values

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> ndarray:  # noqa: ARG002, FBT001, FBT002
        """Convert values."""
        if _checked(dtype) == self.dtype and not copy:
            return self
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = _wrap(self.on_host.astype(dtype))
        _launch(self, made)
        return made

    def view(self, dtype: Any = None) -> ndarray:
        """Return the same memory as another dtype."""
        return self._viewed(self.on_host.view(dtype or self.dtype))

    def copy(self) -> ndarray:
        """Copy on the GPU."""
        made = _wrap(self.on_host.copy())
        _launch(self, made)
        return made

    def reshape(self, *shape: Any) -> ndarray:
        """Return the same memory in another shape."""
        return self._viewed(self.on_host.reshape(*shape))

    def nonzero(self) -> tuple[ndarray, ...]:
        """Find the places of values that are not zero."""
        _wait()
        _launch(self, launches=3, more=5 * self.size)
        return tuple(_wrap(each) for each in self.on_host.nonzero())

    def argsort(self, axis: int = -1, kind: Any = None) -> ndarray:  # noqa: ARG002
        """Return a stable order: a radix sort of keys and 8-byte positions."""
        width = self.itemsize
        moved = width + 8 + width + width * 2 * (width + 8)  # a pass for each byte of a key
        _launch(self, launches=3 + width, more=self.size * moved)
        return _wrap(np.argsort(self.on_host, axis=axis, kind="stable"))

    def _reduced(self, name: str, **options: Any) -> ndarray:
        with np.errstate(all="ignore"):
            made = _wrap(getattr(self.on_host, name)(**options))
        _launch(self, launches=2)
        return made

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> ndarray:  # noqa: ARG002
        """Add up; the last bits of floats differ from run to run."""
        counters.unordered_sums += self.dtype.kind == "f"
        made = self._reduced("cumsum", axis=axis, dtype=dtype)
        counters.moved += made.nbytes
        return made

    def _index(self, key: Any) -> Any:
        if isinstance(key, tuple):
            return tuple(self._index(each) for each in key)
        if isinstance(key, np.ndarray):
            counters.to_device += key.nbytes
        if isinstance(key, (ndarray, np.ndarray)) and key.dtype.kind not in "biu":
            raise IndexError("arrays used as indices must be of integer or boolean type")
        return key.on_host if isinstance(key, ndarray) else key

    def __getitem__(self, key: Any) -> ndarray:
        index = self._index(key)
        if not isinstance(index, np.ndarray):
            return self._viewed(self.on_host[index])
        if index.dtype == bool:
            _wait()
            made = _wrap(self.on_host[index])
            _launch(self, key, made, launches=3, more=5 * index.size)
            return made
        if not len(self.on_host) and index.size:
            raise IndexError("cannot do a non-empty take from an empty axes.")
        made = _wrap(self.on_host[index % max(len(self.on_host), 1)])  # out of bounds, it wraps
        _launch(key, made, more=made.nbytes)
        self.memory.use(get_current_stream())
        return made

    def __setitem__(self, key: Any, value: Any) -> None:
        index = self._index(key)
        if isinstance(value, np.ndarray) and value.ndim:
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        if isinstance(index, np.ndarray) and index.dtype == bool:
            _wait()
        self.on_host[index] = _plain(value)
        _launch(value, key if isinstance(key, ndarray) else 0, more=self.on_host[index].nbytes)
        self.memory.use(get_current_stream())


for _name in ("any", "all", "sum", "prod", "min", "max", "mean", "argmin", "argmax"):
    setattr(ndarray, _name, lambda self, _name=_name, **options: self._reduced(_name, **options))


def _operator(name: str, *, reflected: bool) -> Callable[[Any, Any], Any]:
    def run(self: Any, other: Any) -> Any:
        if not isinstance(other, (ndarray, np.generic, *_SCALARS)):
            return NotImplemented if not isinstance(other, np.ndarray) else _plain(other)
        return _ufuncs[name](other, self) if reflected else _ufuncs[name](self, other)

    return run


_OPERATORS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide",
              "floordiv": "floor_divide", "mod": "remainder", "pow": "power",
              "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
              "lshift": "left_shift", "rshift": "right_shift"}  # fmt: skip
_COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
                "gt": "greater", "ge": "greater_equal"}  # fmt: skip
for _name, _of in _OPERATORS.items():
    setattr(ndarray, f"__{_name}__", _operator(_of, reflected=False))
    setattr(ndarray, f"__r{_name}__", _operator(_of, reflected=True))
for _name, _of in _COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", _operator(_of, reflected=False))


def asarray(values: Any, dtype: Any = None) -> ndarray:
    """Copy values of the host; arrays on the GPU stay."""
    shared = getattr(values, "__cuda_array_interface__", {}).get("array", values)
    if isinstance(shared, ndarray):
        return shared if dtype is None else shared.astype(dtype, copy=False)
    made = _wrap(np.array(values, dtype=dtype))
    counters.to_device += made.nbytes
    made.memory.use(get_current_stream())
    return made


def asnumpy(values: Any) -> np.ndarray:
    """Copy to the host."""
    return values.get() if isinstance(values, ndarray) else np.asarray(values)


def _filled(name: str) -> Callable[..., ndarray]:
    def run(shape: Any, *args: Any, dtype: Any = None) -> ndarray:
        if args and name != "full":
            dtype, args = args[0], ()
        value, dtype = (args[0], args[1] if len(args) > 1 else dtype) if args else (None, dtype)
        dtype = dtype or (getattr(value, "dtype", None) or np.array(value).dtype if args else float)
        blank = {"empty": 0xA5, "zeros": 0, "ones": 1}.get(name, value)
        made = _wrap(np.full(shape, 0, _checked(dtype)))
        if name == "empty":
            made.on_host.view(np.uint8)[...] = blank if made.ndim and made.size else 0
        else:
            made.on_host[...] = _plain(blank)
            _launch(made)
        return made

    return run


def zeros_like(values: ndarray) -> ndarray:
    """Return zeros."""
    made = _wrap(np.zeros_like(values.on_host))
    _launch(made)
    return made


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> ndarray:
    """Return numbers in order."""
    start, stop = (0, start) if stop is None else (start, stop)
    made = _wrap(np.arange(operator.index(start), operator.index(stop), step, dtype=dtype))
    _launch(made)
    return made


def concatenate(parts: Sequence[Any], axis: int = 0) -> ndarray:
    """Concatenate arrays on the GPU."""
    if not all(isinstance(each, ndarray) for each in parts):
        raise TypeError("Only cupy arrays can be concatenated")
    made = _wrap(np.concatenate([each.on_host for each in parts], axis))
    _launch(*parts, made, launches=len(parts))
    return made


def append(values: ndarray, more: Any) -> ndarray:
    """Append values."""
    return concatenate([values.reshape(-1), asarray(more).reshape(-1)])


def stack(parts: Sequence[ndarray], axis: int = 0) -> ndarray:
    """Put arrays side by side."""
    made = _wrap(np.stack([each.on_host for each in parts], axis))
    _launch(*parts, made, launches=len(parts))
    return made


def where(condition: ndarray, x: Any, y: Any) -> ndarray:
    """Choose values."""
    made = _wrap(np.where(condition.astype("?", copy=False).on_host, _plain(x), _plain(y)))
    _launch(condition, x, y, made)
    return made


def take(values: ndarray, rows: ndarray, axis: Any = None, out: Any = None) -> ndarray:  # noqa: ARG001
    """Gather values."""
    made = values[rows]
    if out is None:
        return made
    out.on_host[...] = made.on_host
    out.memory.use(get_current_stream())
    return out


def flatnonzero(values: ndarray) -> ndarray:
    """Find the places of values that are not zero."""
    return values.reshape(-1).nonzero()[0]


def searchsorted(values: ndarray, targets: Any, side: str = "left") -> ndarray:
    """Find places in sorted values."""
    targets = asarray(targets) if type(targets) in _SCALARS else targets
    made = _wrap(np.searchsorted(values.on_host, _plain(targets), side))
    _launch(targets, made, more=4 * targets.nbytes)
    return made


def unique(values: ndarray, return_inverse: bool = False) -> Any:  # noqa: FBT001, FBT002
    """Sort and compare."""
    _wait()
    _launch(values, launches=14, more=values.nbytes * (2 * values.itemsize + 4))
    found = np.unique(values.on_host, return_inverse=return_inverse)
    return tuple(map(_wrap, found)) if return_inverse else _wrap(found)


def ascontiguousarray(values: ndarray) -> ndarray:
    """Copy if values are not side by side."""
    return values if values.flags.c_contiguous else values.copy()


class RawKernel:
    """Kernel in CUDA C++. The project gives what it computes as a function of numpy, too."""

    results: dict[str, Callable[..., int]] = {}  # noqa: RUF012  by name; bytes moved are returned

    def __init__(self, code: str, name: str, options: tuple[str, ...] = ()) -> None:  # noqa: ARG002
        assert f" {name}(" in code, f"the code has no {name}"
        self._name = name

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...]
    ) -> None:
        """Compute it, and count one launch."""
        assert 0 < block[0] <= 1024
        assert 0 < grid[0] < 2**31
        assert all(isinstance(each, (ndarray, np.generic)) for each in args), "sizes are ambiguous"
        moved = self.results[self._name.split("__")[0]](*(_plain(each) for each in args))
        _launch(launches=1, more=moved)
        for each in args:
            if isinstance(each, ndarray):
                each.memory.use(get_current_stream())


def fuse(**_: Any) -> Callable[..., Any]:
    """Return a decorator that makes one kernel of elementwise functions."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*operands: Any) -> Any:
            before = counters.launches, counters.moved
            made = function(*operands)
            counters.launches, counters.moved = before
            _launch(*operands, *(made if isinstance(made, tuple) else (made,)))
            return made

        return run

    return decorate


FUNCTIONS: dict[str, Any] = {
    **_ufuncs,
    **{name: _filled(name) for name in ("empty", "zeros", "ones", "full")},
    **{
        each.__name__: each
        for each in (
            *(append, arange, asarray, ascontiguousarray, asnumpy, concatenate, fuse, flatnonzero),
            *(searchsorted, stack, take, unique, where, zeros_like),
        )
    },
    **{
        name: lambda values, _name=name, **options: getattr(values, _name)(**options)
        for name in ("cumsum", "argsort", "any", "all", "sum", "min", "max")
    },
}


class Allocation:
    """Memory of ``cudaMalloc``: a file, which other processes open by a handle."""

    def __init__(self, size: int, file: int | None = None) -> None:
        self.file = os.memfd_create("cuda") if file is None else file
        if file is None:
            os.ftruncate(self.file, size)
            counters.allocated += size
        weakref.finalize(self, os.close, self.file).atexit = False
        self.values = np.frombuffer(mmap.mmap(self.file, size), np.uint8)
        self.ptr: int = self.values.ctypes.data
        self.users: list[Memory] = []
        _allocations[self.ptr] = self


_allocations = weakref.WeakValueDictionary[int, Allocation]()  # by address
_opened: dict[int, Allocation] = {}


def _handle(address: int) -> bytes:
    found = _allocations[address]
    return f"{os.getpid()} {found.file} {len(found.values)}".encode().ljust(64, b"\0")


def _open_handle(handle: bytes, flags: int = 1) -> int:  # noqa: ARG001
    """Open memory of another process; CUDA refuses a handle of the same one."""
    process, file, size = map(int, handle.rstrip(b"\0").split())
    refused: type[Exception] = sys.modules["cupy"].cuda.runtime.CUDARuntimeError
    if process == os.getpid():
        raise refused("invalid device context")
    try:
        made = Allocation(size, os.open(f"/proc/{process}/fd/{file}", os.O_RDWR))
    except OSError as error:
        raise refused(str(error)) from error
    _opened[made.ptr] = made
    return made.ptr


def _close_handle(address: int) -> None:
    for memory in _opened.pop(address).users:
        if any(_host.seen[stream] < done for stream, done in memory.used.items()):
            counters.races.append("memory is closed while a stream works on it")


class MemoryPool:
    """Cached memory."""

    def malloc(self, nbytes: int) -> int:
        """Allocate."""
        return nbytes

    def free_all_blocks(self, stream: Any = None) -> None:
        """Give unused memory back."""

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Limit the memory."""


def empty_pinned(shape: Any, dtype: Any = float) -> np.ndarray:
    """Allocate on the host."""
    return np.empty(shape, dtype)


def _module(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(names)
    sys.modules[name] = module
    return module


def install() -> None:
    """Let ``import cupy`` find the stand-in, in this process."""
    from dask_exo.partitions.gpu.segments import HOST_KERNELS

    RawKernel.results.update(HOST_KERNELS)
    pool = MemoryPool()
    runtime = SimpleNamespace(
        CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
        getDeviceCount=lambda: 1,
        memGetInfo=lambda: (140 << 30, 141 << 30),
        deviceSynchronize=_wait,
        ipcGetMemHandle=_handle,
        ipcOpenMemHandle=_open_handle,
        ipcCloseMemHandle=_close_handle,
    )
    cuda = _module(
        "cupy.cuda",
        Device=lambda number=0: SimpleNamespace(id=number, synchronize=_wait),
        Event=StreamMark,
        Memory=Allocation,
        MemoryPointer=lambda memory, offset: memory,  # noqa: ARG005  it is 0
        MemoryPool=MemoryPool,
        Stream=Stream,
        get_allocator=lambda: pool.malloc,
        get_current_stream=get_current_stream,
        runtime=runtime,
        set_allocator=lambda allocate: None,  # noqa: ARG005
        UnownedMemory=lambda address, *_: _opened[address],
    )
    _module("cupyx", empty_pinned=empty_pinned)
    others = {"RawKernel": RawKernel, "cuda": cuda, "ndarray": ndarray, "__version__": VERSION}
    _module("cupy", **FUNCTIONS, **others, get_default_memory_pool=lambda: pool)
