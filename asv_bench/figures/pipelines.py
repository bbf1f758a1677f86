"""Pipelines on Ray nodes: figures 6b, 6c, 9 and 10 of the streaming batch model.

Operators sleep, so that two real cores stand in for the CPUs and GPUs of four nodes.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from asv_bench.benchmarks import nodes as lost_nodes
from asv_bench.benchmarks import pieces, streaming
from asv_bench.figures.bars import grouped_bars
from asv_bench.figures.cluster import nodes

VIDEOS, PIECES = 40, 12  # videos, and pieces of a video on average
DECODE, GENERATE, ENCODE = 0.1, 0.1, 0.3  # seconds a piece, of a CPU, a GPU, a CPU
FRAMES = 25_000  # numbers of a piece of 200 kB
STEP = 5.0  # seconds of a point of the throughput


def decode(video: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Give the pieces of a video, one after the other; the videos differ in length and effort."""
    number = int(video.number.iloc[0])
    rng = np.random.default_rng(number)
    late = number >= VIDEOS // 2  # higher resolution: reading takes longer than encoding
    for _ in range(int(rng.integers(PIECES // 3, 2 * PIECES - PIECES // 3))):
        time.sleep(DECODE * (3 if late else 1))
        yield pd.DataFrame({"late": np.full(FRAMES, float(late))})


def generate(piece: pd.DataFrame) -> pd.DataFrame:
    """Make new frames, on a GPU."""
    time.sleep(GENERATE)
    return piece


def encode(piece: pd.DataFrame) -> pd.DataFrame:
    """Compress."""
    time.sleep(ENCODE / (3 if piece.late.iloc[0] else 1))
    return piece.iloc[:1]


def video(number: int) -> pd.DataFrame:
    """Name a video."""
    return pd.DataFrame({"number": [number]})


def measure_videos(rounds: int) -> list[dict[str, Any]]:
    """Videos whose work changes midway: no fixed sizes, fixed splits of the CPUs, and staged."""
    found = []
    with nodes(store=10**9, gpus=1) as cluster:
        cpus = cluster.count * cluster.slots
        ways: dict[str, tuple[int | None, str]] = {"dynamic": (None, "partition-admission")}
        ways |= {f"static {n} + {cpus - n}": (n, "partition-admission") for n in (2, 4, 6)}
        ways["staged"] = (None, "staged")
        for _, (name, (readers, policy)) in itertools.product(range(rounds), ways.items()):
            writers = None if readers is None else cpus - readers
            with dask.config.set({"exo.stream.policy": policy}):
                begin = time.perf_counter()
                source = dd.from_map(video, range(VIDEOS)).exo
                stages = (
                    source.pipeline(memory="40MB", target="200kB")
                    .map_partitions(decode, concurrency=readers)
                    .map_partitions(generate, num_cpus=0, num_gpus=1)
                    .map_partitions(encode, concurrency=writers)
                )
                times = [time.perf_counter() - begin for _ in stages.iter_batches()]
            found.append({"way": name, "times": times})
            print(name, len(times), f"{times[-1]:.1f} s", flush=True)
    return found


def draw_videos(found: list[dict[str, Any]]) -> Figure:
    """Pieces that have come, over time; the run with the median duration."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    for way in dict.fromkeys(one["way"] for one in found):
        runs = sorted((one["times"] for one in found if one["way"] == way), key=lambda t: t[-1])
        times = runs[len(runs) // 2]
        look = "--" if way.startswith("static") else "-"
        axis.plot([0, *times], range(len(times) + 1), look, label=f"{way}: {times[-1]:.0f} s")
    axis.set(xlabel="seconds", ylabel="pieces", title="Streaming batch, figure 6b: videos")
    axis.legend()
    return figure


def measure_node_loss(pieces: int) -> list[dict[str, Any]]:
    """A node is lost and another one comes: the pipeline, and one with checkpoints."""
    found = []
    for name, way in lost_nodes.WAYS.items():
        with lost_nodes.nodes() as cluster:
            came = way(cluster, pieces)
        counted = Counter(number for _, number in came)
        assert sorted(counted) == list(range(pieces))
        found.append({"way": name, "times": sorted(seconds for seconds, _ in came),
                      "doubled": len(came) - pieces})  # fmt: skip
        print(name, f"{found[-1]['times'][-1]:.1f} s", flush=True)
    return found


def draw_node_loss(found: list[dict[str, Any]]) -> Figure:
    """Pieces a second, over time."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    for one in found:
        slots = Counter(int(seconds // STEP) for seconds in one["times"])
        rates = [slots[i] / STEP for i in range(max(slots) + 1)]
        axis.step([i * STEP for i in range(len(rates))], rates, where="post", label=one["way"])
    for moment, what in ((lost_nodes.KILL, "node lost"), (lost_nodes.REJOIN, "another comes")):
        axis.axvline(moment, color="gray", linestyle=":")
        axis.annotate(what, (moment, axis.get_ylim()[1]), rotation=90, va="top")
    axis.set(xlabel="seconds", ylabel="pieces / s", title="Streaming batch, figure 6c: lost node")
    axis.legend()
    return figure


def measure_memory(rounds: int, loads: int, limits: list[int]) -> list[dict[str, Any]]:
    """Three stages under limits of memory, by each policy and by Ray Data."""
    systems = ("partition-admission", "adaptive", "conservative", "Ray Data")
    found = []
    for system, limit, took in streaming.measure(systems, limits, loads, rounds):
        found.append({"system": system, "limit": limit, "seconds": took.all, "first": took.first,
                      "bound": streaming.bound(limit, loads)})  # fmt: skip
    return found


def draw_memory(found: list[dict[str, Any]]) -> Figure:
    """Bars of seconds by the limit."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    limits = list(dict.fromkeys(one["limit"] for one in found))
    systems = list(dict.fromkeys(one["system"] for one in found))
    heights = {
        system: [
            statistics.median(
                one["seconds"] for one in found if (one["system"], one["limit"]) == (system, limit)
            )
            for limit in limits
        ]
        for system in systems
    }
    width = grouped_bars(axis, heights, limits)
    for j, limit in enumerate(limits):
        bound = next(one["bound"] for one in found if one["limit"] == limit)
        axis.plot([j - width / 2, j + 0.8 - width / 2], [bound, bound], "k--")
    axis.set(xlabel="memory, partitions", ylabel="seconds")
    axis.set(title="Streaming batch, figure 9: limits of memory (dashed: no schedule is faster)")
    return figure


def measure_rows(rounds: int) -> list[dict[str, Any]]:
    """The same rows in partitions of several sizes."""
    found = [
        {"rows": rows, "seconds": seconds, "bound": pieces.BOUND}
        for _ in range(rounds)
        for rows, seconds in [*pieces.sizes()][1:]  # the first one starts processes
    ]
    print(found, flush=True)
    return found


def draw_rows(found: list[dict[str, Any]]) -> Figure:
    """Throughput over the rows of a partition."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    counts = sorted({one["rows"] for one in found})
    medians = [
        statistics.median(one["seconds"] for one in found if one["rows"] == rows) for rows in counts
    ]
    axis.plot(counts, [pieces.ROWS / seconds for seconds in medians], "o-", label="dask_exo")
    axis.axhline(pieces.ROWS / found[0]["bound"], color="k", linestyle="--", label="bound")
    axis.set(xscale="log", xlabel="rows in a partition", ylabel="rows / s")
    axis.set(title="Streaming batch, figure 10: sizes of partitions", ylim=0)
    axis.legend()
    return figure
