"""Samples of a process that runs tasks: where its time goes, and the load of its machine.

They are taken while an observer of events asks for details.

References: Gregg, "The Flame Graph", CACM 59 (2016), for counted stacks.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import psutil

from dask_exo.cluster.futures import shares_process

INTERVAL = 0.1  # seconds between two samples of a thread
DEEPEST = 60  # functions of a stack, the innermost ones are left out
PAUSE = 0.5  # seconds between two readings of the load of a machine
TAIL = 4_000  # last characters of what a worker has printed

Stack = tuple[str, ...]
"""Functions, the outermost first: name, file and line."""


class Load(NamedTuple):
    """Counters of a machine: seconds of its processors, bytes of its disks and network.

    ``gpus`` are its GPUs in use, each counted by the share of the last moment in which it ran
    kernels; None if that is not known.
    """

    processors: float
    disk: int
    network: int
    gpus: float | None = None


class TaskSamples(NamedTuple):
    """Stacks of a task, with the number of samples; and now and then the load of its machine."""

    stacks: Mapping[Stack, int]
    load: Load | None


@contextlib.contextmanager
def sampling(module: str, *, on: bool) -> Iterator[Callable[[], TaskSamples | None]]:
    """Sample the stack of this thread inside the block, up to the functions of a ``module``.

    Yields
    ------
    function
        Returns the samples since its last call; None unless ``on``.
    """
    if not on:
        yield lambda: None
        return
    stacks, lock, running = Counter[Stack](), threading.Lock(), threading.Lock()
    ident = threading.get_ident()
    running.acquire()  # no event, as in `node_state`: the sampler would never end

    def sample() -> None:
        while not running.acquire(timeout=INTERVAL - time.monotonic() % INTERVAL):  # ticks
            stack = _stack(ident, module)
            if stack:
                with lock:
                    stacks[stack] += 1

    def take() -> TaskSamples:
        with lock:
            taken = dict(stacks)
            stacks.clear()
        return TaskSamples(taken, _load())

    sampler = threading.Thread(target=sample, name="dask_exo-sampler", daemon=True)
    try:
        sampler.start()
        yield take
    finally:
        running.release()
        if sampler.is_alive():
            sampler.join()


def _stack(ident: int, module: str) -> Stack:
    """Return what a thread runs for a module; nothing if that module is not running."""
    frame: FrameType | None = sys._current_frames().get(ident)
    names: list[str] = []
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return tuple(reversed(names[-DEEPEST:]))
        names.append(_name(frame.f_code))
        frame = frame.f_back
    return ()


@lru_cache(10_000)
def _name(code: CodeType) -> str:
    file = "/".join(Path(code.co_filename).parts[-2:])
    return f"{code.co_qualname} {file}:{code.co_firstlineno}"


_next_reading = 0.0


def _load() -> Load | None:
    """Return the load of this machine, at most every `PAUSE` seconds."""
    global _next_reading  # noqa: PLW0603  of this process
    if time.monotonic() < _next_reading:
        return None
    _next_reading = time.monotonic() + PAUSE
    times, disk, network = psutil.cpu_times(), psutil.disk_io_counters(), psutil.net_io_counters()
    return Load(
        sum(times) - times.idle - getattr(times, "iowait", 0.0),
        0 if disk is None else disk.read_bytes + disk.write_bytes,
        network.bytes_sent + network.bytes_recv,
        _gpus_in_use(),
    )


@cache
def _gpus() -> tuple[Any, list[Any]]:
    """Return NVML and the GPUs of this machine; none without the package or a driver."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
        return nvml, [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    except Exception:  # noqa: BLE001  its error class is in the package
        return None, []


def _gpus_in_use() -> float | None:
    nvml, gpus = _gpus()
    if not gpus:
        return None
    try:
        return float(sum(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu for gpu in gpus)) / 100
    except nvml.NVMLError:  # a virtual GPU may not tell
        return None


def printed() -> str:
    """Return the last lines that this worker has printed; nothing in the program's own process.

    Ray writes them to files, which are the standard output and error of a worker.
    """
    if shares_process():
        return ""
    tails = []
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            path = Path(f"/proc/self/fd/{number}").resolve()
            if path.is_file():
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - TAIL))
                    tails += file.read().decode(errors="replace").splitlines()
    return "\n".join(line for line in tails if not line.startswith(":"))[-TAIL:]
