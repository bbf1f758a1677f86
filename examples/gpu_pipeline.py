"""Signals are decoded on CPUs, features and a model run on a GPU (or numpy), a CPU writes."""

import tempfile
import zlib

import dask
import numpy as np
import pandas as pd

import dask_exo
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import DeviceFrame

LENGTH, PEOPLE = 256, 800
if not arrays.devices():  # without a GPU: numpy in its place, and a slot that stands for one
    dask.config.set({"exo.gpu.simulate": True})


def signals() -> pd.DataFrame:
    """Compressed waves, every other one with twice as many crests."""
    time = np.arange(LENGTH) / LENGTH
    waves = [np.sin(2 * np.pi * time * (4 + 4 * (i % 2))).astype("f4") for i in range(PEOPLE)]
    return pd.DataFrame({"person": range(PEOPLE), "file": map(zlib.compress, waves)})


def decode(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each sample: numbers only, as a device has them."""
    signal = np.frombuffer(b"".join(map(zlib.decompress, frame.file)), "f4")
    return pd.DataFrame({"person": np.repeat(frame.person.to_numpy(), LENGTH), "signal": signal})


def features(frame: DeviceFrame) -> DeviceFrame:
    """How steep each signal is, and how strong."""
    signal = frame.signal.values  # of cupy, or of numpy
    steep = signal.copy()
    steep[1:] -= signal[:-1]
    steep[:1] = 0
    squares = frame.assign(steep=steep * steep, strength=frame.signal * frame.signal)
    return squares.groupby("person")[["steep", "strength"]].mean().reset_index()


class Model:
    """A threshold; a real one would load its weights to the GPU here."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def __call__(self, frame: DeviceFrame) -> DeviceFrame:
        return frame.assign(fast=frame.steep / frame.strength > self.threshold)


def main() -> None:
    with tempfile.TemporaryDirectory() as made, dask_exo.enable(num_cpus=2):
        source = dask_exo.pipeline.of(signals().iloc[i : i + 100] for i in range(0, PEOPLE, 100))
        decoded = source.map_partitions(decode)
        on_gpu = decoded.map_batches(features, format="device", num_cpus=0)
        on_gpu.map_batches(Model, 0.02, format="device", num_cpus=0).to_parquet(made)
        found = pd.read_parquet(made)
    print(f"{(found.fast == (found.person % 2 == 1)).sum()} of {PEOPLE} signals are right")


if __name__ == "__main__":
    main()
