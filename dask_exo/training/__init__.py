"""Batches for training, from an Exoshuffle for each epoch.

The order of an epoch is decided by the seed and its number, so that a training run can stop
anywhere and go on exactly there.

References: Exoshuffle section 3.3.3.2: pipelined full shuffle and windowed shuffle.
"""

from dask_exo.training.epoch_shuffle import EpochSpec, spread
from dask_exo.training.iterator import Epochs, epochs

__all__ = ["EpochSpec", "Epochs", "epochs", "spread"]
