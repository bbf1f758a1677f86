"""Estimate the number of distinct values: from samples of rows, or for each group by a sketch.

A sample of rows spread over all of them shows how many values there are; a sample of runs of
neighbours shows values that are clustered, as in sorted data. Estimates tend to be too low rather
than too high: if some values are frequent and most are not, their repeats look like those of fewer
values.

A HyperLogLog sketch hashes each value to 64 bits. The first ``PRECISION`` of them name one of the
group's registers, which stores the most leading zeros of the other bits, plus one. Empty registers
are not stored, so a small group takes a few bytes for each of its values, and no group more than 5
bytes (9 beyond a million groups) for each of its 4,096 registers.

References: Flajolet, Fusy, Gandouet and Meunier, "HyperLogLog" (AofA 2007); Heule, Nunkesser and
Hall, "HyperLogLog in practice" (EDBT 2013), for 64 bits and sparse registers; Ertl, "New
cardinality estimation algorithms for HyperLogLog sketches" (arXiv:1702.01284), algorithm 6, whose
estimate needs no tables of biases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

SAMPLE = 4096  # rows of each sample
RUN = 256  # neighbours


def estimate_distinct(values: pd.DataFrame | pd.Series | pd.Index) -> float:
    """Estimate the number of distinct rows of at least `SAMPLE`."""
    samples = spread_rows(len(values)), neighbour_rows(len(values))
    return distinct_of_repeats(
        len(values), *(int(values.take(at).duplicated().sum()) for at in samples)
    )


def distinct_of_repeats(rows: int, spread_repeats: int, near_repeats: int) -> float:
    """Estimate the number of distinct values of at least `SAMPLE` rows.

    Repeats are the rows of `spread_rows`, and of `neighbour_rows`, that equal an earlier one.
    """
    return min(_distinct_if_uniform(rows, spread_repeats), (1 - near_repeats / SAMPLE) * rows)


def spread_rows(rows: int) -> np.ndarray:
    """Return (SAMPLE,) row numbers: a random one of each of as many equal stretches."""
    edges = np.arange(SAMPLE + 1) * rows // SAMPLE
    random = np.random.default_rng(rows).random(SAMPLE)
    return edges[:-1] + (random * np.diff(edges)).astype(np.int64)


def neighbour_rows(rows: int) -> np.ndarray:
    """Return (SAMPLE,) row numbers in evenly spaced runs."""
    starts = np.linspace(0, rows - RUN, SAMPLE // RUN).astype(np.int64)
    return np.minimum(starts[:, None] + np.arange(RUN), rows - 1).ravel()


def _distinct_if_uniform(rows: int, repeats: int) -> float:
    """Estimate distinct values from the repeats in `SAMPLE` rows, if all are equally frequent.

    Of ``m`` rows ``m - D (1 - exp(-m / D))`` repeat one of ``D`` values.
    """
    if repeats == 0:
        return float(rows)
    low, high = 1.0, float(SAMPLE) ** 2  # more values would hardly show a repeat
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        is_higher = SAMPLE - _expected_distinct(middle, SAMPLE) > repeats
        low, high = (middle, high) if is_higher else (low, middle)
    return _expected_distinct(low, rows)


def _expected_distinct(distinct: float, rows: int) -> float:
    return -distinct * math.expm1(-rows / distinct)


PRECISION = 12
REGISTERS = 1 << PRECISION
LARGEST = 64 - PRECISION + 1  # rank of a hash whose other bits are all zero
STANDARD_ERROR = 1.04 / np.sqrt(REGISTERS)  # relative


@dataclass(frozen=True)
class Sketch:
    """Registers of some groups."""

    groups: pd.Index  # (G,)
    places: np.ndarray  # (n,) ascending numbers of registers that are not empty
    ranks: np.ndarray  # (n,) their values

    def counts(self) -> pd.Series:
        """Return (G,) estimates of the number of distinct values of each group."""
        numbers = self.places // REGISTERS
        kinds = LARGEST + 1
        histograms = np.bincount(
            numbers.astype("int64") * kinds + self.ranks, minlength=len(self.groups) * kinds
        ).reshape(len(self.groups), kinds)
        histograms[:, 0] = REGISTERS - histograms.sum(axis=1)
        return pd.Series(_estimates(histograms), self.groups, dtype="float64")

    def take(self, order: np.ndarray) -> Sketch:
        """Return the sketch with its (G,) groups in another order."""
        numbers = np.empty_like(order)
        numbers[order] = np.arange(len(order))
        places = numbers[self.places // REGISTERS] * REGISTERS + self.places % REGISTERS
        return _largest(self.groups[order], places, self.ranks)

    def select(self, groups: slice) -> Sketch:
        """Return the sketch of neighbouring groups."""
        first = groups.start * REGISTERS
        some = slice(*np.searchsorted(self.places, [first, groups.stop * REGISTERS]))
        places = self.places[some] - self.places.dtype.type(first)
        return Sketch(self.groups[groups], places, self.ranks[some])


def sketch(groups: pd.Index, numbers: np.ndarray, values: pd.Series) -> Sketch:
    """Sketch values of groups; ``numbers`` are the group of each, or -1. Nulls do not count."""
    mask = (numbers >= 0) & values.notna().to_numpy()
    hashes = pd.util.hash_pandas_object(values[mask], index=False, categorize=False).to_numpy()
    # a one after the remaining bits ends the zeros; as floats these numbers are exact
    rest = (hashes << np.uint64(PRECISION) >> np.uint64(PRECISION - 1)) | np.uint64(1)
    _, lengths = np.frexp(rest.astype("float64"))  # of the numbers in bits
    places = numbers[mask].astype("int64") * REGISTERS
    places += (hashes >> np.uint64(64 - PRECISION)).astype("int64")
    return _largest(groups, places, LARGEST + 1 - lengths)


def merge_sketches(sketches: Sequence[Sketch]) -> Sketch:
    """Return the sketch of all values of ``sketches``."""
    groups = sketches[0].groups
    for other in sketches[1:]:
        groups = groups.union(other.groups, sort=False)
    places = [
        groups.get_indexer(s.groups)[s.places // REGISTERS] * REGISTERS + s.places % REGISTERS
        for s in sketches
    ]
    return _largest(groups, np.concatenate(places), np.concatenate([s.ranks for s in sketches]))


def _largest(groups: pd.Index, places: np.ndarray, ranks: np.ndarray) -> Sketch:
    """Return the largest rank of each register."""
    # place and rank are sorted as one integer: the last of each place has the largest rank
    packed = np.sort(places.astype("uint64") << np.uint64(8) | ranks.astype("uint64"))
    places = packed >> np.uint64(8)
    last = np.append(places[1:] != places[:-1], True)[: len(places)]
    dtype = "uint32" if len(groups) * REGISTERS <= 1 << 32 else "uint64"
    return Sketch(groups, places[last].astype(dtype), packed[last].astype("uint8"))


def _estimates(histograms: np.ndarray) -> np.ndarray:
    """Return (G,) estimates from (G, LARGEST + 1) counts of registers by rank."""
    m = REGISTERS
    z = m * _tau(1 - histograms[:, LARGEST] / m)
    for k in range(LARGEST - 1, 0, -1):
        z = (z + histograms[:, k]) / 2
    z = z + m * _sigma(histograms[:, 0] / m)
    return m * m / (2 * np.log(2)) / z


def _sigma(x: np.ndarray) -> np.ndarray:
    """Correct for empty registers: x + Σ x^(2^k)·2^(k-1), infinite for 1."""
    power, weight, total = x, 1.0, x
    with np.errstate(under="ignore"):
        for _ in range(64):
            power = power * power
            total = total + power * weight
            weight *= 2
    return np.where(x == 1, np.inf, total)


def _tau(x: np.ndarray) -> np.ndarray:
    """Correct for saturated registers: (1 - x - Σ (1 - x^(2^-k))²·2^-k) / 3."""
    power, weight, total = x, 1.0, 1 - x
    for _ in range(64):
        power = np.sqrt(power)
        weight /= 2
        total = total - (1 - power) ** 2 * weight
    return np.where((x == 0) | (x == 1), 0.0, total / 3)
